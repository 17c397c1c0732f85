# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds of a training, all that its next steps follow from: taken, and put back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nerfkit.errors import RunError
from nerfkit.training.run.checkpoint import fill, part
from nerfkit.version import versions

if TYPE_CHECKING:
    from nerfkit.training.trainer import Trainer


def taken(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state for `checkpoint.save`; each of several processes calls it, the first has what is saved."""
    tensors = trainer.model.state_dict(prefix="model.") | trainer.adjustments.state_dict(prefix="views.")
    for index, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    tensors |= {f"random.{name}": generator.get_state() for name, generator in _generators(trainer).items()}
    name, keys, *others = np.random.get_state()
    state = {
        "step": trainer.step,
        "seconds": trainer.seconds,
        **trainer.training_step.state_dict(),
        "random": {"python": random.getstate(), "numpy": [name, keys.tolist(), *others]},
        "backend": trainer.backends(),
        "versions": versions(),
    }
    if trainer.processes.size > 1 or trainer.scheduled != trainer.step:  # also of later parts of such a run
        n_rays = trainer.processes.gathered(state["n_rays"])
        state["parallel"] = {"scheduled": trainer.scheduled, "n_rays": n_rays}
    return tensors, state


def put_back(trainer: Trainer, tensors: dict[str, Tensor], state: dict[str, Any], folder: Path) -> float:
    """Inverse of `taken`; the place in the schedule. Raises RunError if something is missing or does not fit."""
    fill(trainer.model, "model", tensors, folder)
    fill(trainer.adjustments, "views", tensors, folder)
    try:
        _load_moments(trainer.optimizer, list(trainer.parameters.values()), part(tensors, "optimizer"))
        shared = state.get("parallel", {"scheduled": state["step"], "n_rays": []})
        if len(shared["n_rays"]) == trainer.processes.size:
            state["n_rays"] = shared["n_rays"][trainer.processes.rank]
        trainer.training_step.load_state_dict(state)
        saved = part(tensors, "random")
        for name, generator in _generators(trainer).items():
            if name in saved or not name.startswith("cuda"):  # a GPU that was not there has no state
                generator.set_state(saved[name])
        version, words, gauss = state["random"]["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(state["random"]["numpy"])
        trainer.step, trainer.seconds = state["step"], state["seconds"]
        return shared["scheduled"]
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, OverflowError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(f"the checkpoint in {folder} cannot be resumed ({reason[:200]})") from None


def _generators(trainer: Trainer) -> dict[str, torch.Generator]:
    """The training's own, and torch's, which code of one's own may draw from."""
    of_gpus = {f"cuda{index}": generator for index, generator in enumerate(torch.cuda.default_generators)}
    return {"cpu": torch.default_generator, **of_gpus, "trainer": trainer.generator}


def _load_moments(optimizer: torch.optim.Optimizer, parameters: list[Tensor], values: dict[str, Tensor]) -> None:
    """Moments and steps from tensors called `<index of the parameter>.<name>`; ValueError if one lacks, or is none."""
    state = optimizer.state_dict()
    for index in sorted({name.partition(".")[0] for name in values}):
        moments, shape = part(values, index), parameters[int(index)].shape
        wanted = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
        wrong = sorted(wanted.items() ^ {name: value.shape for name, value in moments.items()}.items())
        if wrong:
            raise ValueError(f"optimizer.{index}.{wrong[0][0]} is missing, or has not the parameter's {list(shape)}")
        state["state"][int(index)] = moments
    optimizer.load_state_dict(state)
