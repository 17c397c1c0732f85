# SPDX-License-Identifier: Apache-2.0
"""Images of any sizes in one array of pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.errors import SceneError


@dataclass(frozen=True)
class ImagePool:
    """P pixels of V images, image after image, row by row."""

    pixels: Tensor  # [P, 3 or 4] uint8, straight alpha
    first: Tensor  # [V] int64, number of each image's first pixel
    sizes: tuple[tuple[int, int], ...]  # width and height of each image
    ignored: Tensor | None = None  # [P] bool, pixels that do not count

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: torch.device | str) -> ImagePool:
        """The same images on `device`."""
        ignored = None if self.ignored is None else self.ignored.to(device)
        return ImagePool(self.pixels.to(device), self.first.to(device), self.sizes, ignored)

    def image(self, view: int) -> Tensor:
        """One image, [H, W, 3 or 4] uint8."""
        return self._image(self.pixels, view)

    def mask(self, view: int) -> Tensor | None:
        """Pixels of one image that do not count, [H, W] bool; None if all count."""
        return None if self.ignored is None else self._image(self.ignored, view)

    def stack(self) -> Tensor:
        """All images, [V, H, W, 3 or 4] uint8; raises SceneError if their sizes differ."""
        if len(set(self.sizes)) != 1:
            raise SceneError(f"images of {len(set(self.sizes))} sizes cannot be stacked")
        width, height = self.sizes[0]
        return self.pixels.unflatten(0, (len(self), height, width))

    def bytes(self) -> int:
        """Memory of the pixels."""
        return self.pixels.numel() + (0 if self.ignored is None else self.ignored.numel())

    def rows(self, view: int) -> slice:
        """Numbers of the pixels of one image."""
        width, height = self.sizes[view]
        start = int(self.first[view])
        return slice(start, start + width * height)

    def _image(self, values: Tensor, view: int) -> Tensor:
        return values[self.rows(view)].unflatten(0, self.sizes[view][::-1])


def pool_of(images: Tensor, cameras: Cameras) -> ImagePool:
    """Images [V, H, W, 3 or 4] uint8 as a pool; raises SceneError if they are not the cameras'."""
    wanted = [len(cameras), *reversed(cameras.size())]
    if images.dtype != torch.uint8 or list(images.shape[:-1]) != wanted or images.shape[-1] not in (3, 4):
        raise SceneError(
            f"images must be uint8 {[*wanted, '3 or 4']}, as the cameras are, got "
            f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}".replace("'", "")
        )
    first = torch.arange(len(cameras), device=images.device) * (wanted[1] * wanted[2])
    return ImagePool(images.flatten(0, 2), first, ((wanted[2], wanted[1]),) * len(cameras))
