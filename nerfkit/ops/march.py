# SPDX-License-Identifier: Apache-2.0
"""Marching rays through an occupancy grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.limits import MAX_EDGES, MAX_INTERVALS
from nerfkit.ops import native
from nerfkit.ops.checks import POSITION_FLOATS, can_be_read, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.packed import offsets_from_counts, truncate_offsets

MAX_SAMPLES = 2**62  # of R rays; a kernel counts MAX_SAMPLES / R for a ray of too many intervals
COARSE_CPU, COARSE_CUDA = 8, 4  # cells per side of a block: COARSE of cuda/march/cpu.cpp, BLOCK of cuda/march/rays.cuh
TILE_CUDA, STORED_CUDA = 64, 32  # TILE and STORED_CHUNKS (8 bytes each) of cuda/march/count.cuh
FARTHEST = 2.0**100  # half sides from the centre of the box: with t_edges, farther middles are no samples
PART = 2**22  # intervals that the definition looks up at a time


def march(
    origins: Tensor, directions: Tensor, occupancy: Tensor, box: Tensor, step: float | None, near: float = 0.0,
    far: float = math.inf, jitter: Tensor | None = None, capacity: int | None = None, t_edges: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Intervals of length `step` along each ray whose midpoint lies in an occupied cell.

    With :math:`[t_{in}, t_{out}]` the part of the ray inside the box and between near and far, interval k of ray r is

    .. math::
        [t_{in} + (k + jitter_r)\, step,\; t_{in} + (k + 1 + jitter_r)\, step], \qquad k = 0, 1, ...

    It is a sample if its midpoint is before :math:`t_{out}` and in a cell of `occupancy` that is set.

    With t_edges, T, of L distances, the same for all rays, space is unbounded: `occupancy` covers the cube [-2, 2]^3 of
    contracted positions (`nerfkit.contraction`), of which [-1, 1]^3 is the box. Interval k of ray r is

    .. math::
        [T_k + jitter_r (T_{k+1} - T_k),\; T_{k+1} + jitter_r (T_{k+2} - T_{k+1})], \qquad k = 0 .. L-3,

    where the next one begins. It is a sample if the contracted position of its middle, c, is in a cell that is set:
    :math:`\lfloor (c + 2) / 4 \cdot (X, Y, Z) \rfloor`. A ray with zero direction, or with a number that is
    not finite, has no samples; an interval whose middle is over 2^100 half sides away is none.

    Args:
        origins: [R, 3]; directions: [R, 3] of unit length.
        occupancy: [X, Y, Z] bool, cells of the box (with t_edges: of the contracted cube), x the slowest axis.
        box: [2, 3] lowest and highest corner, scene units.
        step: interval length; near, far: limits of the distance. All in scene units. With t_edges: None, 0, inf.
        jitter: [R] shift in steps, 0 to 1, or None for 0.
        capacity: rows of the result, which avoids the synchronization of reading N; None for N rows.
        t_edges: [L] distances in scene units, finite and strictly increasing, 3 <= L <= 2^16, such as
            `nerfkit.contraction.exponential_edges`, or None for intervals of length `step` in the box. That they
            increase is checked on a CPU; on a GPU, where a check would synchronize, it is a precondition.

    Returns:
        t_starts [N], t_ends [N] and ray_offsets [R+1] int64: packed, by ray and near to far. With a capacity, t_starts
        and t_ends have that many rows, which are 0 from N on and in rays that end beyond the capacity. ray_offsets
        are those of all samples; `nerfkit.ops.packed.truncate_offsets` gives those of the complete rays.

    dtype: float32 or float64, one for all. Nothing is differentiable.
    Raises ValueError for a shape, device or step, TypeError for a dtype that does not fit.
    Source: occupancy-grid marching of instant-ngp (arXiv:2201.05989), appendix E; contraction of mip-NeRF 360
    (arXiv:2111.12077), equation 10, with the maximum norm.

    >>> box = torch.tensor([[0.0, 0, 0], [3, 1, 1]])
    >>> occupancy = torch.tensor([True, False, True]).reshape(3, 1, 1)
    >>> t_starts, t_ends, ray_offsets = march(
    ...     torch.tensor([[-1.0, 0.5, 0.5]]), torch.tensor([[1.0, 0, 0]]), occupancy, box, step=1.0)
    >>> t_starts, t_ends, ray_offsets
    (tensor([1., 3.]), tensor([2., 4.]), tensor([0, 2]))
    """
    origins, directions, box, jitter, t_edges = cast("march", origins, directions, box, jitter, t_edges)
    check(
        "march", POSITION_FLOATS, origins=(origins, ("R", 3)), directions=(directions, ("R", 3)), box=(box, (2, 3)),
        occupancy=(occupancy, ("X", "Y", "Z"), (torch.bool,)), jitter=jitter is not None and (jitter, ("R",)),
        t_edges=t_edges is not None and (t_edges, ("L",)),
    )  # fmt: skip
    check_steps("march", step, near, far, t_edges)
    if capacity is not None and capacity < 0:
        raise ValueError(f"march: capacity must not be negative, got {capacity}")
    with torch.no_grad():
        run = implementation("march", origins)
        return run(origins, directions, occupancy, box, step, near, far, jitter, capacity, t_edges)


