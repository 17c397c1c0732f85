# SPDX-License-Identifier: Apache-2.0
"""How the learning rate falls over a training, and how feature tables decay."""

from __future__ import annotations

import math

import torch

from nerfkit.config import TrainerConfig
from nerfkit.model.base import Model

DECAY_EVERY = 16  # steps; a table is read and written as a whole, which would take a good part of each step's time

FALLS = {  # learning_rate and final_learning_rate a and b, share p of the schedule that is done -> rate
    "exponential": lambda a, b, p: a * (b / a) ** p,
    "linear": lambda a, b, p: a + (b - a) * p,
    "cosine": lambda a, b, p: b + (a - b) * (1 + math.cos(math.pi * p)) / 2,
}


def learning_rate(settings: TrainerConfig, step: int, progress: float) -> float:
    """The rate of step number `step`, from 0, when a share `progress` of the schedule is done.

    It rises in the warm-up, then falls as `trainer.schedule` says to its final value.
    """
    warm = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = FALLS[settings.schedule]
    return warm * fall(settings.learning_rate, settings.final_learning_rate, min(progress, 1.0))


@torch.no_grad()
def decay_tables(model: Model, settings: TrainerConfig, step: int, rate: float) -> None:
    r"""Every `DECAY_EVERY` steps, as if each of them had shrunk the model's tables,

    .. math:: x \leftarrow (1 - rate \cdot decay)\, x

    beside the optimiser's step, so that all features shrink alike, whatever their gradients. Source: I. Loshchilov and
    F. Hutter, "Decoupled weight decay regularization" (arXiv:1711.05101).
    """
    if settings.table_decay and step % DECAY_EVERY == 0:
        for table in model.tables():
            table.mul_((1 - rate * settings.table_decay) ** DECAY_EVERY)
