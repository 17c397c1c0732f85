# SPDX-License-Identifier: Apache-2.0
"""The optimiser of a radiance field, most of whose parameters have no gradient in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nerfkit.ops import lazy_adam


class LazyAdam(torch.optim.Optimizer):
    """Adam that leaves elements without a gradient, and their moments, as they are: `nerfkit.ops.lazy_adam`.

    Its state is that of `torch.optim.Adam`, on the parameters' device, so that a CUDA graph can record a step; the
    learning rate is a tensor for the same reason. `torch.amp.GradScaler` may take the step.
    """

    _step_supports_amp_scaling = True  # GradScaler then sets grad_scale and found_inf, instead of waiting for the GPU

    def __init__(
        self, params: Iterable[Tensor], lr: Tensor, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-15
    ):
        # capturable: loading a state then moves `step` to the parameters.
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step for all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            states = [self._state_of(p) for p in params]
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

    def _state_of(self, param: Tensor) -> dict[str, Tensor]:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros((), device=param.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        return state