def check_steps(op: str, step: float | None, near: float, far: float, t_edges: Tensor | None) -> None:
    """Require a step, or distances that rise instead of it."""
    if t_edges is None:
        if step is None or not (step > 0 and math.isfinite(step)):
            raise ValueError(f"{op}: step must be positive and finite, got {step}; it may be None only with t_edges")
    elif step is not None or near != 0 or far != math.inf:
        raise ValueError(f"{op}: with t_edges leave out step, near and far, got {step}, {near} and {far}")
    elif not 3 <= t_edges.shape[0] <= MAX_EDGES:
        raise ValueError(f"{op}: t_edges must have 3 to {MAX_EDGES} distances, got {t_edges.shape[0]}")
    elif can_be_read(t_edges) and not ((t_edges.diff() > 0).all() and t_edges.isfinite().all()):
        raise ValueError(f"{op}: t_edges must be finite and strictly increasing, in its dtype too")


def box_span(origins: Tensor, directions: Tensor, box: Tensor, near: float, far: float) -> tuple[Tensor, Tensor]:
    """Distances [R] at which each ray enters and leaves the box, within near and far; enter >= leave for a miss."""
    tiny = torch.finfo(directions.dtype).tiny
    safe = torch.where(directions.abs() < tiny, tiny, directions)  # [R, 3]
    sides = (box[:, None, :] - origins) / safe  # [2, R, 3]
    enter = sides.amin(0).amax(-1).clamp(min=near)
    leave = sides.amax(0).amin(-1).clamp(max=far)
    return enter, leave


