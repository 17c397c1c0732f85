# SPDX-License-Identifier: Apache-2.0
"""Pixels, lenses and poses -> rays.

Poses are camera-to-world in OpenGL axes: x right, y up, the camera looks down -z. Pixel (column, row) has its centre
at (column + 0.5, row + 0.5); (0, 0) is the upper left corner of the image. A lens without distortion is its focal
length and principal point; with distortion, directions come from a table with a row for every pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nerfkit.data.lens import Lens
from nerfkit.errors import SceneError

MOST_DIRECTIONS = 2**30 // 12  # of a table: 1 GB


class Rays(NamedTuple):
    """R rays in world space."""

    origins: Tensor  # [R, 3]
    directions: Tensor  # [R, 3] of unit length
    view: Tensor | None = None  # [R] int64, index of each ray's view


@dataclass(frozen=True)
class DirectionTable:
    """Directions of all pixels of K lenses, for V views."""

    directions: Tensor  # [T, 3] float32, unit vectors in OpenGL camera axes: lens after lens, row by row
    valid: Tensor  # [T] bool, whether a direction is known
    first: Tensor  # [V] int64, row of each view's first pixel


@dataclass(frozen=True)
class Cameras:
    """V cameras; image sizes and lenses may differ."""

    camera_to_world: Tensor  # [V, 3, 4]
    focal: Tensor  # [V, 2] along x and y [pixels]
    center: Tensor  # [V, 2] principal point, from the upper left corner [pixels]
    width: int | Tensor  # pixels; [V] int64 where sizes differ
    height: int | Tensor
    lenses: tuple[Lens, ...] = ()  # of each view, where one of them has distortion
    table: DirectionTable | None = field(default=None, repr=False)  # of those lenses; see `of_lenses`

    def __post_init__(self) -> None:
        n_views = self.camera_to_world.shape[0]
        wanted = {"camera_to_world": (n_views, 3, 4), "focal": (n_views, 2), "center": (n_views, 2)}
        wanted |= {name: (n_views,) for name in ("width", "height") if isinstance(getattr(self, name), Tensor)}
        for name, shape in wanted.items():
            if tuple(getattr(self, name).shape) != shape:
                raise SceneError(
                    f"Cameras: {name} must have shape [{', '.join(['V', *map(str, shape[1:])])}], "
                    f"got {list(getattr(self, name).shape)}"
                )
        for side in (*_unique(self.width), *_unique(self.height)):
            if not isinstance(side, int) or side < 1:
                raise SceneError(f"Cameras: width and height must be whole pixels, got {self.width} and {self.height}")

    @classmethod
    def of_lenses(cls, camera_to_world: Tensor, lenses: list[Lens]) -> Cameras:
        """Cameras with a lens for each view; equal ones share their directions.

        Raises SceneError for a lens that leaves more than a few pixels without a direction.
        """
        intrinsics = [torch.tensor([getattr(lens, name) for lens in lenses]) for name in ("focal", "center")]
        sizes = [one_or_all([getattr(lens, name) for lens in lenses]) for name in ("width", "height")]
        if all(lens.is_pinhole for lens in lenses):
            return cls(camera_to_world, *intrinsics, *sizes)
        return cls(camera_to_world, *intrinsics, *sizes, tuple(lenses), _table(lenses))

    def __len__(self) -> int:
        return self.camera_to_world.shape[0]

    def __getitem__(self, views: slice | list[int]) -> Cameras:
        chosen = range(len(self))[views] if isinstance(views, slice) else views
        lenses = tuple(self.lenses[view] for view in chosen) if self.lenses else ()
        table = replace(self.table, first=self.table.first[views]) if self.table else None
        return replace(self._each(lambda tensor: tensor[views]), lenses=lenses, table=table)

    def size(self, view: int | None = None) -> tuple[int, int]:
        """Width and height of one view, or of all; raises SceneError if they differ."""
        sizes = sorted(set(self.sizes())) if view is None else [self.sizes()[view]]
        if len(sizes) != 1:
            raise SceneError("the images have several sizes, {}x{} and {}x{} among them".format(*sizes[0], *sizes[-1]))
        return sizes[0]

    def sizes(self) -> list[tuple[int, int]]:
        """Width and height of each view."""
        sides = [x.tolist() if isinstance(x, Tensor) else [x] * len(self) for x in (self.width, self.height)]
        return list(zip(*sides, strict=True))

    def width_of(self, view: Tensor) -> int | Tensor:
        """Width of the images of `view` [R]."""
        return self.width[view] if isinstance(self.width, Tensor) else self.width

    @property
    def positions(self) -> Tensor:
        """[V, 3] in world space."""
        return self.camera_to_world[:, :, 3]

    def to(self, device: torch.device | str) -> Cameras:
        """The same cameras on `device`."""
        moved = self._each(lambda tensor: tensor.to(device))
        return replace(moved, table=_each_tensor(self.table, lambda tensor: tensor.to(device)) if self.table else None)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Cameras:
        """The same cameras with every tensor of theirs changed."""
        return _each_tensor(self, change)

    def pinhole(self) -> Cameras:
        """The same cameras without distortion."""
        return replace(self, lenses=(), table=None)

    def resized(self, width: int, height: int) -> Cameras:
        """The same cameras with images of another size."""
        if self.lenses:
            return Cameras.of_lenses(self.camera_to_world, [lens.resized(width, height) for lens in self.lenses])
        scale = torch.tensor([width, height]) / torch.tensor(self.sizes())  # [V, 2]
        scale = scale.to(self.focal.device)
        return replace(self, focal=self.focal * scale, center=self.center * scale, width=width, height=height)

    def rays(self, view: Tensor, column: Tensor, row: Tensor) -> Rays:
        """Rays through the centres of pixels; view, column and row are [R] integers."""
        # By elements: on a GPU, torch's gather of rows takes one block per row, however short.
        index = view[:, None] * 12 + torch.arange(12, device=view.device)  # [R, 12]
        pose = self.camera_to_world.flatten().take(index).unflatten(1, (3, 4))  # [R, 3, 4]
        local = self._directions(view, column, row)  # [R, 3]
        directions = torch.nn.functional.normalize((pose[:, :, :3] * local[:, None]).sum(-1), dim=-1)
        return Rays(pose[:, :, 3], directions, view)

    def _directions(self, view: Tensor, column: Tensor, row: Tensor) -> Tensor:
        """Directions [R, 3] in camera axes, of any length."""
        if self.table is not None:
            return self.table.directions[self._table_row(view, column, row)]
        pixel = torch.stack([column, row], dim=-1) + 0.5  # [R, 2]
        x, y = ((pixel - self.center[view]) / self.focal[view]).unbind(-1)
        return torch.stack([x, -y, -torch.ones_like(x)], dim=-1)

    def _table_row(self, view: Tensor, column: Tensor, row: Tensor) -> Tensor:
        return self.table.first[view] + row * self.width_of(view) + column

    def known(self, view: Tensor, column: Tensor, row: Tensor) -> Tensor | None:
        """Whether the lens has a direction for each pixel [R]; None where it has for all."""
        return None if self.table is None else self.table.valid[self._table_row(view, column, row)]

    def known_image(self, view: int) -> Tensor | None:
        """Whether the lens has a direction for each pixel of one image, [H, W] bool; None where it has for all."""
        if self.table is None:
            return None
        width, height = self.size(view)
        first = int(self.table.first[view])
        return self.table.valid[first : first + width * height].unflatten(0, (height, width))

    def image_rays(self, view: int, start: int = 0, end: int | None = None) -> Rays:
        """Rays of pixels start..end of one image, row by row."""
        width, height = self.size(view)
        end = width * height if end is None else end
        pixel = torch.arange(start, end, device=self.focal.device)
        return self.rays(torch.full_like(pixel, view), pixel % width, pixel // width)

    def project(self, points: Tensor, view: int) -> tuple[Tensor, Tensor]:
        """Pixel coordinates [P, 2] and depth along -z [P] of world points [P, 3] in one view."""
        pose = self.camera_to_world[view]
        x, y, z = ((points - pose[:, 3]) @ pose[:, :3]).unbind(-1)  # camera axes
        if self.lenses:
            return self.lenses[view].project(torch.stack([x, -y, -z], dim=-1)), -z
        depth = -z
        return torch.stack([x, -y], dim=-1) / depth[:, None] * self.focal[view] + self.center[view], depth

    def z_per_distance(self, view: int, directions: Tensor) -> Tensor:
        """Factor [R] that turns distance along each ray into depth along the view's -z axis."""
        return -(directions @ self.camera_to_world[view, :, 2])


def _table(lenses: list[Lens]) -> DirectionTable:
    first, maps, n_rows = {}, [], 0
    for lens in lenses:
        if lens not in first:
            first[lens], n_rows = n_rows, n_rows + lens.width * lens.height
            if n_rows > MOST_DIRECTIONS:
                raise SceneError(
                    f"the {len(set(lenses))} lenses with distortion have more than {MOST_DIRECTIONS} pixels together; "
                    "raise data.downscale, or undistort the images with COLMAP's image_undistorter"
                )
            maps.append(lens.direction_map())
    return DirectionTable(
        torch.cat([of.directions for of in maps]),
        torch.cat([of.valid for of in maps]),
        torch.tensor([first[lens] for lens in lenses]),
    )


def one_or_all(values: list[int]) -> int | Tensor:
    """The value that all of [V] have, or all of them."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values)


def _unique(side: Any) -> list[Any]:
    return side.unique().tolist() if isinstance(side, Tensor) else [side]


def _each_tensor(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A dataclass with every tensor in its fields changed."""
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return replace(thing, **{name: change(x) for name, x in values.items() if isinstance(x, Tensor)})
