# SPDX-License-Identifier: Apache-2.0
"""Rays through a radiance field to colors, for images alone: a chain of ops, or one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import check
from nerfkit.ops.composite import composite
from nerfkit.ops.count_visible import count_visible
from nerfkit.ops.depthwise_conv1d import depthwise_conv1d
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.grid_encode import check_levels, grid_encode
from nerfkit.ops.lltm import lltm
from nerfkit.ops.march import FARTHEST, check_steps, march
from nerfkit.ops.mlp import mlp, n_parameters, why_not_on
from nerfkit.ops.packed import offsets_from_counts, ray_indices, sum_before
from nerfkit.ops.spherical_harmonics import N_HARMONICS, spherical_harmonics

FLOAT32, FIELD_FLOATS = (torch.float32,), (torch.float32, torch.float16)
N_GEOMETRY, N_STATE = 16, 16  # outputs of the density network; units of the LLTM: of cuda/render_rays/args.h, too
MAX_LOG_DENSITY = 30.0  # of the same file
WIDEST, MOST_TAPS, FEATURES = 64, 7, (2, 4)  # sizes that the kernel takes: hidden units and C, taps, F


def render_rays(
    origins: Tensor, directions: Tensor, occupancy: Tensor, box: Tensor, table: Tensor, resolutions: Sequence[int],
    max_entries: int, density_net: Tensor, color_net: Tensor, hidden: int, background: Tensor, threshold: Tensor,
    step: float | None, near: float = 0.0, far: float = math.inf, t_edges: Tensor | None = None,
    conv_weight: Tensor | None = None, conv_bias: Tensor | None = None, lltm_weight: Tensor | None = None,
    lltm_bias: Tensor | None = None, early_stop_transmittance: float = 1e-3, density_bias: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Color, opacity, mean and median depth of rays through a field of a feature grid and two networks.

    The samples of a ray are the intervals of `march`, near to far, with features :math:`f_i` of their middles by
    `grid_encode` and

    .. math::
        (g_{i,1}, ..., g_{i,16}) = density\_net(f_i), \quad
        \sigma_i = \exp(\min(g_{i,1} + density\_bias,\; 30)), \quad
        \alpha_i = 1 - \exp(-\sigma_i (t^{end}_i - t^{start}_i))

    They end where the transmittance falls to `early_stop_transmittance`, as in `count_visible`; of these, samples with
    :math:`\alpha_i < threshold` are left out. Along those that are kept, numbered anew,

    .. math::
        e_i = depthwise\_conv1d(f)_i, \quad h_i = lltm(e)_i, \quad
        c_i = sigmoid(color\_net(g_i,\; spherical\_harmonics(direction),\; e_i,\; h_i))

    and `composite` of :math:`\sigma_i` and :math:`c_i` gives color, opacity and depth; median depth is where the
    transmittance falls to 1/2. Without a convolution the LLTM reads :math:`f`, and color_net no :math:`e`; without an
    LLTM, no :math:`h`.

    Args:
        origins, directions, occupancy, box, step, near, far, t_edges: as of `march`.
        table, resolutions, max_entries: as of `grid_encode`; its points are positions in the box, 0 to 1, or with
            t_edges (c + 2) / 4 of contracted positions c.
        density_net: [P] parameters as of `mlp` with widths (C, hidden, 16), C the features of a point.
        color_net: [P'] with widths (32 + C if there is a convolution + 16 if there is an LLTM, hidden, hidden, 3).
        background: [R, 3], or [3] for all rays.
        threshold: [] float32, opacity.
        conv_weight: [C, K]; conv_bias: [C]. lltm_weight: [48, 16 + C]; lltm_bias: [48].

    Returns:
        color [R, 3], opacity [R], depth [R] and median depth [R] in scene units, float32; depths are 0 where the
        opacity is 0, the median also where it is less than 1/2. A ray without samples has the background's color.

    dtype: rays, box, background and t_edges float32; table and weights all float32, or all float16, summed in float32.
    Not differentiable. The definition is the chain of these ops, each on its own backend; the kernel of a GPU keeps all
    between rays and pixels to itself. It takes float16, 2 or 4 features a level, C, hidden <= 64 and K <= 7
    (`why_no_kernel`); the backend "auto" runs the chain for others. There is no backend "cpp". A ray of more than 2^20
    intervals is an error of the chain, and is empty by the kernel.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit, BackendError where the backend is
    "cuda" and the kernel does not take the sizes.
    Source: one kernel a frame, in the manner of instant-ngp's fused rendering (2025); NeRF (arXiv:2003.08934).

    >>> fog = render_rays(
    ...     torch.tensor([[-1.0, 0.5, 0.5], [-1, 2, 2]]), torch.tensor([[1.0, 0, 0], [1, 0, 0]]),  # the second misses
    ...     torch.ones(1, 1, 1, dtype=torch.bool), torch.tensor([[0.0, 0, 0], [1, 1, 1]]),
    ...     torch.zeros(8, 2), [1], 8, torch.zeros(2 * 1 + 1 + 32), torch.zeros(32 + 1 + 2 + 6), 1,
    ...     torch.zeros(3), torch.tensor(0.0), step=0.5)
    >>> fog[0], fog[1]                                        # density exp(0) along 1: opacity 1 - 1/e, color 1/2
    (tensor([[0.3161, 0.3161, 0.3161],
            [0.0000, 0.0000, 0.0000]]), tensor([0.6321, 0.0000]))
    >>> fog[3]                                                # half of the light is left log(2) behind the face at 1
    tensor([1.6931, 0.0000])
    """
    is_one_color = isinstance(background, Tensor) and background.dim() == 1
    sizes = check(
        "render_rays", FIELD_FLOATS, table=(table, ("T", "F")), density_net=(density_net, ("P",)),
        color_net=(color_net, ("P'",)), origins=(origins, ("R", 3), FLOAT32),
        directions=(directions, ("R", 3), FLOAT32), box=(box, (2, 3), FLOAT32),
        occupancy=(occupancy, ("X", "Y", "Z"), (torch.bool,)), threshold=(threshold, (), FLOAT32),
        background=(background, (3,) if is_one_color else ("R", 3), FLOAT32),
        t_edges=t_edges is not None and (t_edges, ("L",), FLOAT32),
    )  # fmt: skip
    check_steps("render_rays", step, near, far, t_edges)
    if not 0 <= early_stop_transmittance <= 1:
        raise ValueError(f"render_rays: early_stop_transmittance must be 0 to 1, got {early_stop_transmittance}")
    resolutions = tuple(resolutions)
    check_levels(resolutions, max_entries, table.shape[0])
    channels, has_conv, has_lltm = len(resolutions) * sizes["F"], conv_weight is not None, lltm_weight is not None
    n_context = channels * has_conv + N_STATE * has_lltm
    widths = (channels, hidden, N_GEOMETRY), (N_GEOMETRY + N_HARMONICS + n_context, hidden, hidden, 3)
    weights = {"density_net": (density_net, (n_parameters(widths[0]),))}
    weights["color_net"] = color_net, (n_parameters(widths[1]),)
    if has_conv:
        weights |= {"conv_weight": (conv_weight, (channels, "K")), "conv_bias": (conv_bias, (channels,))}
    if has_lltm:
        gates = 3 * N_STATE
        weights |= {"lltm_weight": (lltm_weight, (gates, N_STATE + channels)), "lltm_bias": (lltm_bias, (gates,))}
    taps = check("render_rays", FIELD_FLOATS, table=(table, ("T", "F")), **weights).get("K", 0)
    unfit = why_no_kernel(origins.device, table.dtype, sizes["F"], channels, hidden, taps)
    run = implementation("render_rays", origins, unfit)
    with torch.no_grad():
        return run(
            origins, directions, occupancy, box, t_edges, table, resolutions, max_entries, density_net, color_net,
            hidden, conv_weight, conv_bias, lltm_weight, lltm_bias, background, threshold, step, near, far,
            early_stop_transmittance, density_bias,
        )  # fmt: skip


