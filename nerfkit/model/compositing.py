# SPDX-License-Identifier: Apache-2.0
"""Density, color and intervals of samples -> color, opacity and depth of rays."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.model.sampling import Samples
from nerfkit.ops import composite
from nerfkit.ops.render_rays import median_depth as median_of_samples


class Rendering(NamedTuple):
    """Rendered values of R rays."""

    color: Tensor  # [R, 3] in [0, 1]
    opacity: Tensor  # [R] in [0, 1]
    depth: Tensor  # [R] expected termination distance [model units]; 0 where the opacity is 0
    weights: Tensor | None = None  # [N] rendering weight of each sample
    samples: Samples | None = None  # that were composited
    median_depth: Tensor | None = None  # [R] where the transmittance falls to 0.5, if that is all there is of samples


def composite_samples(samples: Samples, density: Tensor, rgb: Tensor, background: Tensor) -> Rendering:
    """Composite samples over `background` [R, 3] or [3]."""
    n_rays, n_padding = samples.ray_complete.shape[0], samples.ray_offsets.shape[0] - 1 - samples.ray_complete.shape[0]
    if background.dim() == 2 and n_padding:
        background = F.pad(background, (0, 0, 0, n_padding))
    intervals = samples.t_starts, samples.t_ends, samples.ray_offsets
    color, opacity, depth, weights = composite(density, rgb, *intervals, background)
    return Rendering(color[:n_rays], opacity[:n_rays], depth[:n_rays], weights, samples)


def median_depth(rendering: Rendering) -> Tensor:
    """Distance [R] at which the transmittance of each ray falls to 0.5; 0 where it never does.

    Unlike the mean, it lies on one of two surfaces that a ray grazes.
    """
    weights, samples = rendering.weights, rendering.samples
    if rendering.median_depth is not None:
        return rendering.median_depth
    if weights is None or samples is None:
        raise UserError("the model renders no weights and samples, so there is no median depth")
    depth = median_of_samples(weights, samples.t_starts, samples.t_ends, samples.ray_offsets)
    return depth[: len(rendering.opacity)]  # without padding rays
