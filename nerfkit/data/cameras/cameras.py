# SPDX-License-Identifier: Apache-2.0
"""Pixels, lenses and poses -> rays.

Poses are camera-to-world in OpenGL axes: x right, y up, the camera looks down -z. Pixel (column, row) has its centre
at (column + 0.5, row + 0.5); (0, 0) is the upper left corner. Directions of lenses with distortion come from a table:
of all pixels, or where that would take too much memory, of evenly spaced points, between which they are interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.data.cameras.lens import UNDISTORT, DirectionMap, Lens
from nerfkit.errors import SceneError

MAX_DIRECTIONS = 2**24  # of a table, of more than one lens: 0.2 GB
SPACINGS = (1, 2, 4, 8, 16, 32)  # pixels between two nodes of a table
LensMaps = dict[tuple[Lens, int], DirectionMap]  # by lens and spacing


class Rays(NamedTuple):
    """R rays in world space."""

    origins: Tensor  # [R, 3]
    directions: Tensor  # [R, 3] of unit length
    view: Tensor | None = None  # [R] int64, index of each ray's view


@dataclass(frozen=True)
class DirectionTable:
    """Directions at the nodes of K lenses, for V views."""

    directions: Tensor  # [T, 3] float32, unit vectors in OpenGL camera axes: lens after lens, row by row
    valid: Tensor  # [T] bool, whether a direction is known
    first: Tensor  # [V] int64, row of each view's first node
    across: Tensor  # [V] int64, nodes in a row of each view's
    step: Tensor  # [V, 2] float32, pixels between two nodes, across and down
    spacing: int = 1  # pixels between two nodes at most; 1: they are the pixels

    def at(self, view: Tensor, column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Directions [R, 3], of any length, through pixels, and whether they are known [R]."""
        if self.spacing == 1:
            node = self.first[view] + row * self.across[view] + column
            return self.directions[node], self.valid[node]
        step, across = self.step[view], self.across[view]  # [R, 2], [R]
        place = torch.stack([column, row], dim=-1) / step  # [R, 2] in nodes
        cell = (place - 1e-3).clamp(min=0).long()  # the last pixel lies in the last cell, not behind it
        right, down = (place - cell)[:, :, None].unbind(1)  # [R, 1] each, from 0 to 1 within the cell
        upper = self.first[view] + cell[:, 1] * across + cell[:, 0]
        lower = upper + across
        above = torch.lerp(self.directions[upper], self.directions[upper + 1], right)
        below = torch.lerp(self.directions[lower], self.directions[lower + 1], right)
        known = self.valid[upper] & self.valid[upper + 1] & self.valid[lower] & self.valid[lower + 1]
        return torch.lerp(above, below, down), known


