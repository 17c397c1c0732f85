# SPDX-License-Identifier: Apache-2.0
"""Multi-resolution feature grid: dense levels where they fit, hashed levels above."""

import functools
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.limits import MAX_ENTRIES, MAX_LEVELS, MAX_RESOLUTION
from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, POSITION_FLOATS, autocast_dtype, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like
from nerfkit.ops.trilinear import corner_weights

HASH_PRIMES = (1, 2654435761 - 2**32, 805459861)  # as signed 32-bit numbers


def level_entries(resolution: int, max_entries: int) -> int:
    """Table rows of a level with `resolution` cells per side: all its vertices if they fit, else `max_entries`.

    The number of vertices is rounded up to a multiple of 8, which aligns every level to a cache sector.
    """
    return min(-(-((resolution + 1) ** 3) // 8) * 8, max_entries)


def grid_encode(points: Tensor, table: Tensor, resolutions: Sequence[int], max_entries: int) -> Tensor:
    r"""Features of points from a stack of grids, concatenated along the last axis.

    Level l has :math:`n_l` cells per side. A point in [0, 1] lies in the cell with the lowest vertex
    :math:`v = \lfloor n_l p \rfloor`; its features are interpolated trilinearly from the eight vertices
    :math:`v + (x, y, z)`. Vertex (x, y, z) is row

    .. math::
        (x (n_l + 1) + y) (n_l + 1) + z \quad\text{if}\ (n_l + 1)^3 \le max\_entries, \qquad
        (x \oplus 2654435761\, y \oplus 805459861\, z) \bmod max\_entries \quad\text{otherwise}

    of the level's part of the table; the parts are concatenated.

    Args:
        points: [N, 3] positions, 0 to 1 along each axis; clamped to the box outside of it.
        table: [T, F] features of all levels; T is the sum of `level_entries` over the levels.
        resolutions: cells per side of each level, non-decreasing.
        max_entries: rows of a hashed level, a power of two.

    Returns:
        [N, L*F] in the dtype of the table, level by level; under autocast in its dtype, to which the table is rounded.

    dtype: points float32 or float64, table of any floating type; half types are summed in float32.
    Differentiable in table and points (zero outside the box; at a cell border, the derivative of the upper cell).
    Raises ValueError for a shape, device or table size, TypeError for a dtype that does not fit.
    Source: instant-ngp (arXiv:2201.05989), section 3.

    >>> table = torch.arange(8.0).reshape(8, 1)                     # one cell: row = 4x + 2y + z
    >>> [grid_encode(torch.tensor([[x, 1.0, 0.0]]), table, [1], 8).item() for x in (0.0, 0.5, 1.0)]
    [2.0, 4.0, 6.0]
    """
    (points,) = cast("grid_encode", points)
    check("grid_encode", POSITION_FLOATS, points=(points, ("N", 3)), table=(table, ("T", "F"), FLOATS))
    resolutions = tuple(resolutions)
    once = check_levels if torch.compiler.is_compiling() else _check_levels_once  # a compiler would warn of the cache
    once(resolutions, max_entries, table.shape[0])
    return implementation("grid_encode", points)(points, table, resolutions, max_entries, autocast_dtype(table))


def check_levels(resolutions: tuple[int, ...], max_entries: int, rows: int) -> None:
    """Require non-decreasing resolutions, a power of two for the hash, and a table with the rows they need."""
    if not resolutions or min(resolutions) < 1 or any(b < a for a, b in pairwise(resolutions)):
        raise ValueError(f"grid_encode: resolutions must be positive and non-decreasing, got {list(resolutions)}")
    if max_entries < 1 or max_entries & (max_entries - 1):
        raise ValueError(f"grid_encode: max_entries must be a power of two, got {max_entries}")
    if len(resolutions) > MAX_LEVELS or max(resolutions) >= MAX_RESOLUTION or max_entries > MAX_ENTRIES:
        raise ValueError(
            f"grid_encode: at most {MAX_LEVELS} levels, {MAX_RESOLUTION - 1} cells per side and {MAX_ENTRIES} entries, "
            f"got {len(resolutions)} levels, {max(resolutions)} cells, {max_entries} entries"
        )
    needed = sum(level_entries(n, max_entries) for n in resolutions)
    if rows != needed:
        raise ValueError(f"grid_encode: table must have {needed} rows for these levels, got {rows}")


_check_levels_once = functools.lru_cache(check_levels)


@implements("grid_encode", "torch")
def _grid_encode_torch(points, table, resolutions, max_entries, dtype):
    table = table.to(dtype)
    rows, weights = _corners(points, resolutions, max_entries)  # [N, L, 8] each
    # torch 2.11 loses the gradients of a compiled autograd.Function; a compiler fuses the plain operations anyway.
    run = _interpolate if torch.compiler.is_compiling() else _Interpolate.apply
    features = run(table, rows.flatten(0, 1), weights.flatten(0, 1))  # [N*L, F]
    return features.view(points.shape[0], len(resolutions) * table.shape[1])


def _corners(points: Tensor, resolutions: tuple[int, ...], max_entries: int) -> tuple[Tensor, Tensor]:
    """Table rows [N, L, 8] int32 and weights [N, L, 8] of the corners around each point on each level."""
    cells = torch.tensor(resolutions, device=points.device)[:, None]  # [L, 1]
    scaled = points.clamp(0, 1)[:, None, :] * cells  # [N, L, 3]
    lowest = scaled.detach().to(torch.int32).minimum(cells.to(torch.int32) - 1).clamp(min=0)  # [N, L, 3]
    weights = corner_weights(scaled - lowest)  # [N, L, 8]

    n_dense = sum((n + 1) ** 3 <= max_entries for n in resolutions)
    x, y, z = torch.stack([lowest, lowest + 1], dim=-1).unbind(-2)  # each [N, L, 2]
    x, y, z = x[..., :, None, None], y[..., None, :, None], z[..., None, None, :]
    side = (cells.to(torch.int32) + 1)[:n_dense, :, None, None]  # [L_dense, 1, 1, 1]
    dense = ((x[:, :n_dense] * side + y[:, :n_dense]) * side + z[:, :n_dense]).flatten(-3)

    # int32 products may overflow: the mask keeps their low bits alone, which are exact.
    p, q, r = HASH_PRIMES
    hashed = ((x[:, n_dense:] * p) ^ (y[:, n_dense:] * q) ^ (z[:, n_dense:] * r)) & (max_entries - 1)

    starts = [0]
    for n in resolutions[:-1]:
        starts.append(starts[-1] + level_entries(n, max_entries))
    starts = torch.tensor(starts, dtype=torch.int32, device=points.device)[:, None]  # [L, 1]
    return torch.cat([dense, hashed.flatten(-3)], dim=1) + starts, weights


def _interpolate(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """out[m] = sum_k weights[m, k] table[rows[m, k]], [M, F]."""
    gathered = table.index_select(0, rows.flatten()).unflatten(0, rows.shape)  # [M, 8, F]
    return (weights[..., None] * gathered).sum(1).to(table.dtype)


class _Interpolate(torch.autograd.Function):
    """`_interpolate` with a faster forward and backward.

    On a CPU, `embedding_bag` does this without an [M, 8, F] copy, three times faster; on a GPU it is slower.
    Its own backward sorts the rows and has no second derivative, so the backward is written here, in differentiable
    operations.
    """

    @staticmethod
    def forward(ctx, table, rows, weights):
        ctx.save_for_backward(table, rows, weights)
        if table.is_cuda or table.dtype in (torch.float16, torch.bfloat16):
            return _interpolate(table, rows, weights)
        return F.embedding_bag(rows, table, per_sample_weights=weights.to(table.dtype), mode="sum")

    @staticmethod
    def backward(ctx, grad):
        table, rows, weights = ctx.saved_tensors
        grad = grad.to(weights.dtype)  # [M, F]
        grad_table = grad_weights = None
        if ctx.needs_input_grad[0]:
            shares = (weights[..., None] * grad[:, None, :]).flatten(0, 1)  # [M*8, F]
            grad_table = torch.zeros_like(table, dtype=shares.dtype).index_add(0, rows.flatten(), shares)
            grad_table = grad_table.to(table.dtype)
        if ctx.needs_input_grad[2]:
            gathered = table.index_select(0, rows.flatten()).unflatten(0, rows.shape)  # [M, 8, F]
            grad_weights = (gathered.to(grad.dtype) * grad[:, None, :]).sum(-1)
        return grad_table, None, grad_weights


def _grid_encode_forward(points, table, resolutions, max_entries, dtype):
    rounded = table.to(dtype)
    return torch.ops.nerfkit._grid_encode(points, rounded, resolutions, max_entries), (rounded,)


def _grid_encode_backward(grads, arguments, kept, needs_grad):
    points, table, *levels, _ = arguments
    deterministic = torch.are_deterministic_algorithms_enabled()
    grad_points, grad_table = torch.ops.nerfkit._grid_encode_bwd(
        *grads, points, *kept, *levels, *needs_grad[:2], deterministic
    )
    return grad_points, grad_table.to(table.dtype)


implement_native("grid_encode", _grid_encode_torch, _grid_encode_forward, _grid_encode_backward)
native.fake("_grid_encode")(
    lambda points, table, levels, max_entries: table.new_empty(points.shape[0], len(levels) * table.shape[1])
)


@native.fake("_grid_encode_bwd")
def _(grad_out, points, table, resolutions, max_entries, to_points, to_table, deterministic):
    wide = torch.float64 if table.dtype == torch.float64 else torch.float32
    grad_table = table.new_empty(table.shape if to_table else 0, dtype=wide)
    return like(points, to_points), grad_table
