# SPDX-License-Identifier: Apache-2.0
"""Rays + occupancy grid -> packed samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nerfkit.cameras import Rays
from nerfkit.config import SamplingConfig
from nerfkit.ops import march
from nerfkit.ops.composite import MAX_THICKNESS
from nerfkit.ops.packed import exclusive_cumsum, offsets_from_counts, ray_indices

DensityFn = Callable[[Tensor], Tensor]  # world positions [N, 3] -> density [N]


class Samples(NamedTuple):
    """N samples of R rays, ordered by ray and near to far."""

    positions: Tensor  # [N, 3] middle of each interval, world space
    directions: Tensor  # [N, 3] of the sample's ray
    t_starts: Tensor  # [N]
    t_ends: Tensor  # [N]
    ray_offsets: Tensor  # [R+1] int64


class Sampler(nn.Module):
    """Marches rays through an occupancy grid that follows the density field."""

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__()
        self.config = config
        side = config.occupancy_resolution
        self.register_buffer("box", box.clone())  # [2, 3]
        self.register_buffer("opacity", torch.zeros(side, side, side))  # of one interval, decaying maximum
        self.register_buffer("occupancy", torch.ones(side, side, side, dtype=torch.bool))

    def forward(self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None) -> Samples:
        """Samples that light reaches: in occupied cells, and not behind what is already opaque.

        `jitter` [R] in [0, 1] shifts the samples of a ray, in steps. Not differentiable.
        """
        with torch.no_grad():
            t_starts, t_ends, ray_offsets = march(
                *rays, self.occupancy, self.box, self.config.step, self.config.near, self.config.far, jitter
            )
            ray_index = ray_indices(ray_offsets, t_starts.shape[0])  # [N]
            positions = place(rays, ray_index, t_starts, t_ends)
            if self.config.min_transmittance > 0:
                thickness = (density_fn(positions) * (t_ends - t_starts)).clamp(max=MAX_THICKNESS)  # [N]
                reached = torch.exp(-exclusive_cumsum(thickness, ray_offsets, ray_index))
                kept = reached > self.config.min_transmittance  # [N]
                counts = torch.zeros_like(ray_offsets[1:]).index_add(0, ray_index, kept.long())
                ray_offsets = offsets_from_counts(counts)
                t_starts, t_ends, ray_index, positions = (x[kept] for x in (t_starts, t_ends, ray_index, positions))
        return Samples(positions, rays.directions[ray_index], t_starts, t_ends, ray_offsets)

    @torch.no_grad()
    def update(self, density_fn: DensityFn, step: int) -> None:
        """Let the occupancy grid follow the density field: every `occupancy_every` training steps.

        During the warm-up all cells are looked at, later a quarter of them at random and as many of the occupied ones.
        Each look is at a random point of the cell; a cell's value falls by 10 % an update unless a look renews it.
        """
        if step % self.config.occupancy_every:
            return
        device, n_cells = self.opacity.device, self.opacity.numel()
        if step < self.config.occupancy_warmup:
            cells = torch.arange(n_cells, device=device)
        else:
            anywhere = torch.randint(n_cells, (n_cells // 4,), device=device)
            occupied = self.occupancy.flatten().nonzero()[:, 0]
            if len(occupied) > n_cells // 4:
                occupied = occupied[torch.randint(len(occupied), (n_cells // 4,), device=device)]
            cells = torch.cat([anywhere, occupied]).unique()
        opacity = self.opacity.flatten()
        opacity *= 0.9
        for chunk in cells.split(2**18):
            points = self._random_points(chunk)
            opacity[chunk] = torch.maximum(opacity[chunk], -torch.expm1(-density_fn(points) * self.config.step))
        threshold = opacity.mean().clamp(max=self.config.occupancy_threshold)
        self.occupancy.copy_((opacity > threshold).view_as(self.occupancy))

    def _random_points(self, cells: Tensor) -> Tensor:
        """A random world position [M, 3] in each of the `cells` [M]."""
        side = self.config.occupancy_resolution
        corner = torch.stack([cells // side**2, cells // side % side, cells % side], dim=-1)  # [M, 3]
        unit = (corner + torch.rand(corner.shape, device=cells.device)) / side
        return self.box[0] + unit * (self.box[1] - self.box[0])


def place(rays: Rays, ray_index: Tensor, t_starts: Tensor, t_ends: Tensor) -> Tensor:
    """World positions [N, 3] of the intervals' middles."""
    middles = (t_starts + t_ends) / 2
    return rays.origins[ray_index] + rays.directions[ray_index] * middles[:, None]
