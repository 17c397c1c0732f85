# SPDX-License-Identifier: Apache-2.0
"""Two processes with a GPU each, over NCCL: torchrun starts this file for one of `CASES`, whose result the first
process writes."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from nerfkit import commands, load_run
from nerfkit import config as config_module
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.parallel import Processes
from nerfkit.training.trainer import Trainer
from tests.processes import torchrun
from tests.trainers import make_trainer

pytestmark = [pytest.mark.two_gpus, pytest.mark.slow]

STEPS = 40  # of which graphs are recorded after the first


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
    made = {name: make_trainer(config, processes=processes) for name in ("graph", "eager")}
    return {name: result_of(trainer, STEPS, recorded=name == "graph") for name, trainer in made.items()}


def resumed(config, processes: Processes, folder: Path) -> dict:
    whole = result_of(make_trainer(config, processes=processes), STEPS)
    first = make_trainer(config, processes=processes)
    result_of(first, STEPS - 20)
    first.save(folder / "run")
    processes.barrier()
    second = make_trainer(config, processes=processes)
    second.restore(folder / "run")
    return {"whole": whole, "parts": result_of(second, 20)}


def dies(config, processes: Processes, folder: Path) -> dict:
    trainer = make_trainer(config, processes=processes)
    trainer.save(folder / "run")
    for step in trainer.steps():
        if step == STEPS and processes.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {}


CASES = {"graphs": graphs, "resumed": resumed, "dies": dies}


def main(case: str, folder: Path, processes: Processes) -> None:
    OccupancyGrid.update_every = 4
    config = config_module.load([folder / "options.toml"])
    config.device = processes.join("cuda")
    result = CASES[case](config, processes, folder)
    if processes.is_first:
        torch.save(result, folder / f"{case}.pt")


@pytest.fixture
def config(small_config, tmp_path):
    small_config.device, small_config.trainer.deterministic = "cuda", True
    small_config.model.levels, small_config.model.log2_hashmap_size = 8, 16  # a table whose gradient is added by itself
    small_config.trainer.steps = 2000
    return small_config


def run_case(name: str, config, folder: Path, status: int = 0) -> dict:
    config_module.dump(config, folder / "options.toml")
    torchrun("-m", "tests.test_parallel_gpus", name, folder, status=status)
    return torch.load(folder / f"{name}.pt") if not status else {}


def differing(a: dict, b: dict) -> list[str]:
    return [name for name, x in a.items() if name != "loss" and not torch.equal(x, b[name])]


def test_graphs_with_the_addition(config, tmp_path):
    states = run_case("graphs", config, tmp_path)
    assert differing(states["graph"], states["eager"]) == []


def test_going_on_gives_the_same_bits(config, tmp_path):
    states = run_case("resumed", config, tmp_path)
    assert differing(states["whole"], states["parts"]) == []


def test_a_process_that_dies_ends_the_other(config, tmp_path):
    began = time.monotonic()
    run_case("dies", config, tmp_path, status=1)
    assert time.monotonic() - began < 90  # thirty seconds, and Python and CUDA twice
    assert load_run(tmp_path / "run", "cpu").state["step"] == 0


if __name__ == "__main__":
    sys.exit(commands.status_among_processes(lambda *p: main(sys.argv[1], Path(sys.argv[2]), *p)))
