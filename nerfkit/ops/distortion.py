# SPDX-License-Identifier: Apache-2.0
"""The distortion loss of mip-NeRF 360 on packed samples."""

import math

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like
from nerfkit.ops.packed import exclusive_cumsum, ray_indices, sum_rays


def distortion(
    weights: Tensor, t_starts: Tensor, t_ends: Tensor, ray_offsets: Tensor, near: float, far: float, linear: float
) -> Tensor:
    r"""How far apart along each ray its weights are: small where one short stretch of the ray has all of them.

    Distances are normalised so that near and far count alike, 0 at `near` and 1 at `far`:

    .. math::
        g(t) = t / linear \;\text{for}\; t < linear, \;\text{else}\; 1 + \log(t / linear), \quad
        s(t) = \frac{g(t) - g(near)}{g(far) - g(near)} \\
        D_i = s(t^{end}_i) - s(t^{start}_i), \quad s_i = (s(t^{start}_i) + s(t^{end}_i)) / 2 \\
        L_r = \tfrac13 \sum_i w_i^2 D_i + \sum_i \sum_j w_i w_j |s_i - s_j|

    with the sums over the samples of one ray. As they are near to far, prefix sums replace the double sum.

    Args:
        weights: [N] of `nerfkit.ops.composite`.
        t_starts, t_ends: [N] ends of each sample's interval, distance along the ray in scene units; finite, >= 0.
        ray_offsets: [R+1] int64 CSR row pointers of the rays. Samples of a ray are ordered near to far.
        near, far: distances that become 0 and 1, scene units.
        linear: up to this distance s is proportional to the distance, beyond to its logarithm, scene units.

    Returns:
        losses [R]; 0 for an empty ray.

    dtype: all floating inputs share one; half types are summed in float32, prefix sums of the definition in float64.
    A non-finite value affects its own ray alone. Differentiable in weights.
    Raises ValueError for a shape, device, near, far or linear, TypeError for a dtype that does not fit, RuntimeError
    for row pointers that do not rise from 0 to N.
    Source: mip-NeRF 360 (arXiv:2111.12077), equation 15; prefix sums as in DVGO v2 (arXiv:2206.05085).

    >>> t = torch.arange(4.0)                                   # two samples of weight 1/2, an empty one between
    >>> distortion(torch.tensor([0.5, 0, 0.5]), t[:3], t[1:], torch.tensor([0, 3]), near=0.0, far=4.0, linear=4.0)
    tensor([0.2917])
    """
    weights, t_starts, t_ends = cast("distortion", weights, t_starts, t_ends)
    check(
        "distortion", FLOATS, weights=(weights, ("N",)), t_starts=(t_starts, ("N",)), t_ends=(t_ends, ("N",)),
        ray_offsets=(ray_offsets, ("R+1",), INT64),
    )  # fmt: skip
    if not 0 <= near < far < math.inf:
        raise ValueError(f"distortion: near and far must be finite with 0 <= near < far, got {near} and {far}")
    if not 0 < linear < math.inf:
        raise ValueError(f"distortion: linear must be positive and finite, got {linear}")
    t_starts, t_ends = t_starts.detach(), t_ends.detach()  # not differentiable, whatever the backend
    return implementation("distortion", weights)(weights, t_starts, t_ends, ray_offsets, near, far, linear)


@implements("distortion", "torch")
def _distortion_torch(weights, t_starts, t_ends, ray_offsets, near, far, linear):
    dtype = weights.dtype
    if dtype in (torch.float16, torch.bfloat16):
        weights, t_starts, t_ends = weights.float(), t_starts.float(), t_ends.float()
    ray_index = ray_indices(ray_offsets, weights.shape[0], "distortion")  # [N]
    first, last = (t / linear if t < linear else 1 + math.log(t / linear) for t in (near, far))
    units = (t / linear for t in (t_starts, t_ends))
    start, end = ((torch.where(x < 1, x, 1 + x.log()) - first) * (1 / (last - first)) for x in units)  # [N] each
    middle = (start + end) / 2  # [N]
    weights_before = exclusive_cumsum(weights, ray_offsets, ray_index)  # [N] float64
    moments_before = exclusive_cumsum(weights * middle, ray_offsets, ray_index)  # [N] float64
    apart = (middle * weights_before - moments_before).to(weights.dtype)  # [N]
    return sum_rays(weights * (weights * (end - start) / 3 + 2 * apart), ray_index, ray_offsets.shape[0] - 1).to(dtype)


implement_native("distortion", _distortion_torch)
native.fake("_distortion")(lambda weights, t_starts, t_ends, rays, *limits: weights.new_empty(rays.shape[0] - 1))
native.fake("_distortion_bwd")(lambda _, weights, *others: like(weights))