def why_no_kernel(
    device: torch.device | str, dtype: torch.dtype, n_features: int, channels: int, hidden: int, taps: int = 0
) -> str | None:
    """Why the kernel of a GPU does not take a field of these sizes; None if it does.

    >>> why_no_kernel("cuda", torch.float16, 8, 32, 64)
    'its kernel takes 2 or 4 features a level, got 8'
    """
    if torch.device(device).type != "cuda":
        return None
    if dtype != torch.float16:
        return f"its kernel takes float16, got {str(dtype).removeprefix('torch.')}"
    if n_features not in FEATURES:
        return f"its kernel takes 2 or 4 features a level, got {n_features}"
    if max(channels, hidden) > WIDEST:
        return f"its kernel takes at most {WIDEST} features of a point and hidden units, got {channels} and {hidden}"
    if taps > MOST_TAPS or (taps and taps % 2 == 0):
        return f"its kernel takes an odd number of taps, at most {MOST_TAPS}, got {taps}"
    return why_not_on(torch.device(device).index)


@implements("render_rays", "torch")
def _render_rays_torch(
    origins, directions, occupancy, box, t_edges, table, resolutions, max_entries, density_net, color_net, hidden,
    conv_weight, conv_bias, lltm_weight, lltm_bias, background, threshold, step, near, far, early_stop_transmittance,
    density_bias,
):  # fmt: skip
    t_starts, t_ends, ray_offsets = march(origins, directions, occupancy, box, step, near, far, t_edges=t_edges)
    ray_index = ray_indices(ray_offsets, t_starts.shape[0])  # [N]
    middles = ((t_starts + t_ends) / 2)[:, None]  # [N, 1]
    points = _unit_positions(origins[ray_index] + directions[ray_index] * middles, box, t_edges is not None)
    features = grid_encode(points, table, resolutions, max_entries)  # [N, C]
    geometry = mlp(density_net, (features.shape[1], hidden, N_GEOMETRY), features)  # [N, 16]
    density = torch.exp((geometry[:, 0].float() + density_bias).clamp(max=MAX_LOG_DENSITY))  # [N]

    visible = count_visible(density, t_starts, t_ends, ray_offsets, early_stop_transmittance)  # [R]
    row = torch.arange(t_starts.shape[0], device=ray_index.device)  # [N]
    is_kept = row < (ray_offsets[:-1] + visible)[ray_index]
    is_kept &= ~(-torch.expm1(-density * (t_ends - t_starts)) < threshold)  # NaN is kept: it has to be seen
    ray_offsets = offsets_from_counts(is_kept)[ray_offsets]  # [R+1]
    density, geometry, features, ray_index, t_starts, t_ends = (
        x[is_kept] for x in (density, geometry, features, ray_index, t_starts, t_ends)
    )

    inputs = [geometry, spherical_harmonics(directions, ray_index, geometry.dtype)]
    if conv_weight is not None:
        features = depthwise_conv1d(features, conv_weight, conv_bias, ray_offsets)
        inputs.append(features)
    if lltm_weight is not None:
        h0, c0 = features.new_zeros(2, ray_offsets.shape[0] - 1, N_STATE)  # [R, 16] each
        inputs.append(lltm(features, ray_offsets, lltm_weight, lltm_bias, h0, c0)[0])
    widths = (sum(x.shape[1] for x in inputs), hidden, hidden, 3)
    rgb = mlp(color_net, widths, *inputs).float().sigmoid()  # [N, 3]
    color, opacity, depth, weights = composite(density, rgb, t_starts, t_ends, ray_offsets, background)
    return color, opacity, depth, median_depth(weights, t_starts, t_ends, ray_offsets)


