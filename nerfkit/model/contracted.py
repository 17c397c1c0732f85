# SPDX-License-Identifier: Apache-2.0
"""Unbounded space: intervals that grow with the distance, through an occupancy grid of contracted space.

The cube `box` is sampled as it is; all that lies outside of it, however far, is contracted into a shell as thick as
half the cube (`nerfkit.contraction`), and the grid's cells cover both. Cells that no training camera sees are never
occupied: nothing could tell what is in them, and floaters would grow there. Nor are those that no training ray has
reached for a while, such as all that lies behind a wall: it costs samples, and nobody sees it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.config import SamplingConfig
from nerfkit.contraction import contract, exponential_ladder, uncontract
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.errors import ConfigError
from nerfkit.model.sampling import DensityFn, OccupancySampler, Samples
from nerfkit.ops import march
from nerfkit.parallel import Processes

BLOCK = 2  # cells a side of the blocks that are projected into the cameras, and that rays reach
REACHED_UPDATES = 32  # of the occupancy grid, after which a block that no ray has reached is empty
MAX_POINTS = 2**22  # of blocks, projected at a time
MAX_CANDIDATES = 2**25  # intervals in occupied cells, about, that the rays of an image have at a time


class ContractedSampler(OccupancySampler):
    """Marches rays in steps of max(step, cone * distance) from near to far."""

    drawn_anywhere, drawn_occupied = 16, 16  # a grid of unbounded space has many cells, most of them far away

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__(config, box)
        try:
            ladder = exponential_ladder(config.near, config.far, config.step, config.cone)
        except ValueError as error:
            raise ConfigError(f"sampling.near, far, step, cone: {error}") from None
        self.register_buffer("ladder", ladder.to(torch.float32), persistent=False)  # [L] ends of intervals
        side = config.occupancy_resolution
        self.register_buffer("seen", torch.ones(side, side, side, dtype=torch.bool))  # by a training camera
        self.empties = True  # blocks that no ray reaches
        blocks = (-(-side // BLOCK),) * 3
        self.register_buffer("unreached", torch.zeros(blocks, dtype=torch.uint8))  # updates since a ray was in a block

    @property
    def max_samples_per_ray(self) -> float:
        """Intervals from near to far, all of whose cells are occupied."""
        return float(len(self.ladder) - 2)

    @property
    def max_rays_rendered(self) -> int:
        """Rays of an image at a time: many in a trained scene, few in an untrained one, all of whose cells count."""
        passed = self.occupancy.float().mean().item() * len(self.ladder)  # occupied cells on a ray, about
        return int(min(max(MAX_CANDIDATES / max(passed, 1), 2**10), 2**18))

    def sees(self, rays: Rays) -> Tensor:
        """All rays [R]: there is no outside."""
        return torch.ones_like(rays.origins[:, 0], dtype=torch.bool)

    def stats(self) -> dict[str, float]:
        """Shares of the cells that are occupied, and that a training camera sees; of blocks that rays reach."""
        reached = (self.unreached < REACHED_UPDATES).float().mean()
        return super().stats() | {
            "seen": round(self.seen.float().mean().item(), 4),
            "reached": round(reached.item(), 4),
        }

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        return march(
            rays.origins, rays.directions, self.occupancy, self.box, None,
            jitter=jitter, capacity=capacity, ladder=self.ladder,
        )  # fmt: skip

    def forward(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        samples = super().forward(rays, density_fn, jitter, capacity)
        if self.training and torch.is_grad_enabled():  # not where a view is scored, or its pose is looked for
            self._note_reached(samples.positions.detach())
        return samples

    def _note_reached(self, positions: Tensor) -> None:
        """Note the blocks of samples at world positions [N, 3]."""
        side = self.unreached.shape[0]
        block = ((contract(positions, self.box) + 2) * (side / 4)).long().clamp_(0, side - 1)  # [N, 3]
        index = (block[:, 0] * side + block[:, 1]) * side + block[:, 2]
        self.unreached.view(-1).index_fill_(0, index, 0)

    @torch.no_grad()
    def update(self, density_fn: DensityFn, step: int) -> None:
        if self.empties and step % self.config.occupancy_every == 0 and step >= self.config.occupancy_warmup:
            torch.where(self.unreached < 255, self.unreached + 1, self.unreached, out=self.unreached)
        super().update(density_fn, step)

    def points_in(self, unit: Tensor) -> Tensor:
        return uncontract(4 * unit - 2, self.box)

    @torch.no_grad()
    def observe(self, cameras: Cameras, all_at_once: bool = True) -> None:
        """Note which cells a camera sees at least `near` away; all others stay empty. Unless all images are drawn from
        `all_at_once`, no block is emptied for want of rays: what is seen in some images alone has none for a while."""
        self.seen.copy_(self._seen_cells(cameras))
        self.occupancy &= self.seen
        self.empties = all_at_once

    def agree(self, processes: Processes) -> None:
        """What the rays of one of several processes reach is reached for all."""
        if processes.size > 1:
            self.unreached.copy_(255 - processes.most(255 - self.unreached))

    def _mean_opacity(self) -> Tensor:
        # Cells that are never occupied do not count, either.
        return (self.opacity * self.seen).sum() / self.seen.sum().clamp(min=1)

    def _set_occupancy(self, threshold: Tensor) -> None:
        super()._set_occupancy(threshold)
        self.occupancy &= self.seen
        self.occupancy &= self._near_blocks(self.unreached < REACHED_UPDATES)

    def _near_blocks(self, blocks: Tensor) -> Tensor:
        """Cells [N, N, N] bool in or beside one of the `blocks` [B, B, B] bool."""
        side = self.config.occupancy_resolution
        grown = F.max_pool3d(blocks[None, None].to(torch.float32), 3, stride=1, padding=1)[0, 0] > 0
        for axis in range(3):
            grown = grown.repeat_interleave(BLOCK, dim=axis)
        return grown[:side, :side, :side]

    def _seen_cells(self, cameras: Cameras) -> Tensor:
        """Cells [N, N, N] bool in or beside a block whose middle some camera sees."""
        n_blocks = self.unreached.shape[0]
        middles = (torch.arange(n_blocks, device=self.box.device) + 0.5) * BLOCK / self.config.occupancy_resolution
        unit = torch.cartesian_prod(middles, middles, middles)  # [n_blocks^3, 3]
        seen = torch.cat([self._seen(self.points_in(part), cameras) for part in unit.split(MAX_POINTS)])
        return self._near_blocks(seen.view(n_blocks, n_blocks, n_blocks))

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
