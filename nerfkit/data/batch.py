# SPDX-License-Identifier: Apache-2.0
"""Batches of training: random rays of the training views, with their pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pixels import BACKGROUNDS
from nerfkit.data.pool import ImagePool, pool_of
from nerfkit.errors import SceneError


class Batch(NamedTuple):
    """R rays with their pixels."""

    rays: Rays
    pixels: Tensor  # [R, 3 or 4] uint8, straight alpha
    weight: Tensor  # [R] of each pixel in the loss, float32; 0 excludes a ray
    background: Tensor  # [R, 3] color behind the scene, in [0, 1]
    jitter: Tensor  # [R] in [0, 1], shift of the ray's samples in steps

    @property
    def view(self) -> Tensor:
        """[R] int64, training view of each ray."""
        return self.rays.view


class Background:
    """Background of training: one color, or a random one for each ray."""

    def __init__(self, kind: str, has_alpha: bool, device: torch.device):
        if kind == "random" and not has_alpha:
            raise SceneError(
                "data.background is random, but the images have no alpha: their background is part of them. "
                "Give its color, white or black, or images with alpha"
            )
        self.kind, self.has_alpha = kind, has_alpha
        self.is_random = torch.tensor(False, device=device)  # a tensor, for a CUDA graph reads it

    def draw_at_random(self, at_random: bool) -> None:
        """Switch random colors on or off; images without alpha keep their background."""
        self.is_random.fill_(at_random and self.has_alpha)

    def draw(self, n_rays: int) -> Tensor:
        """Background [R, 3] of a batch."""
        colors = torch.rand(n_rays, 3, device=self.is_random.device)
        return colors if self.kind == "random" else torch.where(self.is_random, colors, BACKGROUNDS[self.kind])


class TrainingViews:
    """Cameras and their images, on one device, of which batches are drawn.

    Args:
        cameras: V of them.
        images: an ImagePool, or images of one size, [V, H, W, 3 or 4] uint8.
        background: as in data.background.
    """

    def __init__(self, cameras: Cameras, images: ImagePool | Tensor, background: str):
        if isinstance(images, Tensor):
            images = pool_of(images, cameras)
        self.cameras, self.images = cameras, images
        self.background = Background(background, images.pixels.shape[-1] == 4, images.pixels.device)
        if list(images.sizes) != cameras.sizes():
            raise SceneError(f"the sizes of {len(images)} images are not those of {len(cameras)} cameras")
        self.size = images.sizes[0] if len(set(images.sizes)) == 1 else None  # of every image; None if they differ

    def draw(self, n_rays: int) -> Batch:
        """A batch of random pixels of random views; all pixels are equally likely."""
        device = self.images.pixels.device
        view, row, column, pixel = self._draw_pixels(n_rays)
        background = self.background.draw(n_rays)
        jitter = torch.rand(n_rays, device=device)
        rays = self.cameras.rays(view, column, row)
        weight = torch.ones(n_rays, device=device)
        known = self.cameras.known(view, column, row)
        if known is not None:
            weight = weight * known
        if self.images.ignored is not None:
            weight = weight * ~self.images.ignored[pixel]
        return Batch(rays, self.images.pixels[pixel], weight, background, jitter)

    def _draw_pixels(self, n_rays: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """View, row, column and number in the pool [R] of random pixels."""
        device, first = self.images.pixels.device, self.images.first
        if self.size is not None:
            width, height = self.size
            sizes = (len(self.cameras), height, width)
            view, row, column = (torch.randint(n, (n_rays,), device=device) for n in sizes)
            return view, row, column, (view * height + row) * width + column
        pixel = torch.randint(self.images.pixels.shape[0], (n_rays,), device=device)
        view = torch.searchsorted(first, pixel, right=True) - 1
        within, width = pixel - first[view], self.cameras.width_of(view)
        row = within // width
        return view, row, within - row * width, pixel
