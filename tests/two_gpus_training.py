# SPDX-License-Identifier: Apache-2.0
"""What `tests/test_parallel_gpus.py` lets torchrun start: one of its cases, whose result the first process writes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from nerfkit import commands
from nerfkit import config as config_module
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.parallel import Processes
from nerfkit.training.trainer import Trainer
from tests.trainers import make_trainer

STEPS = 40  # of which graphs are recorded after the first
OccupancyGrid.update_every = 4


def result_of(trainer: Trainer, steps: int, recorded: bool = True) -> dict[str, torch.Tensor]:
    """Parameters and loss after so many steps; the graph is gone then, for NCCL cannot end before."""
    if not recorded:
        trainer.training_step.eager_steps = -1000
    for _ in range(steps):
        trainer.timed_step()
    loss = trainer.pop_stats()["loss"]
    assert (trainer.training_step.graph is not None) == recorded
    trainer.training_step.release_graph()
    trainer.together.compare(trainer.step)
    return {name: x.cpu() for name, x in trainer.model.state_dict().items()} | {"loss": torch.tensor(loss)}


def graphs(config, processes: Processes, folder: Path) -> dict:
    """The gradients added inside a graph and without one; and in float16."""
    results = {}
    for name, recorded, precision in (
        ("graph", True, "float32"),
        ("eager", False, "float32"),
        ("half", True, "float16"),
    ):
        config.parallel.precision = precision
        results[name] = result_of(make_trainer(config, processes=processes), STEPS, recorded)
    return results


def resumed(config, processes: Processes, folder: Path) -> dict:
    """The whole, and the same in two parts."""
    whole = result_of(make_trainer(config, processes=processes), STEPS)
    first = make_trainer(config, processes=processes)
    result_of(first, STEPS - 20)
    first.save(folder / "run")
    processes.wait()
    second = make_trainer(config, processes=processes)
    second.restore(folder / "run")
    return {"whole": whole, "parts": result_of(second, 20)}


def equal(config, processes: Processes, folder: Path) -> dict:
    """A few steps, whose gradients another test computes by itself."""
    config.trainer.capture = False
    return {"shared": result_of(make_trainer(config, processes=processes), 6, recorded=False)}


def dies(config, processes: Processes, folder: Path) -> dict:
    """The second process is killed while graphs are replayed."""
    trainer = make_trainer(config, processes=processes)
    trainer.save(folder / "run")
    for step in trainer.steps():
        if step == STEPS and processes.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {}


CASES = {"graphs": graphs, "resumed": resumed, "equal": equal, "dies": dies}


def main(case: str, folder: Path, processes: Processes) -> None:
    config = config_module.load([folder / "options.toml"])
    config.device = processes.join("cuda")
    result = CASES[case](config, processes, folder)
    if processes.is_first:
        torch.save(result, folder / f"{case}.pt")


if __name__ == "__main__":
    sys.exit(commands.status_among_processes(lambda *p: main(sys.argv[1], Path(sys.argv[2]), *p)))
