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
from nerfkit.ops.packed import exclusive_cumsum, fill_rows, fit, offsets_from_counts, ray_indices

MARCHED = 2.0  # samples in occupied cells that there is room for, to one that light reaches

DensityFn = Callable[[Tensor], Tensor]  # world positions [N, 3] -> density [N]


class Samples(NamedTuple):
    """N samples of R rays, ordered by ray and near to far."""

    positions: Tensor  # [N, 3] middle of each interval, world space
    t_starts: Tensor  # [N]
    t_ends: Tensor  # [N]
    ray_index: Tensor  # [N] int64
    ray_offsets: Tensor  # [R+1] int64; with a capacity [R+1+M], see `packed.fill_rows`
    whole: Tensor  # [R] bool, rays with all their samples


class Sampler(nn.Module):
    """Marches rays through an occupancy grid that follows the density field."""

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__()
        self.config = config
        side = config.occupancy_resolution
        self.register_buffer("box", box.clone())  # [2, 3]
        self.register_buffer("opacity", torch.zeros(side, side, side))  # of one interval, decaying maximum
        self.register_buffer("occupancy", torch.ones(side, side, side, dtype=torch.bool))

    def forward(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        """Samples that light reaches: in occupied cells, and not behind what is already opaque.

        `jitter` [R] in [0, 1] shifts the samples of a ray, in steps. With a `capacity` there are that many samples and
        nothing waits for a GPU: rays that have no room are not whole and get no samples, and rows that no ray needs go
        to fillers: short further rays, of samples of no length. Not differentiable.
        """
        config = self.config
        marched = None if capacity is None else int(capacity * MARCHED)
        with torch.no_grad():
            t_starts, t_ends, ray_offsets = march(
                *rays, self.occupancy, self.box, config.step, config.near, config.far, jitter, marched
            )
            samples = place(rays, t_starts, t_ends, ray_offsets, marched)
            if config.min_transmittance > 0:
                thickness = (density_fn(samples.positions) * (t_ends - t_starts)).clamp(max=MAX_THICKNESS)  # [N]
                samples = self._reached(rays, samples, thickness, capacity)
        return samples

    def _reached(self, rays: Rays, samples: Samples, thickness: Tensor, capacity: int | None) -> Samples:
        """The samples of each ray up to where no light comes, from the optical thickness [N] of all."""
        before = exclusive_cumsum(thickness, samples.ray_offsets, samples.ray_index)  # [N]
        n_rays, row = rays.origins.shape[0], torch.arange(thickness.shape[0], device=thickness.device)
        is_filler = row >= samples.ray_offsets[n_rays]
        kept = (torch.exp(-before) > self.config.min_transmittance) & ~is_filler  # [N]
        counts = samples.ray_offsets.new_zeros(n_rays).index_add(0, samples.ray_index, kept.long())  # [R]
        all_offsets = offsets_from_counts(counts)
        n_rows = int(all_offsets[-1]) if capacity is None else capacity
        ray_offsets, fits = fit(all_offsets, n_rows)
        if capacity is not None:
            ray_offsets = fill_rows(ray_offsets, capacity)
        ray_index = ray_indices(ray_offsets, n_rows)  # [n_rows]
        real = ray_index < n_rays
        row = torch.arange(n_rows, device=kept.device) - ray_offsets[ray_index] + samples.ray_offsets[ray_index]
        row = torch.where(real, row, 0)
        t_starts, t_ends = (torch.where(real, t[row], 0) for t in (samples.t_starts, samples.t_ends))
        return _samples(rays, t_starts, t_ends, ray_offsets, ray_index, samples.whole & fits)

    @torch.no_grad()
    def update(self, density_fn: DensityFn, step: int) -> None:
        """Let the occupancy grid follow the density field: every `occupancy_every` training steps.

        During the warm-up all cells are looked at, later a quarter of them at random and half as many occupied ones.
        Each look is at a random point of the cell; a cell's value falls by 10 % an update unless a look renews it.
        Nothing waits for a GPU.
        """
        if step % self.config.occupancy_every:
            return
        cells = self._all_cells() if step < self.config.occupancy_warmup else self._some_cells()
        opacity = self.opacity.flatten()
        opacity *= 0.9
        for chunk in cells.split(2**18):
            points = self._random_points(chunk)
            seen = -torch.expm1(-density_fn(points) * self.config.step)
            opacity.scatter_reduce_(0, chunk, seen, "amax")
        threshold = opacity.mean().clamp(max=self.config.occupancy_threshold)
        self.occupancy.copy_((opacity > threshold).view_as(self.occupancy))

    def _all_cells(self) -> Tensor:
        return torch.arange(self.opacity.numel(), device=self.opacity.device)

    def _some_cells(self) -> Tensor:
        """A quarter as many cells as there are, at random, and half of that of the occupied ones."""
        device, n_cells = self.opacity.device, self.opacity.numel()
        anywhere = torch.randint(n_cells, (n_cells // 4,), device=device)
        upto = self.occupancy.flatten().cumsum(0)  # [n_cells] occupied cells, this one included
        chosen = (torch.rand(n_cells // 8, device=device) * upto[-1]).long()
        occupied = torch.searchsorted(upto, chosen, right=True).clamp(max=n_cells - 1)
        return torch.cat([anywhere, occupied])

    def _random_points(self, cells: Tensor) -> Tensor:
        """A random world position [M, 3] in each of the `cells` [M]."""
        side = self.config.occupancy_resolution
        corner = torch.stack([cells // side**2, cells // side % side, cells % side], dim=-1)  # [M, 3]
        unit = (corner + torch.rand(corner.shape, device=cells.device)) / side
        return self.box[0] + unit * (self.box[1] - self.box[0])


def place(rays: Rays, t_starts: Tensor, t_ends: Tensor, ray_offsets: Tensor, capacity: int | None) -> Samples:
    """Samples from what `march` returns."""
    if capacity is None:
        whole = torch.ones_like(ray_offsets[1:], dtype=torch.bool)
    else:
        ray_offsets, whole = fit(ray_offsets, capacity)
        ray_offsets = fill_rows(ray_offsets, capacity)
    ray_index = ray_indices(ray_offsets, t_starts.shape[0])
    return _samples(rays, t_starts, t_ends, ray_offsets, ray_index, whole)


def _samples(rays: Rays, t_starts, t_ends, ray_offsets, ray_index, whole) -> Samples:
    ray_index = ray_index.clamp(max=rays.origins.shape[0] - 1)  # [N] fillers lie on the last ray
    middles = (t_starts + t_ends) / 2
    positions = rays.origins[ray_index] + rays.directions[ray_index] * middles[:, None]
    return Samples(positions, t_starts, t_ends, ray_index, ray_offsets, whole)
