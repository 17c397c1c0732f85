# SPDX-License-Identifier: Apache-2.0
"""Real spherical harmonics of ray directions, for each ray or each sample."""

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, POSITION_FLOATS, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native

N_HARMONICS = 16  # of degrees 0 to 3
# Factors of the harmonics.
ONE, TWO, PLANE = 0.4886025119029199, 1.0925484305920792, 0.5462742152960396
OUTER, MIXED, INNER, UPPER = 0.5900435899266435, 2.890611442640554, 0.4570457994644657, 1.445305721320277
POLAR_2, POLAR_3 = 0.9461746957575601, 0.3731763325901154  # of m = 0


def spherical_harmonics(
    directions: Tensor, ray_index: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""Real spherical harmonics of degrees 0 to 3, orthonormal over the sphere.

    For degree l and order m, :math:`-l \le m \le l`, with k = \|m\| and P the Legendre polynomials, column
    :math:`l^2 + l + m` is

    .. math::
        Y_l^m(x, y, z) = (-1)^k \sqrt{\tfrac{2l + 1}{4\pi} \tfrac{(l - k)!}{(l + k)!}}\; P_l^{(k)}(z)
        \begin{cases} \sqrt{2}\, \mathrm{Im} (x + iy)^k & m < 0 \\ 1 & m = 0 \\
        \sqrt{2}\, \mathrm{Re} (x + iy)^k & m > 0 \end{cases}

    Args:
        directions: [R, 3] of unit length; they are not normalized.
        ray_index: [N] int64 ray of each row of the result, 0 <= ray_index < R; without it a row for each ray.
            On a CPU any other is an error; on a GPU, where a check would synchronize, it is a precondition.
        dtype: of the result; that of directions if None.

    Returns:
        [N, 16], or [R, 16] without ray_index.

    dtype: directions float32 or float64, computed in that; the result of any floating type.
    Differentiable in directions, to any order.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit, IndexError or RuntimeError for a
    ray_index out of range on a CPU.
    Source: P. Sloan, "Efficient Spherical Harmonic Evaluation", 2013.

    >>> up_and_right = torch.tensor([[0.0, 0, 1], [1, 0, 0]])
    >>> spherical_harmonics(up_and_right)[:, :4]                        # sqrt(1 / 4 pi), sqrt(3 / 4 pi) (-y, z, -x)
    tensor([[ 0.2821, -0.0000,  0.4886, -0.0000],
            [ 0.2821, -0.0000,  0.0000, -0.4886]])
    >>> spherical_harmonics(up_and_right, torch.tensor([0, 0, 1]), torch.float16)[:, 2]
    tensor([0.4885, 0.4885, 0.0000], dtype=torch.float16)
    """
    (directions,) = cast("spherical_harmonics", directions)
    index = ray_index is not None and (ray_index, ("N",), INT64)
    check("spherical_harmonics", POSITION_FLOATS, directions=(directions, ("R", 3)), ray_index=index)
    dtype = directions.dtype if dtype is None else dtype
    if dtype not in FLOATS:
        raise TypeError(f"spherical_harmonics: dtype must be one of {', '.join(map(str, FLOATS))}, got {dtype}")
    return implementation("spherical_harmonics", directions)(directions, ray_index, dtype)


@implements("spherical_harmonics", "torch")
def _spherical_harmonics_torch(directions, ray_index, dtype):
    x, y, z = directions.unbind(1)  # [R] each
    xx, yy, zz = x * x, y * y, z * z
    degree_1 = -ONE * y, ONE * z, -ONE * x
    degree_2 = TWO * x * y, -TWO * y * z, POLAR_2 * zz - 0.31539156525252005, -TWO * x * z, PLANE * (xx - yy)
    rising = OUTER * y * (yy - 3 * xx), MIXED * x * y * z, INNER * y * (1 - 5 * zz), POLAR_3 * z * (5 * zz - 3)
    degree_3 = *rising, INNER * x * (1 - 5 * zz), UPPER * z * (xx - yy), OUTER * x * (3 * yy - xx)
    degree_0 = torch.full_like(x, 0.28209479177387814)
    harmonics = torch.stack([degree_0, *degree_1, *degree_2, *degree_3], dim=1)  # [R, 16]
    # Rounded last, so that the gradients of a ray's samples are summed unrounded.
    return (harmonics if ray_index is None else harmonics.index_select(0, ray_index)).to(dtype)


def _spherical_harmonics_backward(grads, arguments, *_):
    """No native one: ray directions rarely need a gradient."""
    directions, ray_index, _ = arguments
    grad = grads[0].to(directions.dtype)  # [N, 16]
    if ray_index is not None:  # summed over a ray's samples first: they share the derivatives
        grad = grad.new_zeros(directions.shape[0], N_HARMONICS).index_add(0, ray_index, grad)  # [R, 16]
    x, y, z = directions.unbind(1)  # [R] each
    _, g1, g2, g3, g4, g5, g6, g7, g8, g9, g10, g11, g12, g13, g14, g15 = grad.unbind(1)  # [R] each
    xx, yy, zz, xy = x * x, y * y, z * z, x * y
    grad_x = -ONE * g3 + TWO * (y * g4 - z * g7) + 2 * PLANE * x * g8
    grad_x = grad_x - 6 * OUTER * xy * g9 + MIXED * y * z * g10 + INNER * (1 - 5 * zz) * g13
    grad_x = grad_x + 2 * UPPER * x * z * g14 + 3 * OUTER * (yy - xx) * g15
    grad_y = -ONE * g1 + TWO * (x * g4 - z * g5) - 2 * PLANE * y * g8
    grad_y = grad_y + 3 * OUTER * (yy - xx) * g9 + MIXED * x * z * g10 + INNER * (1 - 5 * zz) * g11
    grad_y = grad_y - 2 * UPPER * y * z * g14 + 6 * OUTER * xy * g15
    grad_z = ONE * g2 - TWO * (y * g5 + x * g7) + 2 * POLAR_2 * z * g6
    grad_z = grad_z + MIXED * xy * g10 - 10 * INNER * z * (y * g11 + x * g13)
    grad_z = grad_z + POLAR_3 * (15 * zz - 3) * g12 + UPPER * (xx - yy) * g14
    return (torch.stack([grad_x, grad_y, grad_z], dim=1),)  # [R, 3]


implement_native("spherical_harmonics", _spherical_harmonics_torch, backward=_spherical_harmonics_backward)


@native.fake("_spherical_harmonics")
def _(directions, ray_index, dtype):
    rows = directions if ray_index is None else ray_index
    return directions.new_empty(rows.shape[0], N_HARMONICS, dtype=dtype)
