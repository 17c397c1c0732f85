# SPDX-License-Identifier: Apache-2.0
"""Trilinear interpolation of eight corner features."""

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like


def trilinear(feats: Tensor, points: Tensor) -> Tensor:
    r"""Interpolate the features at the corners of N cells.

    .. math::
        u = (p + 1) / 2, \quad
        out_n = \sum_{x, y, z \in \{0, 1\}} feats_{n,\, 4x + 2y + z}
                \prod_{a \in \{x, y, z\}} \left(a\, u_a + (1 - a)(1 - u_a)\right)

    Args:
        feats: [N, 8, F] features of the corners; corner index 4 ix + 2 iy + iz, x the slowest.
        points: [N, 3] position in each cell, -1 to 1 along each axis. A point outside extrapolates.

    Returns:
        [N, F] in the dtype of feats.

    dtype: feats of any floating type; points float64 with float64 feats, float32 otherwise. Half types are summed
    in float32. Differentiable in feats and points.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit.
    Source: the trilinear interpolation of instant-ngp (arXiv:2201.05989), section 3.

    >>> feats = torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1]).reshape(1, 8, 1)      # 0 at x = -1, 1 at x = +1
    >>> [trilinear(feats, torch.tensor([[x, 0.3, -0.7]])).item() for x in (-1.0, 0.0, 0.5)]
    [0.0, 0.5, 0.75]
    """
    (points,) = cast("trilinear", points)
    is_double = isinstance(feats, Tensor) and feats.dtype == torch.float64
    of_points = (torch.float64,) if is_double else (torch.float32,)
    check("trilinear", FLOATS, feats=(feats, ("N", 8, "F")), points=(points, ("N", 3), of_points))
    return implementation("trilinear", feats)(feats, points)


def corner_weights(u: Tensor) -> Tensor:
    """Weights [..., 8] of a cell's corners for positions `u` [..., 3] in [0, 1]; corner 4 ix + 2 iy + iz."""
    x, y, z = torch.stack([1 - u, u], dim=-1).unbind(-2)  # each [..., 2]
    return (x[..., :, None, None] * y[..., None, :, None] * z[..., None, None, :]).flatten(-3)


@implements("trilinear", "torch")
def _trilinear_torch(feats, points):
    weights = corner_weights((points + 1) / 2)  # [N, 8]
    wide = feats.to(weights.dtype)  # [N, 8, F]
    with torch.autocast(feats.device.type, enabled=False):  # autocast would round the features for bmm
        return torch.bmm(weights[:, None, :], wide)[:, 0].to(feats.dtype)


def _trilinear_backward(grads, arguments, _, needs_grad):
    return torch.ops.nerfkit._trilinear_bwd(*grads, *arguments, *needs_grad)


implement_native("trilinear", _trilinear_torch, backward=_trilinear_backward)
native.fake("_trilinear")(lambda feats, points: feats.new_empty(feats.shape[0], feats.shape[2]))
native.fake("_trilinear_bwd")(lambda _, feats, points, *to: (like(feats, to[0]), like(points, to[1])))
