# SPDX-License-Identifier: Apache-2.0
"""A step of several processes: the same random numbers, clock and end, the sums of their gradients, and the proof that
their models are equal.

A loss is a mean over the rays of its batch, by their weights. Of several processes, with w_r the sum of the weights of
process r, the loss is the mean over all rays, sum_r(w_r * loss_r) / sum_r(w_r), as if one process had drawn all
batches. So the weights are added first, each process takes the gradient of w_r / sum(w) * loss_r, and these are added:
large ones where they lie, small ones and the counts of a step in one buffer.
"""

import hashlib
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nerfkit.errors import RunError, TrainingError
from nerfkit.model.base import Model
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.parallel import Processes
from nerfkit.training.step.adjustments import ViewAdjustments

LARGE = 2**18  # elements of a gradient that is added by itself; of a smaller one a copy costs less than a call
SMALLEST = 1e-12  # sum of weights, for a division
COMPARED_EVERY = 1000  # steps after which they compare the bits of their models
AGREED_EVERY = 16  # CUDA graphs after which they agree on time and stopping; steps that are none take longer


class OneProcess:
    """A process by itself: it exchanges nothing."""

    warm_up_steps = 3  # before a CUDA graph is recorded: libraries and allocator initialise themselves in them
    steps_at_once = 1.0  # of the schedule, in a step

    def before_update(self, step: int) -> None:
        """Called before the model's update, in which the processes are to draw the same random numbers."""

    def before_rays(self, step: int) -> None:
        """Called before the rays are drawn, which are to be each process's own."""

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """What the gradient is taken of; `weight` [R] is that of the rays."""
        return loss

    def added(self, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Make the gradients those of the mean over the rays of all processes; of all, too, are then the `counts` [2],
        rays and samples, and the `means` [2 or 2+T], error of the pixels, loss and its terms, float64."""
        return counts, means

    def barrier(self) -> None:
        """Wait for the others, before and after a graph is recorded."""

    def agree(self, seconds: float, should_stop: Callable[[], bool]) -> float:
        """The training time of all."""
        return seconds

    def clock(self, seconds: float) -> float:
        """The training time by which rates and the end of the schedule go."""
        return seconds

    def stops(self, should_stop: Callable[[], bool]) -> bool:
        return should_stop()

    def resume(self, step: int, seconds: float) -> None:
        """Go on at a step."""


class Distributed(OneProcess):
    """One of several processes that train a model, which call the same methods at the same steps.

    A parameter without a gradient counts as one whose gradient is zero: another process may have one.
    """

    warm_up_steps = 12  # NCCL connects in the first ones

    def __init__(
        self, processes: Processes, seed: int, model: Model, adjustments: ViewAdjustments, generator: torch.Generator
    ):
        self.processes, self.model, self.adjustments, self.generator = processes, model, adjustments, generator
        self.seed = seed
        self.steps_at_once = float(processes.size)  # as many rays in all as of one process
        self.parameters = [p for p in (*model.parameters(), *adjustments.parameters()) if p.requires_grad]
        if len({p.dtype for p in self.parameters}) > 1:
            raise RunError("the model's parameters are of several types; with several processes they must be of one")
        self.bytes_added = 0  # in the last step
        self.seconds, self.stop = 0.0, False  # as agreed
        self.compare_at = 0  # step

    def before_update(self, step: int) -> None:
        if step % OccupancyGrid.update_every == 0:
            self.model.sync_ranks(self.processes)
            if step >= self.compare_at:
                self.compare(step)
        seed_step(self.seed, step, "update", self.generator)  # occupancy grids are equal, without an exchange

    def before_rays(self, step: int) -> None:
        # They follow from seed and step: a checkpoint need not hold their state.
        seed_step(self.seed, step, f"rays of {self.processes.rank}", self.generator)

    def compare(self, step: int) -> None:
        """Raise TrainingError if the bits of what is trained differ. Called after the model's `sync_ranks`."""
        state = self.model.state_dict() | self.adjustments.state_dict(prefix="views.")
        sums = torch.stack([_sum_of_bits(x) for x in state.values()]).cpu()
        most, least = self.processes.all_reduce_max(sums), -self.processes.all_reduce_max(-sums)
        differ = [name for name, one, other in zip(state, most, least, strict=True) if one != other]
        if differ:
            raise TrainingError(
                f"at step {step} the models of the processes differ, first in {differ[0]}; they would train apart. Are "
                "their GPUs and their software the same? A model of your own has to change nothing but its parameters "
                "in training, and to draw the same random numbers in every process when it is built"
            )
        self.compare_at = step + COMPARED_EVERY

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        own = weight.sum().double()
        total = own.clone()
        self.processes.all_reduce_sum(total)
        self.share = own / total.clamp(min=SMALLEST)  # [] float64, of this process in the mean
        return loss * self.share.to(loss.dtype)

    def added(self, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in self.parameters]
        large = [gradient for gradient in gradients if gradient.numel() >= LARGE]
        small = [gradient for gradient in gradients if gradient.numel() < LARGE]
        numbers = torch.cat([counts, means * self.share])  # [4 or 4 + T] float64
        packed = torch.cat([*(gradient.flatten() for gradient in small), numbers.to(gradients[0].dtype)])
        for values in (*large, packed):
            self.processes.all_reduce_sum(values)
        *parts, numbers = packed.split([*(gradient.numel() for gradient in small), len(numbers)])
        if small:
            torch._foreach_copy_(small, [part.view_as(to) for part, to in zip(parts, small, strict=True)])
        self.bytes_added = sum(values.nbytes for values in (*large, packed))
        return numbers[:2].double(), numbers[2:].double()

    def barrier(self) -> None:
        if self.generator.device.type == "cuda":
            torch.cuda.synchronize(self.generator.device)
        self.processes.barrier()

    def agree(self, seconds: float, should_stop: Callable[[], bool]) -> float:
        """From now on all have the training time of the first, which is returned, and stop if one is to."""
        mine = torch.tensor([seconds if self.processes.is_first else 0.0, float(should_stop())], dtype=torch.float64)
        self.seconds, any_stop = self.processes.all_reduce_max(mine).tolist()
        self.stop = any_stop > 0
        return self.seconds

    def clock(self, seconds: float) -> float:
        return self.seconds

    def stops(self, should_stop: Callable[[], bool]) -> bool:
        return self.stop

    def resume(self, step: int, seconds: float) -> None:
        self.compare_at, self.seconds = step, seconds


def seed_step(seed: int, step: int, stream: str, generator: torch.Generator) -> None:
    """Seed a training's generator, and all that a model of one's own may draw from, for one step, differently for each
    `stream`; a recorded CUDA graph sees it."""
    digest = hashlib.blake2b(f"{seed} {step} {stream}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    if generator.device.type == "cuda":
        torch.cuda.default_generators[generator.device.index].manual_seed(number)


def _sum_of_bits(x: Tensor) -> Tensor:
    """The sum of a tensor's words as integers, int64 [], which is the same in any order."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().contiguous().flatten().view(words).sum(dtype=torch.int64)