@implements("march", "torch")
def _march_torch(origins, directions, occupancy, box, step, near, far, jitter, capacity, t_edges):
    """Every interval of every ray is looked up, PART of them at a time."""
    occupancy = occupancy if occupancy.numel() else occupancy.new_zeros(1, 1, 1)
    jitter = origins.new_zeros(origins.shape[0]) if jitter is None else jitter  # [R]
    if t_edges is None:
        n_intervals, look_up = _in_box(origins, directions, occupancy, box, step, near, far, jitter)
    else:
        n_intervals, look_up = _on_edges(origins, directions, occupancy, box, jitter, t_edges)
    parts, counts = [], []
    for rays in torch.arange(origins.shape[0], device=origins.device).split(max(1, PART // n_intervals)):
        t_starts, t_ends, occupied = look_up(rays)  # [M, intervals] each
        parts.append((t_starts[occupied], t_ends[occupied]))
        counts.append(occupied.sum(-1))
    t_starts, t_ends = (torch.cat(t) for t in zip(*parts, strict=True))  # [N] each
    ray_offsets = offsets_from_counts(torch.cat(counts))  # [R+1]
    if capacity is not None:  # rows of complete rays, then zero padding
        used = int(truncate_offsets(ray_offsets, capacity)[0][-1])
        t_starts, t_ends = (F.pad(t[:used], (0, capacity - used)) for t in (t_starts, t_ends))
    return t_starts, t_ends, ray_offsets


def _moves(directions: Tensor) -> Tensor:
    return (directions.abs() >= torch.finfo(directions.dtype).tiny).any(-1)  # [R]


def _in_box(origins, directions, occupancy, box, step, near, far, jitter) -> tuple[int, Callable]:
    """How many intervals of one length the longest ray has in the box, and what looks those of some rays up."""
    enter, leave = box_span(origins, directions, box, near, far)  # [R] each
    first = enter + (jitter + 0.5) * step  # [R] middle of interval 0
    leave = torch.where(_moves(directions), leave, -math.inf)
    spans = (leave - first)[first < leave]
    n_intervals = math.ceil((spans.amax().item() if len(spans) else 0.0) / step + 1)
    if n_intervals > MAX_INTERVALS + 1:
        raise _too_small(step)
    shifts = torch.arange(n_intervals, device=origins.device, dtype=origins.dtype) * step
    scale = torch.tensor(occupancy.shape, device=box.device, dtype=box.dtype) / (box[1] - box[0])  # [3]
    o, d = (origins - box[0]) * scale, directions * scale  # [R, 3] in cells

    def look_up(rays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = first[rays, None] + shifts  # [M, intervals] middles
        cells = (torch.addcmul(o[rays, axis, None], d[rays, axis, None], t) for axis in range(3))
        return t - step / 2, t + step / 2, _values(occupancy, cells) & (t < leave[rays, None])

    return n_intervals, look_up


def _on_edges(origins, directions, occupancy, box, jitter, t_edges) -> tuple[int, Callable]:
    """How many intervals a ray has on t_edges, and what looks those of some rays up.

    Operations and their order are those of the kernels, each rounded for itself, so that all give the same bits.
    """
    half = (box[1] - box[0]) * 0.5  # [3]
    o, d = (origins - (box[0] + box[1]) * 0.5) / half, directions / half  # [R, 3] the box at +-1
    marches = _moves(directions) & o.isfinite().all(-1) & d.isfinite().all(-1)  # [R]

    def look_up(rays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ends = jitter[rays, None] * t_edges.diff() + t_edges[:-1]  # [M, L-1]
        t_starts, t_ends = ends[:, :-1], ends[:, 1:]  # [M, L-2] each
        t = (t_starts + t_ends) * 0.5
        u = [d[rays, axis, None] * t + o[rays, axis, None] for axis in range(3)]  # [M, L-2] each
        largest = u[0].abs().maximum(u[1].abs()).maximum(u[2].abs())  # [M, L-2]
        valid = (largest <= FARTHEST) & marches[rays, None]  # not where a number is NaN
        inverse = 1 / largest
        scale = torch.where(largest <= 1, 1.0, (2 - inverse) * inverse)  # [M, L-2] contracts
        cells = ((torch.where(valid, x * scale, 0) + 2) * (n / 4) for x, n in zip(u, occupancy.shape, strict=True))
        return t_starts, t_ends, _values(occupancy, cells) & valid

    return t_edges.shape[0] - 2, look_up


def _too_small(step: float) -> ValueError:
    most = MAX_INTERVALS + 1
    return ValueError(f"march: step {step:g} cuts a ray into more than {most} intervals; use a larger step")


def _values(grid: Tensor, cells: Iterable[Tensor]) -> Tensor:
    """Value of `grid` [X, Y, Z] at positions in cells, three of [M, S], along each axis."""
    index = 0
    for n, cell in zip(grid.shape, cells, strict=True):
        index = index * n + cell.to(torch.int32).clamp_(0, n - 1)
    return grid.flatten().index_select(0, index.flatten()).view(index.shape)


@implements("march", "cpp", "cuda")
def _march_native(origins, directions, occupancy, box, step, near, far, jitter, capacity, t_edges):
    rays = origins, directions, occupancy, box, 0.0 if step is None else step, near, far, jitter, t_edges
    counts, tile_offsets, workspace = torch.ops.nerfkit._march_count(*rays)
    n_rows = capacity
    if capacity is None or not origins.is_cuda:  # a capacity avoids the synchronization
        n_samples = int(tile_offsets[-1])
        if n_samples >= MAX_SAMPLES // max(1, origins.shape[0]):
            raise _too_small(step)
        n_rows = n_samples if capacity is None else capacity
    return torch.ops.nerfkit._march_fill(*rays, counts, tile_offsets, workspace, n_rows)


@native.fake("_march_count")
def _(origins, directions, occupancy, box, step, near, far, jitter, t_edges):
    rays = origins.shape[0]
    tiles = -(-rays // TILE_CUDA) if origins.is_cuda else 1
    longs = (origins.new_empty(n, dtype=torch.int64) for n in (rays, tiles + 1))
    return *longs, origins.new_empty(_workspace_bytes(origins, occupancy), dtype=torch.uint8)


def _workspace_bytes(origins: Tensor, occupancy: Tensor) -> int:
    """`march_workspace_bytes`, the kernels' workspace: a coarse grid and, on a GPU, data of each ray and a counter."""
    rays = origins.shape[0]
    if rays == 0 or occupancy.numel() == 0:
        return 0
    if not origins.is_cuda:
        return math.prod(-(-n // COARSE_CPU) for n in occupancy.shape)
    entries = math.prod(-(-n // COARSE_CUDA) + 1 for n in occupancy.shape)
    return rays * (STORED_CUDA * 8 + 2 * origins.element_size()) + 4 + entries


@native.fake("_march_fill")
def _(origins, directions, occupancy, box, step, near, far, jitter, t_edges, counts, tile_offsets, workspace, n_rows):
    return *(origins.new_empty(n_rows) for _ in range(2)), origins.new_empty(origins.shape[0] + 1, dtype=torch.int64)
