# SPDX-License-Identifier: Apache-2.0
"""Pixels, intrinsics and poses -> rays.

Poses are camera-to-world in OpenGL axes: x right, y up, the camera looks down -z. Pixel (column, row) has its centre
at (column + 0.5, row + 0.5); (0, 0) is the upper left corner of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.errors import SceneError


class Rays(NamedTuple):
    """R rays in world space."""

    origins: Tensor  # [R, 3]
    directions: Tensor  # [R, 3] of unit length
    view: Tensor | None = None  # [R] int64, index of each ray's view


@dataclass(frozen=True)
class Cameras:
    """V pinhole cameras of one image size."""

    camera_to_world: Tensor  # [V, 3, 4]
    focal: Tensor  # [V, 2] along x and y [pixels]
    center: Tensor  # [V, 2] principal point, from the upper left corner [pixels]
    width: int
    height: int

    def __post_init__(self) -> None:
        n_views = self.camera_to_world.shape[0]
        wanted = {"camera_to_world": (n_views, 3, 4), "focal": (n_views, 2), "center": (n_views, 2)}
        for name, shape in wanted.items():
            if tuple(getattr(self, name).shape) != shape:
                raise SceneError(
                    f"Cameras: {name} must have shape [{', '.join(['V', *map(str, shape[1:])])}], "
                    f"got {list(getattr(self, name).shape)}"
                )
        if not (isinstance(self.width, int) and isinstance(self.height, int)) or min(self.width, self.height) < 1:
            raise SceneError(f"Cameras: width and height must be whole pixels, got {self.width} and {self.height}")

    def __len__(self) -> int:
        return self.camera_to_world.shape[0]

    def __getitem__(self, views: slice | list[int]) -> Cameras:
        return self._each(lambda tensor: tensor[views])

    @property
    def positions(self) -> Tensor:
        """[V, 3] in world space."""
        return self.camera_to_world[:, :, 3]

    def to(self, device: torch.device | str) -> Cameras:
        """The same cameras on `device`."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Cameras:
        """The same cameras with every tensor changed."""
        tensors = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)

    def resized(self, width: int, height: int) -> Cameras:
        """The same cameras with images of another size."""
        scale = torch.tensor([width / self.width, height / self.height], device=self.focal.device)
        return replace(self, focal=self.focal * scale, center=self.center * scale, width=width, height=height)

    def rays(self, view: Tensor, column: Tensor, row: Tensor) -> Rays:
        """Rays through the centres of pixels; view, column and row are [R] integers."""
        pixel = torch.stack([column, row], dim=-1) + 0.5  # [R, 2]
        x, y = ((pixel - self.center[view]) / self.focal[view]).unbind(-1)
        local = torch.stack([x, -y, -torch.ones_like(x)], dim=-1)  # [R, 3] camera axes
        # By elements: on a GPU, torch's gather of rows takes one block per row, however short.
        index = view[:, None] * 12 + torch.arange(12, device=view.device)  # [R, 12]
        pose = self.camera_to_world.flatten().take(index).unflatten(1, (3, 4))  # [R, 3, 4]
        directions = torch.nn.functional.normalize((pose[:, :, :3] * local[:, None]).sum(-1), dim=-1)
        return Rays(pose[:, :, 3], directions, view)

    def image_rays(self, view: int, start: int = 0, end: int | None = None) -> Rays:
        """Rays of pixels start..end of one image, row by row."""
        end = self.width * self.height if end is None else end
        pixel = torch.arange(start, end, device=self.focal.device)
        return self.rays(torch.full_like(pixel, view), pixel % self.width, pixel // self.width)

    def project(self, points: Tensor, view: int) -> tuple[Tensor, Tensor]:
        """Pixel coordinates [P, 2] and depth along -z [P] of world points [P, 3] in one view."""
        pose = self.camera_to_world[view]
        x, y, z = ((points - pose[:, 3]) @ pose[:, :3]).unbind(-1)  # camera axes
        depth = -z
        return torch.stack([x, -y], dim=-1) / depth[:, None] * self.focal[view] + self.center[view], depth

    def z_per_distance(self, view: int, directions: Tensor) -> Tensor:
        """Factor [R] that turns distance along each ray into depth along the view's -z axis."""
        return -(directions @ self.camera_to_world[view, :, 2])
