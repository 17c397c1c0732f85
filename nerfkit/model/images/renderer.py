# SPDX-License-Identifier: Apache-2.0
"""The field of `nerfkit.model.renderer`, and what the training images see where its rays end.

field       rays                         -> color, opacity, depth   as the model "field" has them
sources     training images, cameras     -> where a point appears, and its color there
look_up     point at the expected depth  -> look-ups    [R, K]: color, direction, validity
blender     look-ups by angle, color     -> residual    [R, 3], zero at first
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pool import ImagePool
from nerfkit.errors import ConfigError, SceneError, UserError
from nerfkit.model.compositing import Rendering
from nerfkit.model.images.blender import Blender
from nerfkit.model.images.lookup import look_up
from nerfkit.model.images.sources import Sources
from nerfkit.model.renderer import Renderer

RAYS_TIMES_VIEWS = 2**22  # that are projected at a time when an image is rendered


class ImageBasedRenderer(Renderer):
    """A field whose color is corrected by the images around the ray.

    A ray of a training view sees every image but its own. The look-up is at the expected depth, which gets no gradient
    through it; the field's color gets the whole gradient.
    """

    needs_images = True

    @dataclass
    class Options:
        """model.options of it."""

        views: int = 4  # images that a ray is looked up in, at most
        state: int = 16  # size of the LLTM's state over them

    def __init__(self, config: Config):
        super().__init__(config)
        for name, value in vars(self.options).items():
            if not 1 <= value <= 1024:
                raise ConfigError(f"model.options: {name} must be from 1 to 1024, got {value}")
        self.blender = Blender(self.options.state)
        self.sources: Sources | None = None
        self.ops = (*self.ops, "lltm_cell")

    def look_at(self, cameras: Cameras, images: ImagePool) -> None:
        if len(cameras) < 2:
            raise SceneError("model.kind images needs two training views at least, for a ray sees none but the others")
        self.sources = Sources(cameras, images)

    @property
    def max_rays_rendered(self) -> int:
        views = 1 if self.sources is None else len(self.sources)
        return min(super().max_rays_rendered, max(RAYS_TIMES_VIEWS // views, 2**10))

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """As `Renderer.forward`; `rays.view` are training views, or None for rays of none of them."""
        if self.sources is None:
            raise UserError("the model images has not been given the training images; call its look_at first")
        rendering = super().forward(rays, background, jitter, capacity)
        points = rays.origins + rays.directions * rendering.depth[:, None]  # [R, 3]
        found = look_up(self.sources, rays, points, background, self.options.views)
        with self.autocast(rays.origins.device):
            residual = self.blender(found, rendering.color.detach())  # [R, 3]
        return rendering._replace(color=rendering.color + rendering.opacity.detach()[:, None] * residual)
