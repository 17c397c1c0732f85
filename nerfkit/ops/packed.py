# SPDX-License-Identifier: Apache-2.0
"""Packed samples: N samples of R rays in one array, ordered by ray and near to far.

``ray_offsets`` [R+1] int64 are CSR row pointers: ray r owns the rows ``ray_offsets[r] .. ray_offsets[r+1]``. A ray may
be empty. Letters: R rays, N packed samples, S samples of one ray.
"""

from __future__ import annotations

import torch
from torch import Tensor

FILLER_LENGTH = 16


def ray_indices(ray_offsets: Tensor, n_samples: int) -> Tensor:
    """Ray of each sample, [N] int64.

    >>> ray_indices(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 0, 2]
    """
    rays = torch.arange(ray_offsets.shape[0] - 1, device=ray_offsets.device)  # [R]
    return torch.repeat_interleave(rays, ray_offsets.diff(), output_size=n_samples)


def offsets_from_counts(counts: Tensor) -> Tensor:
    """CSR row pointers [R+1] of `counts` [R] samples per ray.

    >>> offsets_from_counts(torch.tensor([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    zero = counts.new_zeros(1, dtype=torch.int64)
    return torch.cat([zero, counts.cumsum(0, dtype=torch.int64)])


def fit(ray_offsets: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Row pointers [R+1] without the samples of rays that end behind `capacity`, and whether each ray [R] is whole.

    >>> offsets, whole = fit(torch.tensor([0, 2, 5, 6]), capacity=4)
    >>> offsets.tolist(), whole.tolist()
    ([0, 2, 2, 2], [True, False, False])
    """
    used = torch.where(ray_offsets <= capacity, ray_offsets, 0).amax()
    return ray_offsets.minimum(used), ray_offsets[1:] <= capacity


def fill_rows(ray_offsets: Tensor, capacity: int) -> Tensor:
    """Row pointers [R+1+M] with M more rays, of at most FILLER_LENGTH samples, that own the rows up to `capacity`.

    So every row has a ray, whatever the number of samples, which then need not be known to the host.
    """
    steps = torch.arange(1, -(-capacity // FILLER_LENGTH) + 1, device=ray_offsets.device) * FILLER_LENGTH  # [M]
    return torch.cat([ray_offsets, (ray_offsets[-1] + steps).clamp(max=capacity)])


def dense_offsets(n_rays: int, n_samples: int, device: torch.device | str = "cpu") -> Tensor:
    """CSR row pointers of a dense [R, S] batch: every ray has `n_samples` samples.

    >>> dense_offsets(2, 3).tolist()
    [0, 3, 6]
    """
    return torch.arange(n_rays + 1, device=device) * n_samples


def sum_rays(values: Tensor, ray_index: Tensor, n_rays: int) -> Tensor:
    """Sum `values` [N, ...] over the samples of each ray, [R, ...]; 0 for an empty ray."""
    return values.new_zeros(n_rays, *values.shape[1:]).index_add(0, ray_index, values)


def exclusive_cumsum(values: Tensor, ray_offsets: Tensor, ray_index: Tensor) -> Tensor:
    """Sum of the earlier samples of the same ray, [N]. float64, since all rays share one running sum."""
    total = torch.cat([values.new_zeros(1, dtype=torch.float64), values.to(torch.float64).cumsum(0)])  # [N+1]
    return total[:-1] - total[ray_offsets[:-1]][ray_index]
