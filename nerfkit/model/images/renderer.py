# SPDX-License-Identifier: Apache-2.0
"""The field of `nerfkit.model.renderer`, and what the training images see where its rays end.

field       rays                         -> color, opacity, depth   as the model "field" has them
sources     training images, cameras     -> where a point appears, and its color there
look_up     point at the expected depth  -> look-ups    [R, K]: color, direction, validity
depth_maps  the field, now and then      -> agreement   of a look-up with what its camera sees
blender     look-ups by angle, color     -> residual    [R, 3], zero at first
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pool import ImagePool
from nerfkit.errors import ConfigError, SceneError, UserError
from nerfkit.model.compositing import Rendering
from nerfkit.model.images.blender import Blender
from nerfkit.model.images.depth_maps import DepthMaps
from nerfkit.model.images.lookup import look_up
from nerfkit.model.images.sources import Sources
from nerfkit.model.renderer import Renderer

RAYS_TIMES_VIEWS, MAX_RAYS = 2**24, 2**18  # whose directions are compared at a time when an image is rendered
FAINT = 1e-3  # opacity of a ray up to which its color is left as it is: the correction is as faint
TRAINED_RAYS = 2**13  # of a step, at most, that the correction is trained on: it has few parameters


class ImageBasedRenderer(Renderer):
    """A field whose color is corrected by the images around the ray.

    A ray of a training view sees any image but its own. The field is trained as it is by itself, and in a training
    step it is the rendering's color. The correction is trained on a field's color that is disturbed: where the field
    was trained it is too good to be told when to trust the images.
    """

    needs_images = True

    @dataclass
    class Options:
        """model.options of it."""

        views: int = 4  # images that a ray is looked up in, at most
        state: int = 16  # size of the LLTM's state over them
        noise: float = 0.06  # error of the field's color, root mean square, that the correction is trained for

    def __init__(self, config: Config):
        super().__init__(config)
        for name, lowest, highest in (("views", 1, 1024), ("state", 1, 1024), ("noise", 0, 1)):
            if not lowest <= (value := getattr(self.options, name)) <= highest:  # NaN is not
                raise ConfigError(f"model.options: {name} must be from {lowest} to {highest}, got {value}")
        for option, is_off in (("appearance", "same"), ("poses", "given")):
            if (value := getattr(config.data, option)) != is_off:
                raise ConfigError(
                    f"data.{option} {value}: the model images takes its images' colors and poses as they are given; "
                    f"set it to {is_off}, or train model.kind field"
                )
        with torch.random.fork_rng(devices=[]):  # the field is drawn and trained as it is by itself
            self.blender = Blender(self.options.state)
        self.sources: Sources | None = None

    def look_at(self, cameras: Cameras, images: ImagePool) -> None:
        if len(cameras) < 2:
            raise SceneError("model.kind images needs two training views at least, for a ray sees none but the others")
        self.sources = Sources(cameras, images)
        self.depth_maps = DepthMaps(cameras, self.config.sampling)

    def update(self, step: int) -> None:
        super().update(step)
        if self.sources is not None:
            nothing = self.sources.pixels.new_zeros(3, dtype=torch.float32)
            self.depth_maps.update(self.sources.cameras, step, lambda rays: Renderer.forward(self, rays, nothing))

    @property
    def max_rays_rendered(self) -> int:
        views = 1 if self.sources is None else len(self.sources)
        return min(super().max_rays_rendered, max(RAYS_TIMES_VIEWS // views, 2**10), MAX_RAYS)

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """As `Renderer.forward`; `rays.view` are training views, or None for rays of none of them."""
        if self.sources is None:
            raise UserError("the model images has not been given the training images; call its look_at first")
        field = super().forward(rays, background, jitter, capacity)
        color, opacity, depth = (x.detach() for x in field[:3])
        if self.training and jitter is not None:
            color = disturbed(color, jitter, self.options.noise)
            first = slice(TRAINED_RAYS)  # as good as any others, of rays that are drawn at random
            return field._replace(corrected=self._corrected(rays, color, opacity, depth, background, first))
        hits = (opacity > FAINT).nonzero()[:, 0]
        corrected = self._corrected(rays, color, opacity, depth, background, hits)
        return field._replace(color=color.index_copy(0, hits, corrected.to(color.dtype)))

    def _corrected(
        self, rays: Rays, color: Tensor, opacity: Tensor, depth: Tensor, background: Tensor, which: slice | Tensor
    ) -> Tensor:
        """Colors [S, 3] of some rays with what the images around them say; of all R are the other tensors."""
        rays = Rays(*(None if x is None else x[which] for x in rays))
        color, opacity, depth = color[which], opacity[which, None], depth[which, None]  # [S, 3], [S, 1], [S, 1]
        background = background if background.dim() == 1 else background[which]
        points = rays.origins + rays.directions * depth  # [S, 3]
        found = look_up(self.sources, self.depth_maps, rays, points, background, self.options.views)
        with self.autocast(points.device):
            residual = self.blender(found, color)  # [S, 3]
        return color + opacity * residual


def disturbed(color: Tensor, jitter: Tensor, noise: float) -> Tensor:
    """Colors [R, 3] with an error of `noise`, root mean square, as a field has it where it was not trained.

    It is made of the jitter [R], which is random, by a hash: random numbers of its own would change all that follow.
    """
    factors = 12.9898 + 7.1 * torch.arange(4, device=color.device)
    uniform = torch.frac(torch.sin(jitter[:, None] * factors).abs() * 43758.5453)  # [R, 4] in [0, 1)
    signed, amount = (uniform - 0.5).split([3, 1], dim=-1)
    return color + noise * 3 * signed * (2 * amount + 1)  # of a mean square of noise**2
