# SPDX-License-Identifier: Apache-2.0
"""What a benchmark times: an op at one size, its baseline, and the bytes that must move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.packed import offsets_from_counts

Inputs = dict[str, Tensor]
Call = Callable[[Inputs], Tensor]


@dataclass
class Work:
    """One op at one size. `fused` and `baseline` are called with `inputs`, or copies; `parts` are what is timed."""

    op: str
    case: str
    inputs: Inputs
    fused: Call
    baseline: Call | None = None  # None: the definition
    baseline_name: str = "definition"
    forward_bytes: int = 0
    backward_bytes: int = 0
    wrt: Sequence[str] = ()  # inputs to differentiate with respect to
    parts: tuple[str, ...] = ("forward", "backward")
    baseline_inputs: Inputs = field(default_factory=dict)  # where they differ; the gradients of all are taken
    check: bool = True
    tolerance: float = 2e-4  # of float32 results, of the largest value
    products: int = 0  # multiply-adds forward; `wrt` has both factors, so that backward has twice as many

    def least(self, part: str) -> tuple[int, int]:
        """The bytes that a part must move, and its multiply-adds."""
        forward, backward = (self.forward_bytes, self.products), (self.backward_bytes, 2 * self.products)
        parts = {"forward": forward, "backward": backward}
        parts["both"] = forward[0] + backward[0], forward[1] + backward[1]
        return parts.get(part, (0, 0))

    def sides(self) -> tuple[Side, Side]:
        """The fused op and the baseline."""
        other, baseline = self.baseline_inputs, self.baseline or self._definition
        wrt = tuple(other) or self.wrt
        return Side(self.fused, self.inputs, self.wrt), Side(baseline, other or self.inputs, wrt)

    def _definition(self, x: Inputs) -> Tensor:
        with ops.backend("torch"):
            return self.fused(x)


class Side(NamedTuple):
    call: Call
    inputs: Inputs
    wrt: Sequence[str]

    def copies(self, count: int) -> list[Side]:
        """Itself and copies of it, at different places of memory; parameters of a module stay what they are."""
        return [self, *(self._replace(inputs=copies_of(self.inputs)) for _ in range(count - 1))]


def copies_of(inputs: Inputs) -> Inputs:
    copy = lambda x: x.detach().clone().requires_grad_(x.requires_grad)  # noqa: E731
    return {name: x if isinstance(x, torch.nn.Parameter) else copy(x) for name, x in inputs.items()}


def rand(*shape: int, dtype: torch.dtype = torch.float32, device: str) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def size_of(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def with_gradient(**tensors: Tensor) -> Inputs:
    return {name: x.detach().requires_grad_() for name, x in tensors.items()}


def dtypes(device: str) -> tuple[torch.dtype, ...]:
    """Types to time: half precision on a GPU, too."""
    return (torch.float32, torch.float16) if device == "cuda" else (torch.float32,)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rays_of(device: str, rays: int, mean: float, least: float, most: int) -> Tensor:
    """Row pointers [rays + 1] of rays whose numbers of samples fall off exponentially."""
    counts = torch.distributions.Exponential(1 / mean).sample((rays,)) + least
    return offsets_from_counts(counts.clamp(int(least), most).long().to(device))
