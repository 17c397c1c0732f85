# SPDX-License-Identifier: Apache-2.0
"""Optimisers of a radiance field, most of whose parameters have no gradient in a step; how their rate falls."""

from collections.abc import Callable, Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from nerfkit.config import Config, TrainerConfig
from nerfkit.model.base import Model
from nerfkit.ops import lazy_adam

DTYPES = (torch.float32, torch.float64)
DECAY_EVERY = 16  # steps; a table is read and written as a whole, which would take a good part of each step's time
LR_WARMUP = 100  # steps in which the learning rate rises; of a short training a tenth


def learning_rate(settings: TrainerConfig, step: int, progress: float) -> float:
    """The rate of step number `step`, from 0, when a share `progress` of the schedule is done.

    It rises in the warm-up, and falls linearly to its final value.
    """
    first, last = settings.learning_rate, settings.final_learning_rate
    warm = min(1.0, (step + 1) / max(min(LR_WARMUP, settings.steps // 10), 1))
    return warm * (first + (last - first) * min(progress, 1.0))


@torch.no_grad()
def decay_tables(model: Model, config: Config, step: int, rate: float) -> None:
    r"""Every `DECAY_EVERY` steps, as if each of them had shrunk the model's tables,

    .. math:: x \leftarrow (1 - rate \cdot weight\_decay)\, x

    beside the optimiser's step, so that all features shrink alike, whatever their gradients. Source: I. Loshchilov and
    F. Hutter, "Decoupled weight decay regularization" (arXiv:1711.05101).
    """
    if config.trainer.weight_decay and step % DECAY_EVERY == 0:
        for table in model.tables():
            table.mul_(max(1 - rate * config.trainer.weight_decay, 0) ** DECAY_EVERY)


def adam(params: Iterable[Tensor], lr: Tensor, lazy: bool) -> torch.optim.Optimizer:
    """Adam for a feature grid and its networks; its step can be recorded as a CUDA graph.

    The lazy one is faster, with the same scores on large batches. Rows with a gradient in few steps move less than with
    torch's, which keeps applying their moments: batches of a few thousand samples learn slower, and may keep floaters
    in front of the cameras.
    """
    params, betas, eps = list(params), (0.9, 0.99), 1e-15
    if lazy:
        return LazyAdam(params, lr, betas, eps)
    return Adam(params, lr, betas, eps, fused=True, capturable=lr.is_cuda)


class _Optimizer(torch.optim.Optimizer):
    """Without the wrappers that import torch's compiler, which takes seconds, so that it leaves these calls alone."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(_Optimizer, torch.optim.Adam):
    """torch's Adam, without those wrappers."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class LazyAdam(_Optimizer):
    """Adam that skips elements without a gradient, and their moments: `nerfkit.ops.lazy_adam`.

    Its state is that of `torch.optim.Adam`, on the parameters' device, so that a CUDA graph can record a step; the
    learning rate `group["lr"]` is a tensor for the same reason. `torch.amp.GradScaler` may take the step.

    Args:
        params: float32 or float64 tensors, or groups of them; those of a group on one device, their gradients dense.
        lr: learning rate; betas: decay rates of the moments, at least 0 and below 1; eps: added to the root.

    Raises ValueError or TypeError for any other group.

    >>> x = torch.ones(2, requires_grad=True)
    >>> optimizer = LazyAdam([x], lr=0.5)
    >>> x.grad = torch.tensor([0.0, 3.0])
    >>> optimizer.step()
    >>> x
    tensor([1.0000, 0.5000], requires_grad=True)
    """

    _step_supports_amp_scaling = True  # GradScaler then sets grad_scale and found_inf, without synchronizing

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-15
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        _prepare(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # another optimiser's learning rate may be a float, its steps on the CPU
            _prepare(group)
            for p in group["params"]:
                if self.state.get(p):
                    self.state[p]["step"] = torch.as_tensor(self.state[p]["step"], dtype=torch.float32, device=p.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step for all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in params):
                raise TypeError("LazyAdam: gradients must be dense; torch.optim.SparseAdam takes sparse ones")
            for p in params:
                if not self.state[p]:
                    self.state[p]["step"] = torch.zeros((), device=p.device)
                    self.state[p] |= {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
            states = [self.state[p] for p in params]
            steps = [state["step"] for state in states]
            if steps:
                torch._foreach_add_(steps, 1)
            if steps and found_inf is not None:
                torch._foreach_sub_(steps, [found_inf] * len(steps))
            rate = group["lr"]
            for p, state in zip(params, states, strict=True):
                step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
                lazy_adam(p, p.grad, mean, square, step, rate, *group["betas"], group["eps"], grad_scale, found_inf)
        return loss


def _prepare(group: dict[str, Any]) -> None:
    """Check a group, and make its learning rate a tensor on the parameters' device."""
    devices = {p.device for p in group["params"]}
    if len(devices) > 1:
        raise ValueError(f"LazyAdam: the parameters of a group must be on one device, got {sorted(map(str, devices))}")
    if wrong := [p.dtype for p in group["params"] if p.dtype not in DTYPES]:
        raise TypeError(f"LazyAdam: parameters must be float32 or float64, got {str(wrong[0]).removeprefix('torch.')}")
    if not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"LazyAdam: betas must be at least 0 and below 1, got {group['betas']}")
    group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=next(iter(devices), None))
