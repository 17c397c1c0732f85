# SPDX-License-Identifier: Apache-2.0
"""The field of `nerfkit.model.renderer`, and what the training images see where its rays end.

field       rays                         -> color, opacity, depth   as the model "field" has them
sources     training images, cameras     -> where a point appears, and its color there
look_up     point at the expected depth  -> look-ups    [R, K]: color, direction, validity
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
        with torch.random.fork_rng(devices=[]):  # the field is drawn and trained as it is by itself
            self.blender = Blender(self.options.state)
        self.sources: Sources | None = None
        self.ops = (*self.ops, "lltm_cell")

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
        return min(super().max_rays_rendered, max(RAYS_TIMES_VIEWS // views, 2**10))

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """As `Renderer.forward`; `rays.view` are training views, or None for rays of none of them."""
        if self.sources is None:
            raise UserError("the model images has not been given the training images; call its look_at first")
        field = super().forward(rays, background, jitter, capacity)
        color, opacity, depth = (x.detach() for x in field[:3])
        points = rays.origins + rays.directions * depth[:, None]  # [R, 3]
        found = look_up(self.sources, self.depth_maps, rays, points, background, self.options.views)
        with self.autocast(rays.origins.device):
            residual = self.blender(found, color)  # [R, 3]
        return field._replace(color=color + opacity[:, None] * residual, field_color=field.color)
