# SPDX-License-Identifier: Apache-2.0
"""What is inside of a surface, in [0, 1] at points: from the density, or fused from depths that cameras see."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.export.grid import Grid, occupied_blocks
from nerfkit.export.views import Seen, View, Views
from nerfkit.model.base import Model

CHUNK = 2**18  # points whose density is evaluated at once
TRUNCATION = 4.0  # cells
MIN_WEIGHT = 0.5  # of all views together, for a corner to be known
MOST_LOADED = 256  # views in memory


class DensityField:
    """The opacity of a cell, 1 - exp(-density * cell), bent so that `level` becomes 0.5."""

    def __init__(self, model: Model, level: float, device: torch.device):
        self.model, self.device = model, device
        self.optical = -math.log1p(-level)  # density * cell at the level

    def blocks(self, grid: Grid) -> np.ndarray:
        """Blocks [N, 3] in which there may be a surface."""
        return occupied_blocks(grid, self.model)

    @torch.no_grad()
    def inside(self, grid: Grid, blocks: np.ndarray) -> list[np.ndarray]:
        """Values [X, Y, Z] at the corners of blocks [B, 3], 0.5 on the surface; NaN where nothing is known."""
        points, _ = grid.points(blocks, self.device)
        density = torch.cat([self.model.density(part).float() for part in points.split(CHUNK)])
        # Near the level this is as straight as the logarithm of the density, which is what a network gives.
        values = density / (density + self.optical / grid.cell)
        return grid.split(blocks, values.nan_to_num(nan=1.0))  # inf / inf


class DepthField:
    """A truncated signed distance, the mean over views of how far a point lies in front of their median depth."""

    def __init__(self, views: Views, device: torch.device):
        self.views, self.device = views, device
        self._loaded: dict[int, View] = {}

    @torch.no_grad()
    def blocks(self, grid: Grid) -> np.ndarray:
        """Blocks [N, 3] that the truncated distance around a depth of some view reaches into."""
        found = np.zeros(grid.n_blocks, dtype=bool)
        for view in self.views:
            rays, depth = view.camera.image_rays(0), view.depth.flatten()
            rows = (depth > 0) & (view.opacity.flatten() > 0)
            points = rays.origins[rows] + rays.directions[rows] * depth[rows, None]
            grid.mark(found, points.double().cpu().numpy(), TRUNCATION * grid.cell)
        return np.argwhere(found)

    @torch.no_grad()
    def inside(self, grid: Grid, blocks: np.ndarray) -> list[np.ndarray]:
        """Values [X, Y, Z] at the corners of blocks [B, 3], 0.5 on the surface; NaN where nothing is known."""
        points, block = grid.points(blocks, self.device)  # [P, 3], [P]
        columns = points.T.contiguous()
        low, high = grid.bounds(blocks)
        centers = torch.tensor((low + high) / 2, dtype=torch.float32, device=self.device)  # [B, 3]
        radius = float(np.linalg.norm(high[0] - low[0]) / 2)
        total, weights = (torch.zeros(len(points), device=self.device) for _ in range(2))
        for number in range(len(self.views)):
            near = may_see(self.views.cameras[number], centers, radius)[block].nonzero()[:, 0]
            if len(near):
                here = columns.index_select(1, near).T
                distance, weight = self._distances(self._view(number), here, TRUNCATION * grid.cell)
                total.index_add_(0, near, weight * distance)
                weights.index_add_(0, near, weight)
        values = torch.where(weights >= MIN_WEIGHT, 0.5 - 0.5 * total / weights.clamp(min=1e-9), math.nan)
        return grid.split(blocks, values)

    def _distances(self, view: View, points: Tensor, truncation: float) -> tuple[Tensor, Tensor]:
        """How far points [P, 3] lie before what a view sees, in truncations, and their weights.

        1 where it sees nothing: the ray is free.
        """
        seen = view.see(points)
        depth, opacity = view.depth_at(seen)
        # Between pixels depth changes by a truncation at most, or it is not interpolated: farther points stay clamped.
        near = ((depth - seen.distance).abs() < 2 * truncation).nonzero()[:, 0]
        depth[near] = view.smooth_depth_at(Seen(*(x[near] for x in seen)), truncation)
        ahead = torch.where(depth > 0, (depth - seen.distance) / truncation, 1)
        weight = torch.where(depth > 0, opacity, 1 - opacity) * (seen.inside & (ahead > -1))
        return ahead.clamp(-1, 1), weight

    def _view(self, number: int) -> View:
        if number in self._loaded:
            return self._loaded[number]
        view = self.views[number]
        if len(self._loaded) < MOST_LOADED:  # the first ones stay: each pass is over all, in one order
            self._loaded[number] = view
        return view


def may_see(camera: Cameras, centers: Tensor, radius: float) -> Tensor:
    """Whether balls around centers [B, 3] may be within the image of one camera, [B] bool; with distortion, all may."""
    if camera.lenses:
        return torch.ones(len(centers), dtype=torch.bool, device=centers.device)
    offset = (centers - camera.positions[0]) @ camera.camera_to_world[0, :, :3]  # [B, 3] camera axes
    depth = -offset[:, 2]
    flipped = offset[:, :2] * torch.tensor([1.0, -1.0], device=centers.device)
    pixel = flipped / depth[:, None] * camera.focal[0] + camera.center[0]  # [B, 2]
    reach = 1.5 * radius * camera.focal[0].max() / (depth - radius)  # [B]
    size = torch.tensor(camera.size(0), device=centers.device)
    within = ((pixel > -reach[:, None]) & (pixel < size + reach[:, None])).all(-1)
    return torch.where(depth <= 2 * radius, depth >= -radius, within)
