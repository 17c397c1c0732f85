# SPDX-License-Identifier: Apache-2.0
"""Batches of training: random rays of the training views, with their pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.images.pixel_source import pixel_source
from nerfkit.data.images.pixels import BACKGROUNDS
from nerfkit.data.images.pool import ImagePool, pool_of
from nerfkit.device import generator_on
from nerfkit.errors import SceneError


class Batch(NamedTuple):
    """R rays with their pixels."""

    rays: Rays
    pixels: Tensor  # [R, 3 or 4] uint8, straight alpha
    weight: Tensor  # [R] of each pixel in the loss, float32; 0 excludes a ray
    background: Tensor  # [R, 3] color behind the scene, in [0, 1]
    jitter: Tensor  # [R] in [0, 1], shift of the ray's samples in steps
    progress: Tensor | None = None  # [] share of the training's schedule that is done, 0 to 1; None: not in a training

    @property
    def view(self) -> Tensor:
        """[R] int64, training view of each ray."""
        return self.rays.view


class Background:
    """Background of training: one color, or a random one for each ray."""

    def __init__(self, kind: str, has_alpha: bool, device: torch.device):
        self.kind, self.has_alpha, self.color = kind, has_alpha, BACKGROUNDS.get(kind, 1.0)
        self.is_random = torch.tensor(False, device=device)  # a tensor, for a CUDA graph reads it

    def draw_at_random(self, at_random: bool) -> None:
        """Switch random colors on or off; images without alpha keep their background."""
        self.is_random.fill_(at_random and self.has_alpha)

    def draw(self, n_rays: int) -> Tensor:
        """Background [R, 3] of a batch."""
        device = self.is_random.device
        colors = torch.rand(n_rays, 3, device=device, generator=generator_on(device))
        return colors if self.kind == "random" else torch.where(self.is_random, colors, self.color)


class TrainingViews:
    """Cameras and their images, of which batches are drawn on one device.

    Args:
        cameras: V of them, on `device`.
        images: an ImagePool, or images of one size, [V, H, W, 3 or 4] uint8; where not on `device`, they are moved
            there, all or some at a time.
        background: as in data.background.
        device: of the batches; that of the images if None.
        n_steps: of the training.
    """

    def __init__(
        self,
        cameras: Cameras,
        images: ImagePool | Tensor,
        background: str,
        device: torch.device | None = None,
        n_steps: int = 10**9,
    ):
        if isinstance(images, Tensor):
            images = pool_of(images, cameras)
        if list(images.sizes) != cameras.sizes():
            raise SceneError(f"the sizes of {len(images)} images are not those of {len(cameras)} cameras")
        self.device = device = device or images.pixels.device
        self.cameras = cameras
        self.source = pixel_source(images, device, n_steps)
        self.background = Background(background, images.pixels.shape[-1] == 4, device)
        self.progress = torch.zeros((), device=device)  # a tensor, for a CUDA graph reads it

    def draw(self, n_rays: int) -> Batch:
        """A batch of random pixels of random views; all pixels are equally likely."""
        drawn = self.source.draw(n_rays)
        background = self.background.draw(n_rays)
        jitter = torch.rand(n_rays, device=self.device, generator=generator_on(self.device))
        rays, known = self.cameras.rays_of_pixels(drawn.view, drawn.column, drawn.row)
        weight = torch.ones(n_rays, device=self.device)
        if known is not None:
            weight = weight * known
        if drawn.ignored is not None:
            weight = weight * ~drawn.ignored
        return Batch(rays, drawn.color, weight, background, jitter, self.progress)
