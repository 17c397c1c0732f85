# SPDX-License-Identifier: Apache-2.0
"""Rays + occupancy grid -> packed samples, in a box or in unbounded space; `sampling.kind` chooses one."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.config import Config, SamplingConfig
from nerfkit.contraction import contract, exponential_edges, uncontract
from nerfkit.data.cameras.cameras import Rays
from nerfkit.model.occupancy import DensityFn, OccupancyGrid
from nerfkit.ops import compact_samples, count_visible, march
from nerfkit.ops.march import box_span
from nerfkit.ops.packed import offsets_from_counts, pad_offsets, truncate_offsets

FIRST_PASS_SAMPLES = 24  # of a ray; most rays terminate within them
TWO_PASS_THRESHOLD = 2**18  # samples; for fewer, a second pass costs more than it saves
MAX_ROWS = 2**23  # whose density is evaluated at a time, in two passes
FADE_IN_STEPS, FADE_IN_SHARE = 1000, 0.2  # of a training in unbounded space, at most: what is near learns slower
MAX_CANDIDATES = 2**25  # intervals in occupied cells, about, that the rays of an image have at a time


class Intervals(NamedTuple):
    """M intervals of R rays; rows behind the last ray's are of nobody."""

    t_starts: Tensor  # [M]
    t_ends: Tensor  # [M]
    ray_offsets: Tensor  # [R+1] int64


class Samples(NamedTuple):
    """N samples of R rays, ordered by ray and near to far."""

    positions: Tensor  # [N, 3] midpoint of each interval, world space
    t_starts: Tensor  # [N]
    t_ends: Tensor  # [N]
    ray_index: Tensor  # [N] int64
    ray_offsets: Tensor  # [R+1] int64; with a capacity [R+1+M], see `packed.pad_offsets`
    ray_complete: Tensor  # [R] bool, rays within the capacity


