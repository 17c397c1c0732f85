# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step: those of one process, or the sums of several.

A loss is a mean over the rays of its batch, by their weights. Of several processes, with w_r the sum of the weights of
process r, the loss is the mean over all rays, sum_r(w_r * loss_r) / sum_r(w_r), as if one process had drawn all
batches. So each process takes the gradient of w_r * loss_r, these are added, and the sum is divided by the sum of w_r.
All of it is one addition over the processes of one flat buffer, which ends with the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.errors import RunError
from nerfkit.parallel import Processes

ALIGNMENT = 32  # elements: kernels load vectors
SMALLEST = 1e-12  # sum of weights, for a division


class Counted(NamedTuple):
    """Numbers of a step, over all processes."""

    counts: Tensor  # [2] rays and samples, float64
    means: Tensor  # [1 or 1+T] loss and its terms, float64


class OwnGradients:
    """Of one process: nothing is added to them."""

    in_graph = True  # whether a CUDA graph of a step holds the addition
    warm_up_steps = 3  # before a CUDA graph is recorded: libraries and allocator initialise themselves in them

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """What the gradient is taken of; `weight` [R] is that of the rays."""
        return loss

    def collect(self, counts: Tensor, means: Tensor) -> None:
        """Take the parameters' gradients, counts [2] and means [1 or 1+T] of this process."""
        self.counted = Counted(counts, means)

    def add(self) -> None:
        """Add them over the processes."""

    def result(self) -> Counted:
        """Make the parameters' gradients those of the mean over all rays."""
        return self.counted

    def meet(self) -> None:
        """Wait for the other processes, before and after a graph is recorded."""

    def state_dict(self) -> dict[str, float]:
        """What the next step needs."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Inverse of `state_dict`."""


class SharedGradients(OwnGradients):
    """Sums over several processes, in a flat buffer of which the parameters' gradients are views.

    A parameter without a gradient counts as one whose gradient is zero: another process may have one.

    Args:
        parameters: those that are trained, on one device.
        processes: that add.
        half: add in float16, for gradients of a scaled loss.
        n_rays: about how many there are in the first step.
        in_graph: whether a CUDA graph of a step holds the addition.
    """

    warm_up_steps = 12  # NCCL connects in the first ones

    def __init__(
        self, parameters: Iterable[Tensor], processes: Processes, half: bool, n_rays: float, in_graph: bool = True
    ):
        self.parameters = [p for p in parameters if p.requires_grad]
        if len({p.dtype for p in self.parameters}) > 1:
            raise RunError("the model's parameters are of several types; with several processes they must be of one")
        self.processes, self.half, self.in_graph = processes, half, in_graph
        # The gradient is taken of loss * weight / reference, to be of the size of a mean's: half precision has few
        # exponents. The reference is the same in all processes: the mean weight of the step before.
        self.reference = self.parameters[0].new_tensor(n_rays)
        self.shrunk = processes.size if half else 1  # by which gradients are, for their sum to fit into float16
        self.flat: Tensor | None = None

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """What the gradient is taken of; `weight` [R] is that of the rays."""
        self.weight = weight.sum()
        return loss * (self.weight / (self.reference * self.shrunk)).to(loss.dtype)

    def collect(self, counts: Tensor, means: Tensor) -> None:
        """Take the parameters' gradients, counts [2] and means [1 or 1+T] of this process."""
        numbers = torch.cat([self.weight.double()[None], counts, means * self.weight])  # [3 + 1 or 3 + 1 + T]
        if self.flat is None:
            self._allocate(len(numbers))
        pairs = [(view, p.grad) for view, p in zip(self.views_added, self.parameters, strict=True)]
        missing = [view for view, gradient in pairs if gradient is None]
        if missing:
            torch._foreach_zero_(missing)
        present = [pair for pair in pairs if pair[1] is not None]
        if present:
            torch._foreach_copy_(*map(list, zip(*present, strict=True)))
        for p, view in zip(self.parameters, self.views, strict=True):
            p.grad = view
        self.numbers.copy_(numbers)

    def add(self) -> None:
        """Add them over the processes."""
        if self.half:
            self.processes.add(self.packed)
            self.processes.add(self.numbers)
        else:
            self.processes.add(self.flat)

    def result(self) -> Counted:
        """Make the parameters' gradients those of the mean over all rays."""
        weight = self.numbers[:1].clamp(min=SMALLEST)
        torch.mul(self.added, self.reference * self.shrunk / weight, out=self.gradients)
        weight = weight[0]
        self.reference.copy_((weight / self.processes.size).clamp(min=1))
        return Counted(self.numbers[1:3].double(), self.numbers[3:].double() / weight)

    def meet(self) -> None:
        """Wait for the other processes, before and after a graph is recorded."""
        if self.flat.is_cuda:
            torch.cuda.synchronize(self.flat.device)
        self.processes.wait()

    def state_dict(self) -> dict[str, float]:
        """What the next step needs: the reference."""
        return {"reference": self.reference.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Inverse of `state_dict`."""
        self.reference.fill_(state["reference"])

    def _allocate(self, n_numbers: int) -> None:
        """The buffer: gradients of all parameters, each aligned, then numbers; and what is added of it."""
        first, ends = self.parameters[0], _aligned_ends([p.numel() for p in self.parameters])
        self.flat = torch.zeros(ends[-1] + n_numbers, dtype=first.dtype, device=first.device)
        self.gradients, self.numbers = self.flat[: ends[-1]], self.flat[ends[-1] :]
        self.packed = torch.zeros_like(self.gradients, dtype=torch.float16) if self.half else None
        self.added = self.packed if self.half else self.gradients
        self.views, self.views_added = self._views(self.gradients, ends), self._views(self.added, ends)

    def _views(self, flat: Tensor, ends: Sequence[int]) -> list[Tensor]:
        """The part of each parameter, in its shape."""
        starts = [0, *ends[:-1]]
        parts = zip(starts, self.parameters, strict=True)
        return [flat[start : start + p.numel()].view_as(p) for start, p in parts]


def _aligned_ends(sizes: Sequence[int]) -> list[int]:
    ends, end = [], 0
    for size in sizes:
        end += -(-size // ALIGNMENT) * ALIGNMENT
        ends.append(end)
    return ends
