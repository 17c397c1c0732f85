# SPDX-License-Identifier: Apache-2.0
"""Unbounded space: intervals that grow with the distance, through an occupancy grid of contracted space.

The cube `box` is sampled as it is; all that lies outside of it, however far, is contracted into a shell as thick as
half the cube (`nerfkit.contraction`), and the grid's cells cover both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nerfkit.config import SamplingConfig
from nerfkit.contraction import contract, exponential_ladder, uncontract
from nerfkit.data.cameras.cameras import Rays
from nerfkit.errors import ConfigError
from nerfkit.model.sampling import OccupancySampler
from nerfkit.ops import march

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

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        return march(
            rays.origins, rays.directions, self.occupancy, self.box, None,
            jitter=jitter, capacity=capacity, ladder=self.ladder,
        )  # fmt: skip

    def points_in(self, unit: Tensor) -> Tensor:
        return uncontract(4 * unit - 2, self.box)

    def unit_of(self, positions: Tensor) -> Tensor:
        return (contract(positions, self.box) + 2) / 4
