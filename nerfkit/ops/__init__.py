# SPDX-License-Identifier: Apache-2.0
"""The ops: one file each, with contract, PyTorch definition and public function.

Letters used throughout: R rays, N packed samples, S samples per ray, B batch, C channels, F features per level,
L levels, H state, I input; ``t`` a distance along a ray. Row pointers are checked on a CPU alone; on a GPU, where
a check would synchronize, they have to be right.
"""

from nerfkit.ops.compact_samples import compact_samples
from nerfkit.ops.composite import composite
from nerfkit.ops.count_visible import count_visible
from nerfkit.ops.depthwise_conv1d import depthwise_conv1d
from nerfkit.ops.depthwise_conv2d import depthwise_conv2d
from nerfkit.ops.dispatch import BackendError, Resolved, available, backend, choices, resolve, resolved, set_backend
from nerfkit.ops.distortion import distortion
from nerfkit.ops.grid_encode import grid_encode
from nerfkit.ops.lazy_adam import lazy_adam
from nerfkit.ops.lltm import lltm
from nerfkit.ops.lltm_cell import lltm_cell
from nerfkit.ops.march import march
from nerfkit.ops.mlp import mlp
from nerfkit.ops.render_rays import render_rays
from nerfkit.ops.spherical_harmonics import spherical_harmonics
from nerfkit.ops.trilinear import trilinear

__all__ = [
    "BackendError", "Resolved", "available", "backend", "choices", "resolve", "resolved", "set_backend",
    "compact_samples", "composite", "count_visible", "depthwise_conv1d", "depthwise_conv2d", "distortion",
    "grid_encode", "lazy_adam", "lltm", "lltm_cell", "march", "mlp", "render_rays", "spherical_harmonics", "trilinear",
]  # fmt: skip
