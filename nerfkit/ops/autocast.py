# SPDX-License-Identifier: Apache-2.0
"""What `torch.autocast` does to the inputs of an op; without it, mixed dtypes are an error.

| ops | under autocast |
|---|---|
| depthwise_conv1d, depthwise_conv2d, lltm_cell, lltm, mlp | all floating inputs in the autocast dtype, as F.conv2d |
| march, count_visible, compact_samples, composite, distortion | all floating inputs in float32: distances, long sums |
| spherical_harmonics | half directions in float32; the result in the requested dtype |
| grid_encode | table in the autocast dtype, its gradient in the table's own; half points in float32 |
| trilinear | features unchanged; half points in float32 |
| lazy_adam | all unchanged |

float64 is never cast.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEVICES = ("cpu", "cuda")
IN_AUTOCAST_DTYPE = ("depthwise_conv1d", "depthwise_conv2d", "lltm_cell", "lltm", "mlp")


def cast(op: str, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """`tensors` cast for `op` by the table above; unchanged where autocast is off."""
    device = tensors[0].device.type
    if device not in DEVICES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device) if op in IN_AUTOCAST_DTYPE else torch.float32
    return tuple(x.to(dtype) if x is not None and _casts(x) else x for x in tensors)


def dtype_of(x: Tensor) -> torch.dtype:
    """The dtype that autocast casts `x` to; its own where autocast is off."""
    kind = x.device.type
    on = kind in DEVICES and torch.is_autocast_enabled(kind) and _casts(x)
    return torch.get_autocast_dtype(kind) if on else x.dtype


def _casts(x: Tensor) -> bool:
    return x.is_floating_point() and x.dtype != torch.float64
