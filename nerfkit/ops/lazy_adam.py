# SPDX-License-Identifier: Apache-2.0
"""Adam that skips elements without a gradient."""

import math

import torch
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import POSITION_FLOATS, check
from nerfkit.ops.dispatch import implementation, implements


@torch.no_grad()
def lazy_adam(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor, beta1: float = 0.9,
    beta2: float = 0.99, eps: float = 1e-15, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""One step of Adam, in place, for the elements whose gradient is not zero; others and their moments are unchanged.

    With :math:`g = grad / grad\_scale`, wherever :math:`grad \ne 0`,

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        param \leftarrow param - lr \, \frac{m / (1 - \beta_1^{step})}{\sqrt{v / (1 - \beta_2^{step})} + eps}

    where m is `exp_avg` and v is `exp_avg_sq`. In a feature grid most rows have no gradient in a step: they are
    not read, and stale moments do not update them.

    Args:
        param, grad, exp_avg, exp_avg_sq: of one shape.
        step: number of the step, from 1; lr: learning rate. Tensors [], so that a CUDA graph reads current values.
        beta1, beta2: decay rates of the moments, at least 0 and below 1; eps: added to the root.
        grad_scale: factor that the gradient was scaled by, or None for 1; [] or [1].
        found_inf: if not zero, the step is skipped; [] or [1].

    Returns:
        param, exp_avg and exp_avg_sq themselves.

    dtype: param, grad and both moments share float32 or float64; the numbers are float32. Nothing is differentiable.
    Raises ValueError for a shape, device or beta, TypeError for a dtype that does not fit.
    Source: D. P. Kingma and J. Ba, "Adam" (arXiv:1412.6980), algorithm 1; lazy as `torch.optim.SparseAdam`.

    >>> param, grad = torch.zeros(3), torch.tensor([4.0, 0.0, -2.0])
    >>> exp_avg, exp_avg_sq = torch.zeros(3), torch.zeros(3)
    >>> lazy_adam(param, grad, exp_avg, exp_avg_sq, step=torch.tensor(1.0), lr=torch.tensor(0.5))[0]
    tensor([-0.5000,  0.0000,  0.5000])
    """
    shape = tuple(getattr(param, "shape", ()))
    numbers = {"step": step, "lr": lr}
    numbers |= {name: x for name, x in {"grad_scale": grad_scale, "found_inf": found_inf}.items() if x is not None}
    check(
        "lazy_adam", POSITION_FLOATS, param=(param, shape), grad=(grad, shape), exp_avg=(exp_avg, shape),
        exp_avg_sq=(exp_avg_sq, shape),
        **{name: (x, (1,) * len(getattr(x, "shape", ())), (torch.float32,)) for name, x in numbers.items()},
    )  # fmt: skip
    for name, beta in {"beta1": beta1, "beta2": beta2}.items():
        if not 0 <= beta < 1:
            raise ValueError(f"lazy_adam: {name} must be at least 0 and below 1, got {beta}")
    run = implementation("lazy_adam", param)
    run(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, grad_scale, found_inf)
    return param, exp_avg, exp_avg_sq


@implements("lazy_adam", "torch")
def _lazy_adam_torch(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, grad_scale, found_inf):
    changes = grad != 0 if found_inf is None else (grad != 0) & (found_inf.reshape(()) == 0)
    grad = grad if grad_scale is None else grad / grad_scale.reshape(())
    step, lr = step.to(param.dtype).reshape(()), lr.to(param.dtype).reshape(())
    mean = beta1 * exp_avg + (1 - beta1) * grad
    square = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    root = (square / _bias_correction(beta2, step)).sqrt()
    new = param - lr / _bias_correction(beta1, step) * mean / (root + eps)
    for old, wanted in (param, new), (exp_avg, mean), (exp_avg_sq, square):
        old.copy_(torch.where(changes, wanted, old))


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta^step, without cancellation for small steps."""
    return -torch.expm1(step * (math.log(beta) if beta else -math.inf))


@implements("lazy_adam", "cpp", "cuda")
def _lazy_adam_native(param, grad, exp_avg, exp_avg_sq, *numbers):
    state = param, exp_avg, exp_avg_sq
    rows = [x.contiguous() for x in state]
    torch.ops.nerfkit._lazy_adam(rows[0], grad, *rows[1:], *numbers)
    for x, row in zip(state, rows, strict=True):
        if row is not x:
            x.copy_(row)
        elif not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(x)  # a graph that was built on the old values then raises


native.fake("_lazy_adam")(lambda *arguments: None)
