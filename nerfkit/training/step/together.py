# SPDX-License-Identifier: Apache-2.0
"""What several processes of one training do alike: random numbers, the clock, stopping; and the proof that they do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from nerfkit.errors import TrainingError
from nerfkit.parallel import Processes
from nerfkit.training.step.randomness import seed_step

COMPARED_EVERY = 1000  # steps after which they compare the bits of their models
AGREED_EVERY = 16  # CUDA graphs after which they agree on time and stopping; steps that are none take longer


class Together:
    """The processes of a training; of one by itself, nothing is done."""

    def __init__(self, processes: Processes, seed: int, device: torch.device, generator: torch.Generator):
        self.processes, self.seed, self.device, self.generator = processes, seed, device, generator
        self.seconds, self.stop = 0.0, False  # as agreed
        self.compare_at = 0  # step

    @property
    def alone(self) -> bool:
        return self.processes.size == 1

    def seed_common(self, step: int) -> None:
        """Random numbers that all have in common, so that what follows gives all the same."""
        if not self.alone:
            seed_step(self.seed, step, "update", self.device, self.generator)

    def seed_own(self, step: int) -> None:
        """Random numbers of this process. They follow from seed and step: a checkpoint need not hold their state."""
        if not self.alone:
            seed_step(self.seed, step, f"rays of {self.processes.rank}", self.device, self.generator)

    def agree(self, seconds: float, stop: bool) -> float:
        """From now on all have the training time of the first, which is returned, and stop if one is to."""
        mine = torch.tensor([seconds if self.processes.is_first else 0.0, float(stop)], dtype=torch.float64)
        self.seconds, any_stop = self.processes.most(mine).tolist()
        self.stop = any_stop > 0
        return self.seconds

    def resume(self, step: int, seconds: float) -> None:
        """Go on at a step; the models are compared at the next update of the occupancy grid."""
        self.compare_at, self.seconds = step, seconds

    def compare(
        self, model: nn.Module, step: int, now: bool = False, besides: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """After every so many steps, or `now`: raise TrainingError if the bits of the models, or of tensors `besides`,
        differ. Called where the model's own `agree` has been."""
        if self.alone or not (now or step >= self.compare_at):
            return
        state = {**model.state_dict(), **besides}
        sums = torch.stack([_sum_of_bits(x) for x in state.values()]).cpu()
        most, least = self.processes.most(sums), -self.processes.most(-sums)
        differ = [name for name, one, other in zip(state, most, least, strict=True) if one != other]
        if differ:
            raise TrainingError(
                f"at step {step} the models of the processes differ, first in {differ[0]}; they would train apart. Are "
                "their GPUs and their software the same, and does a model of your own change nothing but its "
                "parameters in forward, and draw the same random numbers everywhere when it is built?"
            )
        self.compare_at = step + COMPARED_EVERY


def _sum_of_bits(x: Tensor) -> Tensor:
    """The sum of a tensor's words as integers, int64 [], which is the same in any order."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().contiguous().flatten().view(words).sum(dtype=torch.int64)
