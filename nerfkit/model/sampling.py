# SPDX-License-Identifier: Apache-2.0
"""Rays + occupancy grid -> packed samples, in a box; see `nerfkit.model.contracted` for unbounded space."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.model.occupancy import DensityFn, OccupancyGrid
from nerfkit.ops import compact_samples, count_visible, march
from nerfkit.ops.march import box_span
from nerfkit.ops.packed import offsets_from_counts, pad_offsets, truncate_offsets
from nerfkit.parallel import Processes

FIRST_PASS_SAMPLES = 24  # of a ray; most rays terminate within them
TWO_PASS_THRESHOLD = 2**18  # samples; for fewer, a second pass costs more than it saves
MAX_ROWS = 2**23  # whose density is evaluated at a time, in two passes


class Marched(NamedTuple):
    """M samples of R rays in occupied cells, visible or not."""

    rays: Rays
    t_starts: Tensor  # [M]
    t_ends: Tensor  # [M]
    ray_offsets: Tensor  # [R+1] int64


class Chosen(NamedTuple):
    """Those of the marched samples that are rendered."""

    t_starts: Tensor  # [K]; with a capacity, the rows behind the last ray's are of nobody
    t_ends: Tensor  # [K]
    ray_offsets: Tensor  # [R+1] int64


class Samples(NamedTuple):
    """N samples of R rays, ordered by ray and near to far."""

    positions: Tensor  # [N, 3] midpoint of each interval, world space
    t_starts: Tensor  # [N]
    t_ends: Tensor  # [N]
    ray_index: Tensor  # [N] int64
    ray_offsets: Tensor  # [R+1] int64; with a capacity [R+1+M], see `packed.pad_offsets`
    ray_complete: Tensor  # [R] bool, rays within the capacity


class RaySampler(Protocol):
    """The interface of samplers, which are torch modules: their buffers are saved with the model."""

    ops: tuple[str, ...]  # of nerfkit, that it calls
    max_samples_per_ray: float  # upper bound: the longest ray, with all cells occupied

    def __call__(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        """Samples of `rays`, whose positions are differentiable in the rays; see `BoxSampler.forward`."""

    def observe(self, cameras: Cameras, all_at_once: bool = True) -> None:
        """The cameras that are trained; called once. `all_at_once`: each step may draw from any of them."""

    def agree(self, processes: Processes) -> None:
        """Make equal what the own rays of several processes have changed; called before `update`."""

    def update(self, density_fn: DensityFn, step: int) -> None:
        """Update from the density field; called before each training step."""

    def sees(self, rays: Rays) -> Tensor:
        """Which rays [R] can have samples, bool."""

    def stats(self) -> dict[str, float]:
        """Values to log, by name."""


class OccupancySampler(OccupancyGrid):
    """Marches rays through an occupancy grid; in which intervals, a sampler that derives from it says."""

    ops = ("march", "count_visible", "compact_samples")
    max_rays_rendered = 2**20  # at a time

    @abstractmethod
    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Intervals in occupied cells, and ray_offsets, as of `nerfkit.ops.march`."""

    def forward(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        """Visible samples: in occupied cells, until the ray's transmittance falls to `min_transmittance`, but for those
        whose opacity is below `threshold`.

        `jitter` [R] in [0, 1] shifts the samples of a ray, in steps. With a `capacity` there are that many samples and
        nothing synchronizes with the GPU: rays beyond the capacity are not complete and get no samples, and unused
        rows belong to padding rays, whose samples have zero length. Positions are differentiable in the rays'
        origins and directions; distances along the ray are constants.
        """
        march_capacity = None if capacity is None else int(capacity * self.config.candidates_per_sample)
        with torch.no_grad():
            t_starts, t_ends, source_offsets = self.march(rays, jitter, march_capacity)
            n_rows = t_starts.shape[0]
            ray_complete = torch.ones_like(source_offsets[1:], dtype=torch.bool)  # [R]
            if capacity is not None:
                source_offsets, ray_complete = truncate_offsets(source_offsets, n_rows)
            marched = Marched(rays, t_starts, t_ends, source_offsets)
            in_two_passes = capacity is None and n_rows >= TWO_PASS_THRESHOLD
            density = (self._density_in_two_passes if in_two_passes else self._density)(marched, density_fn)  # [M]
            counts = self._count_visible(marched, density)
            t_starts, t_ends, source_offsets = self.chosen(marched, density, counts, capacity is None)
            ray_offsets = source_offsets
            n_rows = len(t_starts) if capacity is None else capacity
            if capacity is not None:
                ray_offsets, fits = truncate_offsets(ray_offsets, n_rows)
                ray_complete = ray_complete & fits
            compacted = compact_samples(
                rays.origins, rays.directions, t_starts, t_ends, source_offsets, ray_offsets, n_rows
            )
            if capacity is not None:
                ray_offsets = pad_offsets(ray_offsets, capacity)
        positions, t_starts, t_ends, ray_index = compacted
        if self.training and torch.is_grad_enabled():  # not where a view is scored, or its pose is looked for
            self._note_reached(positions, t_ends > t_starts)
        if torch.is_grad_enabled() and (rays.origins.requires_grad or rays.directions.requires_grad):
            positions = _with_gradients(positions, rays, t_starts, t_ends, ray_index)
        return Samples(positions, t_starts, t_ends, ray_index, ray_offsets, ray_complete)

    def chosen(self, marched: Marched, density: Tensor, counts: Tensor, waits: bool) -> Chosen:
        """Of the marched samples, with their `density` [M] and how many of each ray are visible [R], those to render:
        visible ones but for those of hardly any opacity, a good part of all. `waits`: this may wait for the GPU."""
        if waits:
            return self._chosen_of_visible(marched, density, counts)
        rays, t_starts, t_ends, ray_offsets = marched
        n_rows = len(t_starts)
        *_, ray_index = compact_samples(*rays[:2], t_starts, t_ends, ray_offsets, ray_offsets, n_rows)  # [M]
        rows = torch.arange(n_rows, device=ray_index.device)
        visible = rows < (ray_offsets[:-1] + counts)[ray_index]  # [M]
        kept = visible & self._counts(density, t_starts, t_ends)
        up_to = offsets_from_counts(kept)  # [M+1] kept before each row
        target = torch.where(kept, up_to[:-1], n_rows)  # the row behind all others takes what is not kept
        t_starts, t_ends = (t.new_zeros(n_rows + 1).scatter(0, target, t)[:-1] for t in (t_starts, t_ends))
        return Chosen(t_starts, t_ends, up_to[ray_offsets])

    def _chosen_of_visible(self, marched: Marched, density: Tensor, counts: Tensor) -> Chosen:
        """The same, by way of the visible samples alone, a small part of all that were marched."""
        rays, t_starts, t_ends, source_offsets = marched
        ray_offsets = offsets_from_counts(counts)
        n_rows = int(ray_offsets[-1])
        _, t_starts, t_ends, ray_index = compact_samples(
            *rays[:2], t_starts, t_ends, source_offsets, ray_offsets, n_rows
        )
        shift = source_offsets[:-1] - ray_offsets[:-1]  # [R]
        density = density[torch.arange(n_rows, device=shift.device) + shift[ray_index]]
        kept = self._counts(density, t_starts, t_ends)
        return Chosen(t_starts[kept], t_ends[kept], offsets_from_counts(kept)[ray_offsets])

    def _counts(self, density: Tensor, t_starts: Tensor, t_ends: Tensor) -> Tensor:
        """Which intervals [M] have an opacity that counts, bool; NaN does, for the loss has to show it."""
        return ~(-torch.expm1(-density * (t_ends - t_starts)) < self.threshold)

    def _count_visible(self, marched: Marched, density: Tensor) -> Tensor:
        """Visible samples [R] of each ray, from the density [M] of all."""
        _, t_starts, t_ends, ray_offsets = marched
        return count_visible(density, t_starts, t_ends, ray_offsets, self.config.min_transmittance)

    def _density(self, marched: Marched, density_fn: DensityFn) -> Tensor:
        rays, t_starts, t_ends, ray_offsets = marched
        n_rows = t_starts.shape[0]
        return density_fn(
            compact_samples(rays.origins, rays.directions, t_starts, t_ends, ray_offsets, ray_offsets, n_rows)[0]
        )

    def _density_in_two_passes(self, marched: Marched, density_fn: DensityFn) -> Tensor:
        """Density [M] of the first samples of each ray, then of the others where those leave the ray visible; else 0.

        The visible samples are the same as in one pass, if `density_fn` does not depend on the batch.
        """
        _, t_starts, _, ray_offsets = marched
        density = torch.zeros_like(t_starts)
        counts = ray_offsets.diff()  # [R]
        first = counts.clamp(max=FIRST_PASS_SAMPLES)
        self._evaluate_density(marched, density_fn, 0, first, density)
        passes = self._count_visible(marched, density) > first  # [R]
        self._evaluate_density(marched, density_fn, FIRST_PASS_SAMPLES, torch.where(passes, counts - first, 0), density)
        return density

    @staticmethod
    def _evaluate_density(marched: Marched, density_fn: DensityFn, skip: int, counts: Tensor, density: Tensor) -> None:
        """Write the density of `counts` [R] samples of each ray, from its sample number `skip` on."""
        rays, t_starts, t_ends, ray_offsets = marched
        offsets = offsets_from_counts(counts)
        n_rows = int(offsets[-1])
        source_offsets = ray_offsets.clamp(max=max(len(t_starts) - skip, 0))
        positions, *_, ray_index = compact_samples(
            rays.origins, rays.directions, t_starts[skip:], t_ends[skip:], source_offsets, offsets, n_rows
        )
        shift = ray_offsets[:-1] + skip - offsets[:-1]  # [R]
        target = torch.arange(n_rows, device=shift.device) + shift[ray_index]
        for rows, points in zip(target.split(MAX_ROWS), positions.split(MAX_ROWS), strict=True):
            density[rows] = density_fn(points).to(density.dtype)


class BoxSampler(OccupancySampler):
    """Equal steps through a box; nothing is outside of it."""

    @property
    def max_samples_per_ray(self) -> float:
        """Samples along the diagonal of the box, all of whose cells are occupied."""
        return (self.box[1] - self.box[0]).norm().item() / self.config.step

    def sees(self, rays: Rays) -> Tensor:
        """Which rays [R] intersect the box, bool."""
        enter, leave = box_span(rays.origins, rays.directions, self.box, self.config.near, self.config.far)
        return enter < leave

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        return march(
            rays.origins, rays.directions, self.occupancy, self.box,
            config.step, config.near, config.far, jitter, capacity,
        )  # fmt: skip

    def points_in(self, unit: Tensor) -> Tensor:
        return self.box[0] + unit * (self.box[1] - self.box[0])

    def unit_of(self, positions: Tensor) -> Tensor:
        return (positions - self.box[0]) / (self.box[1] - self.box[0])


def _with_gradients(positions: Tensor, rays: Rays, t_starts: Tensor, t_ends: Tensor, ray_index: Tensor) -> Tensor:
    """The same `positions` [N, 3], differentiable in the origins and directions of their rays."""
    middle = ((t_starts + t_ends) / 2)[:, None]  # [N, 1]
    origins, directions = (x.index_select(0, ray_index) for x in rays[:2])  # [N, 3] each; summed back without a sort
    moved = origins + directions * middle  # [N, 3]
    return positions + (moved - moved.detach())
