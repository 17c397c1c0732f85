# SPDX-License-Identifier: Apache-2.0
"""Gradients that have no derivative of their own say so.

`torch.autograd.function.once_differentiable` raises only where the incoming gradient needs a gradient; where it does
not, a second derivative would be silently zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, gradient, *inputs):
        ctx.op = op
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise NotImplementedError(f"{ctx.op} has no second derivative")


def no_second_derivative(op: str, gradients: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """`gradients` of `inputs`, which raise NotImplementedError naming `op` when they are differentiated again."""
    if not torch.is_grad_enabled():  # the usual case: create_graph=False
        return gradients
    return tuple(_NoSecondDerivative.apply(op, gradient, *inputs) for gradient in gradients)
