# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step: those of one process, or the sums of several.

A loss is a mean over the rays of its batch, by their weights. Of several processes, with w_r the sum of the weights of
process r, the loss is the mean over all rays, sum_r(w_r * loss_r) / sum_r(w_r), as if one process had drawn all
batches. So the weights are added first, each process takes the gradient of w_r / sum(w) * loss_r, and these are added:
large ones where they lie, small ones and the counts of a step in one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.errors import RunError
from nerfkit.parallel import Processes

LARGE = 2**18  # elements of a gradient that is added by itself; of a smaller one a copy costs less than a call
SMALLEST = 1e-12  # sum of weights, for a division


class Counted(NamedTuple):
    """Numbers of a step, over all processes."""

    counts: Tensor  # [2] rays and samples, float64
    means: Tensor  # [2 or 2+T] error of the pixels, loss and its terms, float64


class OwnGradients:
    """Of one process: nothing is added to them."""

    warm_up_steps = 3  # before a CUDA graph is recorded: libraries and allocator initialise themselves in them

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """What the gradient is taken of; `weight` [R] is that of the rays."""
        return loss

    def added(self, counts: Tensor, means: Tensor) -> Counted:
        """Make the parameters' gradients those of the mean over the rays of all processes, from counts [2] and means
        [2 or 2+T] of this one."""
        return Counted(counts, means)

    def meet(self) -> None:
        """Wait for the other processes, before and after a graph is recorded."""


class SharedGradients(OwnGradients):
    """Sums over several processes.

    A parameter without a gradient counts as one whose gradient is zero: another process may have one.

    Args:
        parameters: those that are trained, on one device.
        processes: that add.
        half: add large gradients in float16, of a scaled loss.
    """

    warm_up_steps = 12  # NCCL connects in the first ones

    def __init__(self, parameters: Iterable[Tensor], processes: Processes, half: bool):
        self.parameters = [p for p in parameters if p.requires_grad]
        if len({p.dtype for p in self.parameters}) > 1:
            raise RunError("the model's parameters are of several types; with several processes they must be of one")
        self.processes, self.half = processes, half
        self.bytes_added = 0  # in the last step

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """What the gradient is taken of; `weight` [R] is that of the rays."""
        own = weight.sum().double()
        total = own.clone()
        self.processes.add(total)
        self.share = own / total.clamp(min=SMALLEST)  # [] float64, of this process in the mean
        return loss * self.share.to(loss.dtype)

    def added(self, counts: Tensor, means: Tensor) -> Counted:
        """See `OwnGradients.added`."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in self.parameters]
        large = [gradient for gradient in gradients if gradient.numel() >= LARGE]
        small = [gradient for gradient in gradients if gradient.numel() < LARGE]
        numbers = torch.cat([counts, means * self.share])  # [4 or 4 + T] float64
        packed = torch.cat([*(gradient.flatten() for gradient in small), numbers.to(gradients[0].dtype)])
        sums = [gradient.half() if self.half else gradient for gradient in large]
        for values in (*sums, packed):
            self.processes.add(values)
        if self.half and large:
            torch._foreach_copy_(large, sums)
        *parts, numbers = packed.split([*(gradient.numel() for gradient in small), len(numbers)])
        if small:
            torch._foreach_copy_(small, [part.view_as(to) for part, to in zip(parts, small, strict=True)])
        self.bytes_added = sum(values.nbytes for values in (*sums, packed))
        return Counted(numbers[:2].double(), numbers[2:].double())

    def meet(self) -> None:
        """Wait for the other processes, before and after a graph is recorded."""
        device = self.parameters[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.processes.wait()
