# SPDX-License-Identifier: Apache-2.0
"""Color, opacity and median depth as each training camera sees them, rendered once and kept on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.export.grid import Grid
from nerfkit.export.writing import Arrays, Work
from nerfkit.rendering.image_renderer import ImageRenderer, foretold

MOST_LOADED = 2**31  # bytes of views in memory
OPAQUE, SHOWN = 0.9, 2000  # opacity and number of the pixels of a view that say what it shows
NEAREST = 0.5  # of the radius of what is exported: a camera amid it looks at what is at least so far away


class Seen(NamedTuple):
    """What one view has at P points."""

    distance: Tensor  # [P] from the camera
    pixel: Tensor  # [P, 2] column and row, continuous; meaningless where not inside
    inside: Tensor  # [P] bool, within the image, in front of the camera, where the lens knows its directions


class View:
    """The images of one camera, and what they say about points."""

    def __init__(self, camera: Cameras, rgb: Tensor, opacity: Tensor, depth: Tensor):
        self.camera = camera  # one
        self.rgb, self.opacity, self.depth = rgb, opacity, depth  # [H, W, 3] uint8, [H, W], [H, W]; depth: 0 if none
        self.known = camera.known_image(0)  # [H, W] bool, or None

    def see(self, points: Tensor) -> Seen:
        pixel, z = self.camera.project(points, 0)
        column, row = pixel.unbind(-1)  # all by columns: sums and comparisons over a last axis of two or three are slow
        width, height = self.camera.size(0)
        inside = (z > 0) & (column >= 0) & (row >= 0) & (column < width) & (row < height)  # NaN is not
        x, y, z = (points - self.camera.positions[0]).unbind(-1)
        seen = Seen((x * x + y * y + z * z).sqrt(), pixel, inside)
        if self.known is not None:
            inside &= self.known.flatten()[self._pixel(seen)]
        return seen

    def _pixel(self, seen: Seen) -> Tensor:
        """The number [P] of the pixel that each point falls on, row by row; 0 where not inside."""
        column, row = seen.pixel.unbind(-1)
        return torch.where(seen.inside, row.long() * self.camera.size(0)[0] + column.long(), 0)

    def depth_at(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Median depth [P], 0 where there is none, and opacity [P] of the pixels that points fall on."""
        pixel = self._pixel(seen)
        return self.depth.flatten().index_select(0, pixel), self.opacity.flatten().index_select(0, pixel)

    def smooth_depth_at(self, seen: Seen, most: float) -> Tensor:
        """The depth [P] of `depth_at`, interpolated between four pixels where these differ by less than `most`."""
        corners, right, down = self._around(self.depth, seen)
        stacked = torch.stack(corners)
        smooth = ((stacked.amax(0) - stacked.amin(0)) < most) & (stacked.amin(0) > 0)
        return torch.where(smooth, _between(corners, right, down), self.depth_at(seen)[0])

    def color_at(self, seen: Seen) -> Tensor:
        """Color [P, 3] in [0, 1], interpolated between pixels."""
        corners, right, down = self._around(self.rgb, seen)
        return _between([corner.float() / 255 for corner in corners], right[:, None], down[:, None])

    def opacity_at(self, seen: Seen) -> Tensor:
        return _between(*self._around(self.opacity, seen))

    def _around(self, image: Tensor, seen: Seen) -> tuple[list[Tensor], Tensor, Tensor]:
        """The four pixels around points, the upper two first, and how far points are right of and below the first."""
        width, height = self.camera.size(0)
        place = torch.where(seen.inside[:, None], seen.pixel, 0) - 0.5
        x, y = place[:, 0].clamp(0, width - 1), place[:, 1].clamp(0, height - 1)
        columns = x.long(), (x.long() + 1).clamp(max=width - 1)
        rows = y.long(), (y.long() + 1).clamp(max=height - 1)
        return [image[row, column] for row in rows for column in columns], x - x.floor(), y - y.floor()


def _between(corners: list[Tensor], right: Tensor, down: Tensor) -> Tensor:
    above, below = torch.lerp(corners[0], corners[1], right), torch.lerp(corners[2], corners[3], right)
    return torch.lerp(above, below, down)


class Views:
    """All views of a split; for a mesh of a grid's cells, their images are no finer than its cells can use."""

    def __init__(self, image_of: ImageRenderer, cameras: Cameras, work: Work, grid: Grid | None, device: torch.device):
        self.image_of, self.work, self.device = image_of, work, device
        self._loaded, self._room = {}, MOST_LOADED
        singles = [cameras[[view]] for view in range(len(cameras))]
        if grid is not None:
            half = grid.cell * np.array(grid.cells) / 2
            eyes = cameras.positions.double().cpu().numpy()
            distances = np.linalg.norm(eyes - grid.origin - half, axis=1).clip(min=NEAREST * np.linalg.norm(half))
            singles = [sized(one, grid.cell / 2, far) for one, far in zip(singles, distances.tolist(), strict=True)]
        self.cameras = [one.to(device) for one in singles]

    def __len__(self) -> int:
        return len(self.cameras)

    def render(self) -> None:
        for view in foretold(tqdm(range(len(self)), desc="views", unit="view")):
            self._arrays(view)

    def _arrays(self, view: int) -> Arrays:
        return self.work.part(f"view_{view:05d}", lambda: self._rendered(view))

    def _rendered(self, view: int) -> Arrays:
        images = self.image_of(self.cameras[view], 0, ("rgb", "opacity", "median_depth"))
        return {
            "rgb": (images["rgb"] * 255 + 0.5).to(torch.uint8).cpu().numpy(),
            "opacity": images["opacity"].cpu().numpy(),
            "depth": images["depth_median_ray"].cpu().numpy(),
        }

    def __getitem__(self, view: int) -> View:
        if view in self._loaded:
            return self._loaded[view]
        values = {name: torch.from_numpy(values).to(self.device) for name, values in self._arrays(view).items()}
        loaded, size = View(self.cameras[view], **values), sum(value.nbytes for value in values.values())
        if size <= self._room:  # the first ones stay: each pass is over all, in one order
            self._loaded[view], self._room = loaded, self._room - size
        return loaded

    def shown(self) -> np.ndarray:
        """Positions [P, 3] at the median depth of some opaque pixels of every view."""
        found = []
        for view in self:
            pixels = ((view.depth > 0) & (view.opacity > OPAQUE)).nonzero()[:: view.depth.numel() // SHOWN + 1]
            row, column = pixels.unbind(-1)
            rays = view.camera.rays(torch.zeros_like(row), column, row)
            found.append((rays.origins + rays.directions * view.depth[row, column, None]).double().cpu().numpy())
        return np.concatenate(found)

    def __iter__(self) -> Iterator[View]:
        return (self[view] for view in range(len(self)))


def sized(camera: Cameras, finest: float, distance: float) -> Cameras:
    """One camera, its images shrunk until a pixel sees `finest` at a distance [both model units]."""
    footprint = distance / camera.focal[0].min().item()
    scale = min(1.0, footprint / finest) if finest > 0 else 1.0
    width, height = (max(1, round(scale * side)) for side in camera.size(0))
    return camera if scale == 1 else camera.resized(width, height)
