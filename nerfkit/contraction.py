# SPDX-License-Identifier: Apache-2.0
"""Unbounded space in a cube: the contraction of mip-NeRF 360 with the maximum norm, and edges of distances.

With u a position relative to a box, whose faces are at +-1, and m its largest coordinate:

    c = u                  inside the box (m <= 1)
    c = (2 - 1/m) u / m    outside: between the box and the cube [-2, 2]^3, whose faces are at infinity

Letters: N positions, L distances of t_edges.
"""

import torch
from torch import Tensor

from nerfkit.limits import edge_distances
from nerfkit.ops.checks import POSITION_FLOATS, check
from nerfkit.ops.march import FARTHEST


def contract(positions: Tensor, box: Tensor) -> Tensor:
    """Contract `positions` [N, 3] in model units to [N, 3] in [-2, 2]; `box` [2, 3] is what is not contracted.

    float32 or float64; differentiable, with finite gradients everywhere, at infinity too.

    >>> box = torch.tensor([[-1.0, -1, -1], [1, 1, 1]])
    >>> contract(torch.tensor([[0.5, 0, -1], [4, 2, 0]]), box)
    tensor([[ 0.5000,  0.0000, -1.0000],
            [ 1.7500,  0.8750,  0.0000]])
    """
    check("contract", POSITION_FLOATS, positions=(positions, ("N", 3)), box=(box, (2, 3)))
    centre, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2  # [3] each
    u = ((positions - centre) / half).clamp(-FARTHEST, FARTHEST)  # [N, 3] finite at infinity too
    largest = u.abs().amax(-1, keepdim=True).clamp(min=1)  # [N, 1]
    return u / largest * (2 - 1 / largest)  # of order 1 throughout, so that gradients neither overflow nor vanish early


def uncontract(contracted: Tensor, box: Tensor) -> Tensor:
    """Positions [N, 3] in model units of `contracted` [N, 3]: the inverse of `contract`.

    A coordinate of +-2, at infinity, becomes 2 / eps half sides from the centre of the box, eps that of the dtype.

    >>> box = torch.tensor([[-1.0, -1, -1], [1, 1, 1]])
    >>> uncontract(torch.tensor([[0.5, 0, -1], [1.75, 0.875, 0]]), box)
    tensor([[ 0.5000,  0.0000, -1.0000],
            [ 4.0000,  2.0000,  0.0000]])
    """
    check("uncontract", POSITION_FLOATS, contracted=(contracted, ("N", 3)), box=(box, (2, 3)))
    centre, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2  # [3] each
    largest = contracted.abs().amax(-1, keepdim=True).clamp(min=1)  # [N, 1]
    gap = (2 - largest).clamp(min=torch.finfo(contracted.dtype).eps / 2)  # [N, 1] to the faces at infinity
    return contracted / largest / gap * half + centre


def exponential_edges(near: float, far: float, step_size: float, cone_angle: float) -> Tensor:
    """Distances [L] float64 in model units for `nerfkit.ops.march`: equal steps at first, then in proportion to t.

    T_0 = near and T_{k+1} = T_k + max(step_size, cone_angle T_k), up to the first that is not below far, and one more:
    the interval ends of a ray with jitter 1 begin at T_1. So all rays' intervals cover T_1 to far, those without jitter
    near to far.

    Args:
        near, far: model units, 0 <= near < far, finite.
        step_size: shortest interval, model units.
        cone_angle: length of an interval per distance; 0 for equal steps.

    Raises ValueError for other values, and for more than MAX_EDGES distances.

    >>> exponential_edges(0.0, 8.0, step_size=1.0, cone_angle=0.5)
    tensor([ 0.0000,  1.0000,  2.0000,  3.0000,  4.5000,  6.7500, 10.1250, 15.1875],
           dtype=torch.float64)
    """
    return torch.tensor(edge_distances(near, far, step_size, cone_angle), dtype=torch.float64)