@dataclass(frozen=True)
class Cameras:
    """V cameras; image sizes and lenses may differ."""

    camera_to_world: Tensor  # [V, 3, 4]
    focal: Tensor  # [V, 2] along x and y [pixels]
    center: Tensor  # [V, 2] principal point, from the upper left corner [pixels]
    width: int | Tensor  # pixels; [V] int64 where sizes differ
    height: int | Tensor
    lenses: tuple[Lens, ...] = ()  # of each view, where one of them has distortion
    table: DirectionTable | None = field(default=None, repr=False)  # of those lenses; see `from_lenses`

    def __post_init__(self) -> None:
        wanted = {"camera_to_world": [3, 4], "focal": [2], "center": [2]}
        wanted |= {name: [] for name in ("width", "height") if isinstance(getattr(self, name), Tensor)}
        for name, shape in wanted.items():
            if (got := list(getattr(self, name).shape)) != [len(self), *shape]:
                raise SceneError(f"Cameras: {name} must have shape [{', '.join(map(str, ['V', *shape]))}], got {got}")
        if not all(isinstance(side, int) and side >= 1 for size in set(self.sizes()) for side in size):
            raise SceneError(f"Cameras: width and height must be whole pixels, got {self.width} and {self.height}")

    @classmethod
    def from_lenses(cls, camera_to_world: Tensor, lenses: list[Lens], maps: LensMaps | None = None) -> Cameras:
        """Cameras with a lens for each view; equal ones share their directions, those in `maps` with other cameras.

        Raises SceneError for a lens that leaves more than a few pixels without a direction.
        """
        intrinsics = [torch.tensor([getattr(lens, name) for lens in lenses]) for name in ("focal", "center")]
        sides = zip(*[(lens.width, lens.height) for lens in lenses], strict=True)
        sizes = [of_all[0] if len(set(of_all)) == 1 else torch.tensor(of_all) for of_all in sides]
        if all(lens.is_pinhole for lens in lenses):
            return cls(camera_to_world, *intrinsics, *sizes)
        return cls(camera_to_world, *intrinsics, *sizes, tuple(lenses), _table(lenses, {} if maps is None else maps))

    def __len__(self) -> int:
        return self.camera_to_world.shape[0]

    def __getitem__(self, views: slice | list[int]) -> Cameras:
        chosen = range(len(self))[views] if isinstance(views, slice) else views
        lenses = tuple(self.lenses[view] for view in chosen) if self.lenses else ()
        of_views = {name: getattr(self.table, name)[views] for name in ("first", "across", "step") if self.table}
        table = self.table and replace(self.table, **of_views)
        return replace(_each_tensor(self, lambda tensor: tensor[views]), lenses=lenses, table=table)

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

    @property
    def positions(self) -> Tensor:
        """[V, 3] in world space."""
        return self.camera_to_world[:, :, 3]

    def to(self, device: torch.device | str) -> Cameras:
        """The same cameras on `device`."""
        table = self.table and _each_tensor(self.table, lambda tensor: tensor.to(device))
        return replace(_each_tensor(self, lambda tensor: tensor.to(device)), table=table)

    def pinhole(self) -> Cameras:
        """The same cameras without distortion; in place of lenses that may see beyond 90 degrees from their axis,
        pinholes of 90 degrees across at most."""
        least = [lens.is_wide * max(lens.width, lens.height) / 2 for lens in self.lenses]
        focal = self.focal.maximum(self.focal.new_tensor(least)[:, None]) if any(least) else self.focal
        return replace(self, focal=focal, lenses=(), table=None)

    def resized(self, width: int, height: int) -> Cameras:
        """The same cameras with images of another size."""
        if self.lenses:
            return Cameras.from_lenses(self.camera_to_world, [lens.resized(width, height) for lens in self.lenses])
        scale = torch.tensor([width, height]) / torch.tensor(self.sizes())  # [V, 2]
        scale = scale.to(self.focal.device)
        return replace(self, focal=self.focal * scale, center=self.center * scale, width=width, height=height)

    def rays(self, view: Tensor, column: Tensor, row: Tensor) -> Rays:
        """Rays through the centres of pixels; view, column and row are [R] integers."""
        return self.rays_of_pixels(view, column, row)[0]

    def rays_of_pixels(self, view: Tensor, column: Tensor, row: Tensor) -> tuple[Rays, Tensor | None]:
        """Those rays, and whether the lens has a direction for each pixel [R]; None where it has for all."""
        # By elements: on a GPU, torch's gather of rows takes one block per row, however short.
        index = view[:, None] * 12 + torch.arange(12, device=view.device)  # [R, 12]
        pose = self.camera_to_world.flatten().take(index).unflatten(1, (3, 4))  # [R, 3, 4]
        if self.table is not None:
            local, known = self.table.at(view, column, row)  # [R, 3], [R]
        else:
            pixel = torch.stack([column, row], dim=-1) + 0.5  # [R, 2]
            x, y = ((pixel - self.center[view]) / self.focal[view]).unbind(-1)
            local, known = torch.stack([x, -y, -torch.ones_like(x)], dim=-1), None
        directions = torch.nn.functional.normalize((pose[:, :, :3] * local[:, None]).sum(-1), dim=-1)
        return Rays(pose[:, :, 3], directions, view), known

    def known_image(self, view: int) -> Tensor | None:
        """Whether the lens has a direction for each pixel of one image, [H, W] bool; None where it has for all."""
        if self.table is None or self.table.valid.all():
            return None
        width, height = self.size(view)
        return self.table.at(*self._pixels(view, 0, width * height))[1].unflatten(0, (height, width))

    def image_rays(self, view: int, start: int = 0, end: int | None = None) -> Rays:
        """Rays of pixels start..end of one image, row by row."""
        width, height = self.size(view)
        return self.rays(*self._pixels(view, start, width * height if end is None else end))

    def _pixels(self, view: int, start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        pixel, width = torch.arange(start, end, device=self.focal.device), self.size(view)[0]
        return torch.full_like(pixel, view), pixel % width, pixel // width

    def project(self, points: Tensor, view: int) -> tuple[Tensor, Tensor]:
        """Pixel coordinates [P, 2] and depth [P] of world points [P, 3] in one view: along -z, or the distance where
        the lens may see beyond 90 degrees from its axis. NaN where the lens does not see a point."""
        pose = self.camera_to_world[view]
        x, y, z = pose[:, :3].T @ (points - pose[:, 3]).T  # camera axes, each in one piece of memory
        if self.lenses:
            depth = (x * x + y * y + z * z).sqrt() if self.lenses[view].is_wide else -z
            return self.lenses[view].project(torch.stack([x, -y, -z], dim=-1)), depth
        depth = -z
        return (torch.stack([x, -y]) / depth * self.focal[view][:, None] + self.center[view][:, None]).T, depth

    def z_per_distance(self, view: int, directions: Tensor) -> Tensor:
        """Factor [R] that turns distance along each ray into depth along the view's -z axis; 1 of panoramas."""
        if self.lenses and self.lenses[view].is_panorama:
            return torch.ones_like(directions[:, 0])
        return -(directions @ self.camera_to_world[view, :, 2])


def _table(lenses: list[Lens], known: LensMaps) -> DirectionTable:
    distinct = list(dict.fromkeys(lenses))
    spacings = SPACINGS[:1] if len(distinct) == 1 else SPACINGS
    sums = {n: sum(math.prod(lens.nodes(n)) for lens in distinct) for n in spacings}  # nodes of all lenses
    spacing = next((n for n, count in sums.items() if count <= MAX_DIRECTIONS or len(sums) == 1), 0)
    if not spacing:
        what = f"the {len(distinct)} lenses with distortion have {sums[1]} pixels together"
        raise SceneError(f"{what}; raise data.downscale, or {UNDISTORT}")
    nodes = {lens: lens.nodes(spacing) for lens in distinct}  # across, down
    ends = torch.tensor([across * down for across, down in nodes.values()]).cumsum(0).tolist()
    first = dict(zip(distinct, [0, *ends], strict=False))
    for lens in tqdm([lens for lens in distinct if (lens, spacing) not in known], "lenses", leave=False, delay=2):
        known[lens, spacing] = lens.direction_map(spacing)
    maps = [known[lens, spacing] for lens in distinct]
    step = [
        [(side - 1) / max(n - 1, 1) or 1.0 for side, n in zip((lens.width, lens.height), nodes[lens], strict=True)]
        for lens in lenses
    ]
    directions, valid = (torch.cat(parts) for parts in zip(*maps, strict=True))
    return DirectionTable(
        directions, valid, torch.tensor([first[lens] for lens in lenses]),
        torch.tensor([nodes[lens][0] for lens in lenses]), torch.tensor(step), spacing,
    )  # fmt: skip


def _each_tensor(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return replace(thing, **{name: change(x) for name, x in values.items() if isinstance(x, Tensor)})