class OccupancySampler(OccupancyGrid):
    """Marches rays through an occupancy grid; in which intervals, a sampler that derives from it says.

    The rows of a ray, from one step to the next; with a capacity all arrays have a fixed number of rows:

        marched  a b c d e f g h   in occupied cells
        visible  a b c d e         until the ray's transmittance falls to `early_stop_transmittance`
        kept     a   c d           of an opacity that counts
        samples  a c d             of the rays that fit into the capacity, with positions; padding rays take the rest
    """

    ops = ("march", "count_visible", "compact_samples")
    early_stop_transmittance = 1e-3  # where a ray ends
    march_capacity_ratio = 6.0  # of a capacity: marched intervals for each that is rendered
    passes_of_capacity = 0.0  # and those whose density is evaluated, in each of two passes; 0: all, in one
    most_samples: int | None = None  # with gradients and no capacity, set by a training step

    @abstractmethod
    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Intervals in occupied cells, and ray_offsets, as of `nerfkit.ops.march`."""

    def forward(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        """Visible samples: in occupied cells, until the ray's transmittance falls to `early_stop_transmittance`, but
        for those whose opacity is below `threshold`.

        `jitter` [R] in [0, 1] shifts the samples of a ray, in steps. With a `capacity` there are that many samples and
        nothing synchronizes with the GPU: rays beyond the capacity are not complete and get no samples, and unused
        rows belong to padding rays, whose samples have zero length. Positions are differentiable in the rays'
        origins and directions; distances along the ray are constants.
        """
        waits = capacity is None  # for the GPU to tell how many rows there are
        is_training = self.training and torch.is_grad_enabled()  # no view is scored, or its pose looked for
        with torch.no_grad():
            march_capacity = None if waits else int(capacity * self.march_capacity_ratio)
            t_starts, t_ends, ray_offsets = self.march(rays, jitter, march_capacity)
            ray_offsets, are_marched = truncate_offsets(ray_offsets, len(t_starts))
            marched = Intervals(t_starts, t_ends, ray_offsets)
            room = None if waits else int(capacity * (self.passes_of_capacity or self.march_capacity_ratio))
            density, are_known = self._density(rays, marched, density_fn, room)
            kept, are_known = self._kept(rays, marched, density, are_known, room)
            n_rows = len(kept.t_starts) if waits else capacity
            are_too_many = waits and is_training and n_rows > (self.most_samples or n_rows)
            ray_offsets, are_kept = truncate_offsets(kept.ray_offsets, self.most_samples if are_too_many else n_rows)
            n_rows = int(ray_offsets[-1]) if are_too_many else n_rows
            positions, t_starts, t_ends, ray_index = compact_samples(*rays[:2], *kept, ray_offsets, n_rows)
            if not waits:
                ray_offsets = pad_offsets(ray_offsets, capacity)
        if is_training:
            self.mark_reached(positions, t_ends > t_starts)
        if torch.is_grad_enabled() and (rays.origins.requires_grad or rays.directions.requires_grad):
            middle = ((t_starts + t_ends) / 2)[:, None]  # [N, 1]
            origins, directions = (x.index_select(0, ray_index) for x in rays[:2])  # [N, 3]; summed back without a sort
            moved = origins + directions * middle  # [N, 3]
            positions = positions + (moved - moved.detach())
        return Samples(positions, t_starts, t_ends, ray_index, ray_offsets, are_marched & are_known & are_kept)

    def fade_in(self, samples: Samples, density: Tensor, rgb: Tensor) -> None:
        """Change gradients of the samples' density [N] and rgb [N, 3] in the first steps; here they stay."""

    def _kept(
        self, rays: Rays, marched: Intervals, density: Tensor, are_known: Tensor, room: int | None
    ) -> tuple[Intervals, Tensor]:
        """Of the marched intervals, with their `density` [M], the visible ones of an opacity that counts: a small part
        of all, and none of a ray whose densities are not known. NaN counts, for the loss has to show it. And which rays
        [R] are known and have their visible intervals among the first `room`."""
        n_visible = count_visible(density, *marched, self.early_stop_transmittance)  # [R]
        ray_offsets, n_rows = offsets_from_counts(n_visible * are_known), room
        if room is None:
            n_rows = int(ray_offsets[-1])
        else:
            ray_offsets, fit = truncate_offsets(ray_offsets, room)
            are_known = are_known & fit
        _, t_starts, t_ends, ray_index = compact_samples(*rays[:2], *marched, ray_offsets, n_rows)  # visible
        row = torch.arange(n_rows, device=ray_index.device)
        source = row + (marched.ray_offsets - ray_offsets)[ray_index]  # row of the marched interval
        density = density[source.clamp(max=len(density) - 1)]
        is_kept = ~(-torch.expm1(-density * (t_ends - t_starts)) < self.threshold) & (row < ray_offsets[-1])
        up_to = offsets_from_counts(is_kept)  # [n_rows+1] kept before each row
        if room is None:
            return Intervals(t_starts[is_kept], t_ends[is_kept], up_to[ray_offsets]), are_known
        target = torch.where(is_kept, up_to[:-1], n_rows)  # the row behind all others takes what is not kept
        t_starts, t_ends = (t.new_zeros(n_rows + 1).scatter(0, target, t)[:-1] for t in (t_starts, t_ends))
        return Intervals(t_starts, t_ends, up_to[ray_offsets]), are_known

    def _density(
        self, rays: Rays, marched: Intervals, density_fn: DensityFn, room: int | None
    ) -> tuple[Tensor, Tensor]:
        """Density [M] of the marched intervals, and which rays [R] it is known of: all, if `room` is None.

        Where they are many, in two passes, each of the rays that fit into `room`: of the first of each ray, then of the
        others where those leave the ray visible, else 0; what is visible is the same, if `density_fn` does not depend
        on the batch.
        """
        n_rows, counts = len(marched.t_starts), marched.ray_offsets.diff()  # [R]
        are_known = torch.ones_like(counts, dtype=torch.bool)
        if n_rows < TWO_PASS_THRESHOLD if room is None else not self.passes_of_capacity:
            return density_fn(compact_samples(*rays[:2], *marched, marched.ray_offsets, n_rows)[0]), are_known
        density = marched.t_starts.new_zeros(n_rows + (room or 0))  # and of padding, each row its own
        first = counts.clamp(max=FIRST_PASS_SAMPLES)
        are_known &= _evaluate_density(rays, marched, density_fn, 0, first, density, room)
        passes = count_visible(density[:n_rows], *marched, self.early_stop_transmittance) > first  # [R]
        others = torch.where(passes & are_known, counts - first, 0)
        are_known &= _evaluate_density(rays, marched, density_fn, FIRST_PASS_SAMPLES, others, density, room)
        return density[:n_rows], are_known


class BoxSampler(OccupancySampler):
    """Equal steps through a box; nothing is outside of it."""

    @property
    def max_samples_per_ray(self) -> float:
        """Samples along the diagonal of the box, all of whose cells are occupied."""
        return (self.box[1] - self.box[0]).norm().item() / self.config.step_size

    def hits(self, rays: Rays) -> Tensor:
        """Which rays [R] intersect the box, bool."""
        enter, leave = box_span(rays.origins, rays.directions, self.box, self.config.near, self.config.far)
        return enter < leave

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        return march(*rays[:2], self.occupancy, self.box, config.step_size, config.near, config.far, jitter, capacity)

    def to_world(self, unit: Tensor) -> Tensor:
        return self.box[0] + unit * (self.box[1] - self.box[0])

    def to_unit(self, positions: Tensor) -> Tensor:
        return (positions - self.box[0]) / (self.box[1] - self.box[0])


