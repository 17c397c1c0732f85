# SPDX-License-Identifier: Apache-2.0
"""Early termination of rays of packed samples."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, cast, check
from nerfkit.ops.composite import MAX_THICKNESS
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.packed import check_rises, exclusive_cumsum, ray_indices, sum_before, sum_rays


def count_visible(
    density: Tensor, t_starts: Tensor, t_ends: Tensor, ray_offsets: Tensor, early_stop_transmittance: float
) -> Tensor:
    r"""Samples of each ray up to where its transmittance has fallen to `early_stop_transmittance`.

    Sample i counts if, summed over the samples of its ray before it,

    .. math::
        T_i = \exp(-\sum_{j<i} \min(\sigma_j (t^{end}_j - t^{start}_j), 50)) > early\_stop\_transmittance

    Args:
        density: [N] extinction per unit of length, >= 0.
        t_starts, t_ends: [N] ends of each sample's interval, distance along the ray in scene units.
        ray_offsets: [R+1] int64 CSR row pointers of the rays. Padding rows after the last ray's are ignored.
        early_stop_transmittance: from 0, which counts all samples, to 1, which counts none.

    Returns:
        counts [R] int64.

    dtype: all floating inputs share one; half types are summed in float32. Nothing is differentiable.
    Raises ValueError for a shape, device or early_stop_transmittance, TypeError for a dtype that does not fit,
    RuntimeError for row pointers that do not rise from 0.
    Source: early ray termination; M. Levoy, "Efficient Ray Tracing of Volume Data", 1990.

    >>> half = torch.log(torch.tensor(2.0))                  # thickness of transmittance 1/2
    >>> t = torch.arange(5.0)
    >>> count_visible(half.expand(5), t, t + 1, torch.tensor([0, 4, 5]), 0.2)   # 1, 0.5, 0.25, 0.125; 1
    tensor([3, 1])
    """
    density, t_starts, t_ends = cast("count_visible", density, t_starts, t_ends)
    check(
        "count_visible", FLOATS, density=(density, ("N",)), t_starts=(t_starts, ("N",)), t_ends=(t_ends, ("N",)),
        ray_offsets=(ray_offsets, ("R+1",), INT64),
    )  # fmt: skip
    if not 0 <= early_stop_transmittance <= 1:
        raise ValueError(f"count_visible: early_stop_transmittance must be from 0 to 1, got {early_stop_transmittance}")
    with torch.no_grad():
        return implementation("count_visible", density)(
            density, t_starts, t_ends, ray_offsets, early_stop_transmittance
        )


@implements("count_visible", "torch")
def _count_visible_torch(density, t_starts, t_ends, ray_offsets, early_stop_transmittance):
    if density.dtype in (torch.float16, torch.bfloat16):
        density, t_starts, t_ends = density.float(), t_starts.float(), t_ends.float()
    n_samples, n_rays = density.shape[0], ray_offsets.shape[0] - 1
    check_rises("count_visible", ray_offsets, n_samples, padded=True)
    ray_offsets = F.pad(ray_offsets, (0, 1), value=n_samples)  # [R+2] padding rows: one more ray
    ray_index = ray_indices(ray_offsets, n_samples)  # [N]
    thickness = (density * (t_ends - t_starts)).clamp(max=MAX_THICKNESS)  # [N]
    before = exclusive_cumsum(thickness, ray_offsets, ray_index).to(density.dtype)  # [N]
    limit = -math.log(early_stop_transmittance) if early_stop_transmittance > 0 else math.inf
    hidden = ~(before < limit)  # [N], and so are all samples after a hidden one
    hidden |= sum_before(hidden.long(), ray_offsets, ray_index) > 0
    return sum_rays((~hidden).long(), ray_index, n_rays + 1)[:n_rays]


implements("count_visible", "cpp", "cuda")(lambda *arguments: torch.ops.nerfkit._count_visible(*arguments))
native.fake("_count_visible")(lambda x, t_starts, t_ends, rays, least: rays.new_empty(rays.shape[0] - 1))
