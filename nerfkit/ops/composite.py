# SPDX-License-Identifier: Apache-2.0
"""Volume rendering of packed samples."""

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like
from nerfkit.ops.packed import exclusive_cumsum, ray_indices, sum_rays

# exp(-50) is below float64's epsilon: a larger optical thickness changes no output, but could overflow sums.
MAX_THICKNESS = 50.0
MIN_OPACITY = 1e-10


def composite(
    density: Tensor, rgb: Tensor, t_starts: Tensor, t_ends: Tensor, ray_offsets: Tensor, background: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Colour, opacity and depth of rays from their samples.

    .. math::
        \delta_i = t^{end}_i - t^{start}_i, \quad T_i = \exp(-\sum_{j<i} \sigma_j \delta_j), \quad
        w_i = T_i (1 - \exp(-\sigma_i \delta_i)) \\
        color = \sum_i w_i c_i + (1 - \sum_i w_i)\, background, \quad opacity = \sum_i w_i, \quad
        depth = \sum_i w_i \tfrac{t^{start}_i + t^{end}_i}{2} / \sum_i w_i

    with the sums over the samples of one ray, near to far.

    Args:
        density: [N] extinction per unit of length, >= 0.
        rgb: [N, 3] colour of each sample.
        t_starts, t_ends: [N] ends of each sample's interval, distance along the ray in scene units.
        ray_offsets: [R+1] int64 CSR row pointers of the rays.
        background: [R, 3], or [3] for all rays: the colour behind the last sample.

    Returns:
        color [R, 3], opacity [R] in [0, 1], depth [R] (expected termination distance; 0 where the opacity
        is 0) and weights [N]. An empty ray has the background's colour.

    dtype: all floating inputs share one; half types are summed in float32. Optical thickness is summed within
    each ray, by the definition over all rays at once and so in float64. A non-finite value affects its own ray alone.
    Differentiable in density, rgb and background.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit, RuntimeError for row
    pointers that do not rise from 0 to N.
    Source: N. Max, "Optical models for direct volume rendering", 1995; NeRF (arXiv:2003.08934), equation 3.

    >>> half = torch.log(torch.tensor(2.0))                  # thickness of transmittance 1/2
    >>> color, opacity, depth, weights = composite(
    ...     density=half.expand(3), rgb=torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
    ...     t_starts=torch.tensor([0.0, 1, 2]), t_ends=torch.tensor([1.0, 2, 3]),
    ...     ray_offsets=torch.tensor([0, 3]), background=torch.zeros(3))
    >>> weights
    tensor([0.5000, 0.2500, 0.1250])
    >>> color, opacity
    (tensor([[0.5000, 0.2500, 0.1250]]), tensor([0.8750]))
    >>> depth                                                # (0.5*0.5 + 0.25*1.5 + 0.125*2.5) / 0.875
    tensor([1.0714])
    """
    density, rgb, t_starts, t_ends, background = cast("composite", density, rgb, t_starts, t_ends, background)
    is_one_color = isinstance(background, Tensor) and background.dim() == 1
    check(
        "composite", FLOATS, density=(density, ("N",)), rgb=(rgb, ("N", 3)), t_starts=(t_starts, ("N",)),
        t_ends=(t_ends, ("N",)), ray_offsets=(ray_offsets, ("R+1",), INT64),
        background=(background, (3,) if is_one_color else ("R", 3)),
    )  # fmt: skip
    t_starts, t_ends = t_starts.detach(), t_ends.detach()  # not differentiable, whatever the backend
    run = implementation("composite", density)
    color, *of_density = run(density, rgb, t_starts, t_ends, ray_offsets, background)
    if color.requires_grad and not density.requires_grad:  # a fused op has one answer for all of its results
        of_density = [x.detach() for x in of_density]
    return color, *of_density


@implements("composite", "torch")
def _composite_torch(density, rgb, t_starts, t_ends, ray_offsets, background):
    dtype = density.dtype
    if dtype in (torch.float16, torch.bfloat16):
        density, rgb, t_starts, t_ends, background = (x.float() for x in (density, rgb, t_starts, t_ends, background))
    n_rays = ray_offsets.shape[0] - 1
    ray_index = ray_indices(ray_offsets, density.shape[0], "composite")  # [N]
    thickness = density * (t_ends - t_starts)  # [N]
    thickness = torch.where(thickness > MAX_THICKNESS, MAX_THICKNESS, thickness)  # clamp's gradient of NaN is 0
    before = exclusive_cumsum(thickness, ray_offsets, ray_index).to(density.dtype)  # [N]
    weights = torch.exp(-before) * -torch.expm1(-thickness)  # [N]
    middles = (t_starts + t_ends) / 2  # [N]
    seen = torch.cat([rgb, torch.ones_like(rgb[:, :1]), middles[:, None]], dim=1)  # [N, 5]
    sums = sum_rays(weights[:, None] * seen, ray_index, n_rays)  # [R, 5]
    opacity = sums[:, 3]  # [R]
    color = sums[:, :3] + (1 - opacity)[:, None] * background  # [R, 3]
    depth = sums[:, 4] / opacity.clamp(min=MIN_OPACITY)  # [R]
    return color.to(dtype), opacity.to(dtype), depth.to(dtype), weights.to(dtype)


def _composite_backward(grads, arguments, _, needs_grad):
    density, rgb, background = torch.ops.nerfkit._composite_bwd(*grads, *arguments)
    if needs_grad[5] and arguments[5].dim() == 1:
        background = background.sum(0)
    return density, rgb, None, None, None, background


implement_native("composite", _composite_torch, backward=_composite_backward)


@native.fake("_composite")
def _(density, rgb, t_starts, t_ends, ray_offsets, background):
    n_rays = ray_offsets.shape[0] - 1
    return (*(density.new_empty(shape) for shape in ((n_rays, 3), n_rays, n_rays, density.shape)),)


native.fake("_composite_bwd")(lambda _1, _2, _3, _4, density, rgb, t_starts, t_ends, ray_offsets, background: (
    like(density), like(rgb), rgb.new_empty(ray_offsets.shape[0] - 1, 3)
))  # fmt: skip