def median_depth(weights: Tensor, t_starts: Tensor, t_ends: Tensor, ray_offsets: Tensor) -> Tensor:
    """Distance [R] float32 at which the transmittance of each ray falls to 1/2; 0 where it never does.

    `weights` [N] as of `composite`. Density is constant within an interval, so the place in the interval is exact.
    """
    weights = weights.double()  # as all rays share one sum
    ray_index = ray_indices(ray_offsets, weights.shape[0])  # [N]
    before = 1 - sum_before(weights, ray_offsets, ray_index)  # [N] transmittance
    after = before - weights
    falls = (before > 0.5) & (after <= 0.5)
    # Of an interval: after = before * exp(-x), and 1/2 is reached at this share of x.
    optical = torch.log(before[falls] / after[falls].clamp(min=1e-12))
    share = torch.log(before[falls] * 2) / optical
    start, end = t_starts[falls].double(), t_ends[falls].double()
    depth = torch.zeros(ray_offsets.shape[0] - 1, dtype=torch.float64, device=weights.device)
    # Rounding could let two intervals of a ray qualify: the nearer one counts, written last.
    return depth.index_put((ray_index[falls].flip(0),), (start + share * (end - start)).flip(0)).float()


def _unit_positions(positions: Tensor, box: Tensor, contracted: bool) -> Tensor:
    """Points [N, 3] in [0, 1] of the feature grid, of world positions [N, 3]; contracted as in nerfkit.contraction."""
    if not contracted:
        return (positions - box[0]) / (box[1] - box[0])
    centre, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2  # [3] each
    u = ((positions - centre) / half).clamp(-FARTHEST, FARTHEST)
    largest = u.abs().amax(-1, keepdim=True).clamp(min=1)  # [N, 1]
    return (u / largest * (2 - 1 / largest) + 2) / 4


@implements("render_rays", "cuda")
def _render_rays_cuda(origins, directions, occupancy, *others):
    *field, step, near, far, early_stop_transmittance, density_bias = others
    limit = -math.log(early_stop_transmittance) if early_stop_transmittance > 0 else math.inf
    occupancy = occupancy if occupancy.numel() else occupancy.new_zeros(1, 1, 1)
    distances = 0.0 if step is None else step, near, far, limit
    return torch.ops.nerfkit._render_rays(origins, directions, occupancy, *field, *distances, density_bias)


native.fake("_render_rays")(
    lambda origins, *_: (*(origins.new_empty(shape) for shape in ((len(origins), 3), *[len(origins)] * 3)),)
)
