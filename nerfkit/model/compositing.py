# SPDX-License-Identifier: Apache-2.0
"""Density, color and intervals of samples -> color, opacity and depth of rays."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.model.sampling import Samples
from nerfkit.ops import composite
from nerfkit.ops.packed import ray_indices, sum_before


class Rendering(NamedTuple):
    """Rendered values of R rays."""

    color: Tensor  # [R, 3] in [0, 1]
    opacity: Tensor  # [R] in [0, 1]
    depth: Tensor  # [R] expected termination distance [scene units]; 0 where the opacity is 0
    weights: Tensor | None = None  # [N] rendering weight of each sample
    samples: Samples | None = None  # that were composited


def composite_samples(samples: Samples, density: Tensor, rgb: Tensor, background: Tensor) -> Rendering:
    """Composite samples over `background` [R, 3] or [3]."""
    n_rays, n_padding = samples.ray_complete.shape[0], samples.ray_offsets.shape[0] - 1 - samples.ray_complete.shape[0]
    if background.dim() == 2 and n_padding:
        background = F.pad(background, (0, 0, 0, n_padding))
    color, opacity, depth, weights = composite(
        density, rgb, samples.t_starts, samples.t_ends, samples.ray_offsets, background
    )
    return Rendering(color[:n_rays], opacity[:n_rays], depth[:n_rays], weights, samples)


def median_depth(rendering: Rendering, transmittance: float = 0.5) -> Tensor:
    """Distance [R] at which the transmittance of each ray falls to a value; 0 where it never does.

    Unlike the mean, it lies on one of two surfaces that a ray grazes. Density is constant within an interval, so the
    place in the interval is exact.
    """
    weights, samples = rendering.weights, rendering.samples
    if weights is None or samples is None:
        raise UserError("the model renders no weights and samples, so there is no median depth")
    n_rays, n_samples = rendering.opacity.shape[0], weights.shape[0]
    weights = weights.double()  # as all rays share one sum
    ray_index = ray_indices(samples.ray_offsets, n_samples)  # [N]
    before = 1 - sum_before(weights, samples.ray_offsets, ray_index)  # [N] transmittance
    after = before - weights
    falls = (before > transmittance) & (after <= transmittance) & (ray_index < n_rays)
    # Of an interval: after = before * exp(-x), and the transmittance is reached at this share of x.
    optical = torch.log(before[falls] / after[falls].clamp(min=1e-12))
    share = torch.log(before[falls] / transmittance) / optical
    start, end = samples.t_starts[falls].double(), samples.t_ends[falls].double()
    depth = torch.zeros(n_rays, dtype=torch.float64, device=weights.device)
    # Rounding could let two intervals of a ray qualify: the nearer one counts, written last.
    return depth.index_put((ray_index[falls].flip(0),), (start + share * (end - start)).flip(0)).float()
