# SPDX-License-Identifier: Apache-2.0
"""Training views that count late, by which a training notices that it explains those alone that it draws.

Fog before each camera can show it its image. A view that does not count yet has no such fog: its PSNR tells what
other views will be like. In a box no sample lies before the cameras, and a few views show each what no other does.
"""

import torch

from nerfkit.config import Config
from nerfkit.data.images.batch import TrainingViews
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.model.base import Model
from nerfkit.rendering.image_renderer import in_eval_mode
from nerfkit.training.run.files import DRAWN_PSNR, HELD_BACK_PSNR

UNTIL = 0.1  # share of the schedule
CHECKS = 4  # evenly spaced up to there
MIN_VIEWS = 8
SIDE = 24  # pixels of a view that are compared, across and down


class HeldBack:
    """Two training views that count from `UNTIL` on, and two between them that always do; none in a box, or of few."""

    def __init__(self, config: Config, views: TrainingViews):
        self.views, self.checks, n_views, device = views, 0, len(views.cameras), views.device
        is_on = config.sampling.kind == "contracted" and n_views >= MIN_VIEWS
        self.compared = [(2 * i + 1) * n_views // 8 for i in range(4)] if is_on else []
        self.background, pool = background_color(config.data.background, device), views.source.pool
        view, odd = torch.tensor(self.compared, dtype=torch.int64)[:, None, None], 2 * torch.arange(SIDE) + 1
        width, height = torch.tensor(pool.sizes)[view].unbind(-1)  # [4, 1, 1] each
        places = torch.broadcast_tensors(view, odd * width // (2 * SIDE), odd[:, None] * height // (2 * SIDE))
        pixel = (pool.first.cpu()[view] + places[2] * width + places[1]).flatten().to(pool.first.device)
        self.rays, known = views.cameras.rays_of_pixels(*(place.flatten().to(device) for place in places))
        self.truth = blend(pool.pixels[pixel].to(device), self.background)
        self.weight = torch.ones(len(pixel), device=device) if known is None else known.float()
        if pool.ignored is not None:
            self.weight *= ~pool.ignored[pixel].to(device)
        views.weight = torch.ones(n_views, device=device) if is_on else None
        self.count: bool | None = None  # the views held back

    def hold(self, progress: float) -> None:
        """Before a step: whether the views count. It is written once, for a step of a GPU reads it from memory."""
        if self.count != (progress >= UNTIL):
            self.count = progress >= UNTIL
            for view in self.compared[1::2]:
                self.views.weight[view] = float(self.count)

    def is_due(self, progress: float) -> bool:
        """Whether a check has become due since the last call."""
        before, self.checks = self.checks, min(int(progress / UNTIL * CHECKS + 1e-9), CHECKS)
        return self.checks > before and bool(self.compared)

    @torch.no_grad()
    def scores(self, model: Model) -> dict[str, float]:
        """PSNR of the better view of those held back, and of the worse one of those drawn: a view that sees what no
        other does is no alarm. Poses and light are not those learned of each view, which one held back has not got."""
        with in_eval_mode(model):
            color = model(self.rays._replace(view=None), self.background).color.clamp(0, 1)
        error = (color - self.truth).square().mean(-1) * self.weight
        error, weight = (values.unflatten(0, (4, -1)).sum(1) for values in (error, self.weight))  # [4] each
        psnr = (-10 * (error / weight.clamp(min=1)).clamp(min=1e-10).log10()).tolist()
        return {HELD_BACK_PSNR: round(max(psnr[1::2]), 3), DRAWN_PSNR: round(min(psnr[::2]), 3)}