class ContractedSampler(OccupancySampler):
    """Unbounded space, in steps of max(step_size, cone_angle * distance) from near to far.

    The cube `box` is sampled as it is; all that lies outside of it, however far, is contracted into a shell as thick as
    half the cube (`nerfkit.contraction`), and the grid's cells cover both.
    """

    drawn_anywhere, drawn_occupied = 16, 16  # a grid of unbounded space has many cells, most of them far away

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__(config, box)
        t_edges = exponential_edges(config.near, config.far, config.step_size, config.cone_angle)
        self.register_buffer("t_edges", t_edges.to(torch.float32), persistent=False)  # [L] ends of intervals
        self.register_buffer("full_gradients_from", torch.zeros(()), persistent=False)  # distance from a camera
        self.has_faded_in = False
        if config.cone_angle < 1 / 128:  # of finer intervals more are behind a surface
            self.march_capacity_ratio, self.passes_of_capacity = 16.0, 4.0

    @property
    def max_samples_per_ray(self) -> float:
        """Intervals from near to far, all of whose cells are occupied."""
        return float(len(self.t_edges) - 2)

    @property
    def max_rays_rendered(self) -> int:
        """Rays of an image at a time: many in a trained scene, few in an untrained one, all of whose cells count."""
        passed = self.occupancy.float().mean().item() * len(self.t_edges)  # occupied cells on a ray, about
        return int(min(max(MAX_CANDIDATES / max(passed, 1), 2**10), 2**18))

    def update(self, density_fn: DensityFn, step: int) -> None:
        done = max(step / FADE_IN_STEPS, self.progress / FADE_IN_SHARE)
        if not self.has_faded_in:
            radius = (self.box[1] - self.box[0]).max() / 2
            self.full_gradients_from.copy_(radius * max(1 - done, 0.0))
        self.has_faded_in = done >= 1
        super().update(density_fn, step)

    def fade_in(self, samples: Samples, density: Tensor, rgb: Tensor) -> None:
        r"""Scale gradients by :math:`\min(1, t / d)^2` while a training begins.

        t is a sample's distance from its camera, and d falls from a radius to 0. What is close to a camera is hit by so
        many of its rays that it learns faster than the scene behind: otherwise a fog before each camera, which explains
        its image and no other, comes first and stays. Source: J. Philip and V. Deschaintre, "Floaters No More"
        (arXiv:2305.02756), who scale to the end.
        """
        if not density.requires_grad:
            return
        distance = (samples.t_starts + samples.t_ends) / 2  # [N]
        scale = (distance / self.full_gradients_from.clamp(min=1e-6)).clamp(max=1).square().to(rgb.dtype)
        density.register_hook(lambda gradient: gradient * scale)
        if rgb.requires_grad:
            rgb.register_hook(lambda gradient: gradient * scale[:, None])

    def hits(self, rays: Rays) -> Tensor:
        """All rays [R]: there is no outside."""
        return torch.ones_like(rays.origins[:, 0], dtype=torch.bool)

    def march(self, rays: Rays, jitter: Tensor | None, capacity: int | None) -> tuple[Tensor, Tensor, Tensor]:
        grid = self.occupancy, self.box
        return march(*rays[:2], *grid, None, jitter=jitter, capacity=capacity, t_edges=self.t_edges)

    def to_world(self, unit: Tensor) -> Tensor:
        return uncontract(4 * unit - 2, self.box)

    def to_unit(self, positions: Tensor) -> Tensor:
        return (contract(positions, self.box) + 2) / 4


def build_sampler(config: Config) -> OccupancySampler:
    """The sampler `config.sampling.kind` in data.box."""
    kinds = {"box": BoxSampler, "contracted": ContractedSampler}
    return kinds[config.sampling.kind](config.sampling, box_of(config))


def box_of(config: Config) -> Tensor:
    """data.box [2, 3], lowest and highest corner, float32."""
    return torch.tensor(config.data.box, dtype=torch.float32).view(2, 3)


def _evaluate_density(
    rays: Rays, marched: Intervals, density_fn: DensityFn, skip: int, counts: Tensor, density: Tensor, room: int | None
) -> Tensor:
    """Write the density of `counts` [R] intervals of each ray, from its interval number `skip` on; returns which rays
    [R] fit into `room`, all if that is None."""
    t_starts, t_ends, ray_offsets = marched
    offsets, fit = offsets_from_counts(counts), torch.ones_like(counts, dtype=torch.bool)
    if room is None:
        n_rows = int(offsets[-1])
    else:
        n_rows, (offsets, fit) = room, truncate_offsets(offsets, room)
    source_offsets = ray_offsets.clamp(max=max(len(t_starts) - skip, 0))
    source = t_starts[skip:], t_ends[skip:], source_offsets
    positions, *_, ray_index = compact_samples(*rays[:2], *source, offsets, n_rows)
    shift = ray_offsets[:-1] + skip - offsets[:-1]  # [R]
    row = torch.arange(n_rows, device=shift.device)
    target = torch.where(row < offsets[-1], row + shift[ray_index], len(t_starts) + row)  # padding comes last
    for rows, points in zip(target.split(MAX_ROWS), positions.split(MAX_ROWS), strict=True):
        density[rows] = density_fn(points).to(density.dtype)
    return fit
