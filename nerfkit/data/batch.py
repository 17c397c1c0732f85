# SPDX-License-Identifier: Apache-2.0
"""Batches of training: random rays of the training views, with their pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pixels import BACKGROUNDS
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
    """Cameras and their images [V, H, W, 3 or 4] uint8, on one device, from which batches are drawn."""

    def __init__(self, cameras: Cameras, images: Tensor, background: str):
        wanted = [len(cameras), cameras.height, cameras.width]
        if images.dtype != torch.uint8 or list(images.shape[:-1]) != wanted or images.shape[-1] not in (3, 4):
            raise SceneError(
                f"images must be uint8 {[*wanted, '3 or 4']}, as the cameras are, got "
                f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}".replace("'", "")
            )
        self.cameras, self.images = cameras, images
        self.background = Background(background, images.shape[-1] == 4, images.device)

    def draw(self, n_rays: int) -> Batch:
        """A batch of random pixels of random views."""
        device = self.images.device
        n_views, height, width = self.images.shape[:3]
        view, row, column = (torch.randint(n, (n_rays,), device=device) for n in (n_views, height, width))
        background = self.background.draw(n_rays)
        jitter = torch.rand(n_rays, device=device)
        weight = torch.ones(n_rays, device=device)
        rays = self.cameras.rays(view, column, row)
        return Batch(rays, self.images[view, row, column], weight, background, jitter)
