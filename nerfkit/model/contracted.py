# SPDX-License-Identifier: Apache-2.0
"""Unbounded space: intervals that grow with the distance, through an occupancy grid of contracted space.

The cube `box` is sampled as it is; all that lies outside of it, however far, is contracted into a shell as thick as
half the cube (`nerfkit.contraction`), and the grid's cells cover both. Cells that no training camera sees are never
occupied: nothing could tell what is in them, and floaters would grow there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.config import SamplingConfig
from nerfkit.contraction import exponential_ladder, uncontract
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.model.sampling import OccupancySampler
from nerfkit.ops import march

BLOCK = 2  # cells a side of the blocks that are projected into the cameras
MAX_POINTS = 2**22  # of blocks, projected at a time


class ContractedSampler(OccupancySampler):
    """Marches rays in steps of max(step, cone * distance) from near to far."""

    drawn_anywhere, drawn_occupied = 16, 16  # a grid of unbounded space has many cells, most of them far away

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__(config, box)
        ladder = exponential_ladder(config.near, config.far, config.step, config.cone)
        self.register_buffer("ladder", ladder.to(torch.float32), persistent=False)  # [L] ends of intervals
        self.register_buffer("center", self.box.mean(0))  # [3] of the training cameras
        side = config.occupancy_resolution
        self.register_buffer("seen", torch.ones(side, side, side, dtype=torch.bool))  # by a training camera

    @property
    def max_samples_per_ray(self) -> float:
        """Intervals from near to far, all of whose cells are occupied."""
        return float(len(self.ladder) - 2)

    def sees(self, rays: Rays) -> Tensor:
        """All rays [R]: there is no outside."""
        return torch.ones_like(rays.origins[:, 0], dtype=torch.bool)

    def stats(self) -> dict[str, float]:
        """Shares of the cells that are occupied, and that a training camera sees."""
        return super().stats() | {"seen": round(self.seen.float().mean().item(), 4)}

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        return march(
            rays.origins, rays.directions, self.occupancy, self.box, None,
            jitter=jitter, capacity=capacity, ladder=self.ladder,
        )  # fmt: skip

    def points_in(self, unit: Tensor) -> Tensor:
        return uncontract(4 * unit - 2, self.box)

    def interval_at(self, points: Tensor) -> Tensor:
        """Length [M] of the intervals of a camera in the middle of all."""
        distance = torch.linalg.vector_norm(points - self.center, dim=-1)  # [M]
        return (distance * self.config.cone).clamp(min=self.config.step)

    @torch.no_grad()
    def observe(self, cameras: Cameras) -> None:
        """Note which cells a camera sees at least `near` away; all others stay empty."""
        self.center.copy_(cameras.positions.mean(0))
        self.seen.copy_(self._seen_cells(cameras))
        self.occupancy &= self.seen

    def _set_occupancy(self) -> None:
        # Cells that are never occupied do not count in the mean, either.
        mean = (self.opacity * self.seen).sum() / self.seen.sum().clamp(min=1)
        threshold = mean.clamp(max=self.config.occupancy_threshold)
        torch.gt(self.opacity, threshold, out=self.occupancy)
        self.occupancy &= self.seen

    def _seen_cells(self, cameras: Cameras) -> Tensor:
        """Cells [N, N, N] bool in or beside a block whose middle some camera sees."""
        side = self.config.occupancy_resolution
        n_blocks = -(-side // BLOCK)
        middles = (torch.arange(n_blocks, device=self.box.device) + 0.5) / n_blocks
        unit = torch.cartesian_prod(middles, middles, middles)  # [n_blocks^3, 3]
        seen = torch.cat([self._seen(self.points_in(part), cameras) for part in unit.split(MAX_POINTS)])
        blocks = seen.view(1, 1, n_blocks, n_blocks, n_blocks).float()
        grown = F.max_pool3d(blocks, 3, stride=1, padding=1)
        return F.interpolate(grown, size=(side, side, side), mode="nearest")[0, 0] > 0

    def _seen(self, points: Tensor, cameras: Cameras) -> Tensor:
        """Which points [P, 3] lie in an image of the cameras, and not nearer than `near`, bool [P]."""
        seen = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        for view, (width, height) in enumerate(cameras.sizes()):
            pixel, depth = cameras.project(points, view)  # [P, 2], [P]
            inside = (pixel >= 0).all(-1) & (pixel[:, 0] <= width) & (pixel[:, 1] <= height)
            distance = torch.linalg.vector_norm(points - cameras.positions[view], dim=-1)
            in_front = depth > 0 if not _is_wide(cameras, view) else torch.ones_like(inside)
            seen |= inside & in_front & (distance >= self.config.near)
        return seen


def _is_wide(cameras: Cameras, view: int) -> bool:
    """Whether a lens may see what is behind its camera."""
    return bool(cameras.lenses) and cameras.lenses[view].is_fisheye
