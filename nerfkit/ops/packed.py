# SPDX-License-Identifier: Apache-2.0
"""Packed samples: N samples of R rays in one array, ordered by ray and near to far.

``ray_offsets`` [R+1] int64 are CSR row pointers: ray r owns the rows ``ray_offsets[r] .. ray_offsets[r+1]``. A ray may
be empty. Letters: R rays, N packed samples, S samples of one ray.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from nerfkit.ops.checks import can_be_read

PADDING_RAY_LENGTH = 16  # samples


def check_rises(op: str, ray_offsets: Tensor, n_rows: int, name: str = "ray_offsets", padded: bool = False) -> None:
    """Require row pointers [R+1] that rise from 0 to `n_rows`, or to less if rows are `padded`; else RuntimeError.

    Checked on a CPU alone: on a GPU it would synchronize, and a compiler has no values. There it is a precondition.
    """
    if not can_be_read(ray_offsets):
        return
    wanted = f"{op}: {name} must rise from 0 to {'at most ' if padded else ''}the number of rows, {n_rows}"
    first, last = int(ray_offsets[0]), int(ray_offsets[-1])
    if first != 0:
        raise RuntimeError(f"{wanted}; they start at {first}")
    falls = ray_offsets[1:] < ray_offsets[:-1]  # [R], not of their differences, which could overflow
    if falls.any():
        ray = int(falls.nonzero()[0])
        raise RuntimeError(f"{wanted}; at ray {ray} they fall from {ray_offsets[ray]} to {ray_offsets[ray + 1]}")
    if last > n_rows or (last < n_rows and not padded):
        raise RuntimeError(f"{wanted}; they end at {last}")


def ray_indices(ray_offsets: Tensor, n_samples: int, op: str = "ray_indices") -> Tensor:
    """Ray of each sample, [N] int64. Invalid row pointers on a CPU raise a RuntimeError that names `op`.

    >>> ray_indices(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 0, 2]
    """
    check_rises(op, ray_offsets, n_samples)  # else repeat_interleave would write out of bounds
    rays = torch.arange(ray_offsets.shape[0] - 1, device=ray_offsets.device)  # [R]
    return torch.repeat_interleave(rays, ray_offsets.diff(), output_size=n_samples)


def offsets_from_counts(counts: Tensor) -> Tensor:
    """CSR row pointers [R+1] of `counts` [R] samples per ray.

    >>> offsets_from_counts(torch.tensor([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    zero = counts.new_zeros(1, dtype=torch.int64)
    return torch.cat([zero, counts.cumsum(0, dtype=torch.int64)])


def truncate_offsets(ray_offsets: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Row pointers [R+1] without the samples of rays that end beyond `capacity`, and whether each ray [R] is complete.

    >>> offsets, complete = truncate_offsets(torch.tensor([0, 2, 5, 6]), capacity=4)
    >>> offsets.tolist(), complete.tolist()
    ([0, 2, 2, 2], [True, False, False])
    """
    used = torch.where(ray_offsets <= capacity, ray_offsets, 0).amax()
    return ray_offsets.minimum(used), ray_offsets[1:] <= capacity


def pad_offsets(ray_offsets: Tensor, capacity: int) -> Tensor:
    """Row pointers [R+1+M] with M padding rays, of at most PADDING_RAY_LENGTH samples, up to `capacity` rows.

    So every row belongs to a ray without the host knowing the number of samples.
    """
    rays = torch.arange(-(-capacity // PADDING_RAY_LENGTH), device=ray_offsets.device)  # [M]
    ends = ray_offsets[-1] + (rays + 1) * PADDING_RAY_LENGTH  # [M]
    return torch.cat([ray_offsets, ends.clamp(max=capacity)])


def dense_offsets(n_rays: int, n_samples: int, device: torch.device | str = "cpu") -> Tensor:
    """CSR row pointers of a dense [R, S] batch: every ray has `n_samples` samples.

    >>> dense_offsets(2, 3).tolist()
    [0, 3, 6]
    """
    return torch.arange(n_rays + 1, device=device) * n_samples


def sum_rays(values: Tensor, ray_index: Tensor, n_rays: int) -> Tensor:
    """Sum `values` [N, ...] over the samples of each ray, [R, ...]; 0 for an empty ray."""
    return values.new_zeros(n_rays, *values.shape[1:]).index_add(0, ray_index, values)


def sum_before(values: Tensor, ray_offsets: Tensor, ray_index: Tensor) -> Tensor:
    """Sum [N, ...] of the earlier `values` [N, ...] of the same ray."""
    total = torch.cat([values.new_zeros(1, *values.shape[1:]), values.cumsum(0)])  # [N+1, ...]
    return total[:-1] - total[ray_offsets[:-1]][ray_index]


def exclusive_cumsum(values: Tensor, ray_offsets: Tensor, ray_index: Tensor) -> Tensor:
    """Sum of the earlier samples of the same ray, [N]. float64, since all rays share one prefix sum.

    A non-finite value affects its own ray alone, as in separate sums; so does a non-finite gradient.

    >>> values, ray_offsets = torch.tensor([1.0, torch.nan, 4, 5, 6]), torch.tensor([0, 3, 5])
    >>> exclusive_cumsum(values, ray_offsets, ray_indices(ray_offsets, 5))
    tensor([0., 1., nan, 0., 5.], dtype=torch.float64)
    """
    # The autograd.Function has no forward mode: that differentiates the operations themselves.
    values = values.to(torch.float64)
    if forward_ad._current_level >= 0:
        return _exclusive_cumsum(values, ray_offsets, ray_index)
    return _SumOfOthers.apply(values, ray_offsets, ray_index, False)


def _exclusive_cumsum(values: Tensor, ray_offsets: Tensor, ray_index: Tensor) -> Tensor:
    before = sum_before(torch.where(values.isfinite(), values, 0), ray_offsets, ray_index)  # [N]
    # Values that make a sum +inf, and those that make it -inf; NaN counts as both.
    infinite = ~(values < math.inf), ~(values > -math.inf)  # [N] each
    up, down = (sum_before(x.long(), ray_offsets, ray_index) > 0 for x in infinite)  # [N] each
    return torch.where(up, torch.where(down, math.nan, math.inf), torch.where(down, -math.inf, before))


def _sum_after(values: Tensor, ray_offsets: Tensor, ray_index: Tensor) -> Tensor:
    """Sum [N] of the later `values` [N] of the same ray; NaN for all of a ray if one of its values is not finite."""
    n_rays = ray_offsets.shape[0] - 1
    invalid = sum_rays((~values.isfinite()).long(), ray_index, n_rays)[ray_index] > 0  # [N]
    values = torch.where(invalid, 0, values)
    # A suffix sum over all samples, from which the first sample of each ray subtracts the ray's total.
    of_rays = values.new_zeros(n_rays).index_put((ray_index,), -values, accumulate=True)  # [R]
    steps = F.pad(values, (0, 1)).index_put((ray_offsets[:-1],), of_rays, accumulate=True)  # [N+1]
    return torch.where(invalid, math.nan, steps[1:].flip(0).cumsum(0).flip(0))


class _SumOfOthers(torch.autograd.Function):
    """Sum of the earlier values of a ray, or of the `later` ones, its gradient: autograd's lets NaN spread."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values, ray_offsets, ray_index, later):
        return (_sum_after if later else _exclusive_cumsum)(values, ray_offsets, ray_index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, *offsets, ctx.later = inputs
        ctx.save_for_backward(*offsets)

    @staticmethod
    def backward(ctx, grad):
        return _SumOfOthers.apply(grad, *ctx.saved_tensors, not ctx.later), None, None, None
