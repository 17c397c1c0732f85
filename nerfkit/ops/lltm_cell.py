# SPDX-License-Identifier: Apache-2.0
"""One step of the LLTM, a recurrent cell without forget gate."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like


def lltm_cell(input: Tensor, h: Tensor, c: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    r"""New hidden and cell state of the LLTM ("long long-term memory").

    .. math::
        [a_i, a_o, a_g] = W\,[h, input] + b, \quad i = \mathrm{sigmoid}(a_i), \quad o = \mathrm{sigmoid}(a_o), \quad
        g = \mathrm{ELU}(a_g) \\
        c' = c + g \, i, \qquad h' = \tanh(c') \, o

    Args:
        input: [B, I]; h, c: [B, H] hidden and cell state.
        weight: [3H, H+I], rows in the order input gate, output gate, candidate; columns h, then input.
        bias: [3H].

    Returns:
        h' [B, H] and c' [B, H].

    dtype: one floating type for all. Differentiable in every input.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit.
    Source: the cell of PyTorch's C++ extension tutorial (P. Goldsborough, 2018).

    >>> zero = torch.zeros(1, 1)
    >>> h, c = lltm_cell(torch.tensor([[3.0]]), zero, zero, torch.tensor([[0.0, 0], [0, 0], [0, 1]]), torch.zeros(3))
    >>> h, c                                                # c' = 0 + 3 * 1/2, h' = tanh(1.5) * 1/2
    (tensor([[0.4526]]), tensor([[1.5000]]))
    """
    input, h, c, weight, bias = cast("lltm_cell", input, h, c, weight, bias)
    sizes = check("lltm_cell", FLOATS, input=(input, ("B", "I")), h=(h, ("B", "H")), c=(c, ("B", "H")))
    check_parameters("lltm_cell", input, sizes["H"], sizes["I"], weight, bias)
    return implementation("lltm_cell", input)(input, h, c, weight, bias)


def check_parameters(op: str, input: Tensor, n_state: int, n_input: int, weight: Tensor, bias: Tensor) -> None:
    """Require weight [3H, H+I] and bias [3H], as `input` is."""
    rows = 3 * n_state
    check(op, FLOATS, input=(input, ("N", "I")), weight=(weight, (rows, n_state + n_input)), bias=(bias, (rows,)))


@implements("lltm_cell", "torch")
def _lltm_cell_torch(input, h, c, weight, bias):
    a_i, a_o, a_g = F.linear(torch.cat([h, input], dim=1), weight, bias).chunk(3, dim=1)  # [B, H] each
    c = torch.addcmul(c, F.elu(a_g), a_i.sigmoid())
    return c.tanh() * a_o.sigmoid(), c


SMALL_BATCH, SMALL_STATE = 64, 512  # up to these, one fused kernel is faster than library matrix products
SMALL_INPUT = 2**16


def _is_small(input: Tensor, h: Tensor) -> bool:
    small = 0 < input.shape[0] <= SMALL_BATCH and 0 < h.shape[1] <= SMALL_STATE and input.shape[1] <= SMALL_INPUT
    return input.is_cuda and small


def _lltm_cell_forward(input, h, c, weight, bias):
    if _is_small(input, h):
        h, c, gates = torch.ops.nerfkit._lltm_cell_small(input, h, c, weight, bias)
    else:
        h, c, gates = torch.ops.nerfkit._lltm_cell(F.linear(torch.cat([h, input], dim=1), weight, bias), c)
    return (h, c), (c, gates)  # [B, H] each, and the gates [B, 3H] after activation


def _lltm_cell_backward(grads, arguments, kept, _):
    (grad_h, grad_c), (input, h, _, weight, _), (c_new, gates) = grads, arguments, kept
    if _is_small(input, h):
        return torch.ops.nerfkit._lltm_cell_small_bwd(grad_h, grad_c, input, h, weight, gates, c_new)
    grad_gates, grad_c = torch.ops.nerfkit._lltm_cell_bwd(grad_h, grad_c, gates, c_new)  # [B, 3H], [B, H]
    joined, n_state = torch.cat([h, input], dim=1), h.shape[1]  # [B, H+I]
    grad_joined = grad_gates @ weight  # [B, H+I]
    grad_weight = grad_gates.t() @ joined  # [3H, H+I]
    return grad_joined[:, n_state:], grad_joined[:, :n_state], grad_c, grad_weight, grad_gates.sum(0)


implement_native("lltm_cell", _lltm_cell_torch, _lltm_cell_forward, _lltm_cell_backward)


native.fake("_lltm_cell")(lambda gates, c: (like(c), like(c), like(gates)))
native.fake("_lltm_cell_bwd")(lambda grad_h, grad_c, gates, c_new: (like(gates), like(c_new)))
native.fake("_lltm_cell_small")(
    lambda input, h, c, weight, bias: (like(h), like(h), h.new_empty(h.shape[0], len(bias)))
)
native.fake("_lltm_cell_small_bwd")(lambda grad_h, grad_c, input, h, weight, gates, c_new: (
    like(input), like(h), like(h), like(weight), weight.new_empty(weight.shape[0])
))  # fmt: skip
