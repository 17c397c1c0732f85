# SPDX-License-Identifier: Apache-2.0
"""Several processes that train one run, over gloo."""

import json
import math
import os
import signal
import time

import pytest
import torch

from nerfkit import config as config_module
from nerfkit import load_run
from nerfkit.commands import train
from nerfkit.errors import TrainingError
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.model.renderer import Renderer
from nerfkit.training.step import distributed
from nerfkit.training.step.distributed import seed_step
from nerfkit.training.step.losses import squared_error
from nerfkit.training.trainer import Trainer
from tests.processes import command, forked, in_processes, run_main, torchrun
from tests.trainers import make_trainer, trained

pytestmark = pytest.mark.slow

STEPS = 6


class DoubleRenderer(Renderer):
    def forward(self, rays, background, jitter=None, capacity=None):
        rays = rays._replace(origins=rays.origins.double(), directions=rays.directions.double())
        return super().forward(rays, background.double(), jitter.double(), capacity)


def double(config):
    return DoubleRenderer(config).double()


def bits_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in trainer.model.state_dict().items()}


def trained_by_one(config, n: int, model) -> tuple[Trainer, list[int]]:
    """As n processes would, each batch after the other; the definition of what they do."""
    trainer = make_trainer(config, model)
    trainer.together.steps_at_once = n
    step = trainer.training_step
    n_rays = [int(step.n_rays)] * n
    for number in range(STEPS):
        trainer.optimizer.param_groups[0]["lr"].fill_(trainer.learning_rate())
        trainer.views.background.draw_at_random(True)
        seed_step(config.seed, number, "update", trainer.generator)
        trainer.model.update(number)
        total, weights = 0.0, 0.0
        for rank in range(n):
            seed_step(config.seed, number, f"rays of {rank}", trainer.generator)
            step.n_rays.fill_(n_rays[rank])
            terms, _, complete, n_samples, weight = step._forward()
            total, weights = total + sum(terms.values()) * weight.sum(), weights + weight.sum()
            step._adapt_ray_count(complete.sum(), n_samples)
            n_rays[rank] = int(step.n_rays)
        trainer.optimizer.zero_grad()
        (total / weights).backward()
        trainer.optimizer.step()
        trainer.step += 1
    return trainer, n_rays


@pytest.fixture
def config(small_config, monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "update_every", 2)
    return small_config


def test_they_train_as_one_with_all_their_batches(config, tmp_path):
    config.trainer.optimizer = "lazy_adam"

    def train(processes):
        trainer = trained(config, STEPS, double, processes=processes)
        return bits_of(trainer), int(trainer.training_step.n_rays), trainer.pop_stats()

    (first, other), (one, n_rays) = in_processes(2, tmp_path, train), trained_by_one(config, 2, double)
    assert [first[1], other[1]] == n_rays and len(set(n_rays)) > 1
    torch.testing.assert_close(first[0], dict(one.model.state_dict()), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(other[0][name], x) for name, x in first[0].items())
    assert first[2]["loss"] == other[2]["loss"]


def test_gradients_are_divided_by_the_weights_of_all(small_config, tmp_path, monkeypatch):
    """A batch of no weight does not count, and a parameter without a gradient counts as one of zero."""
    monkeypatch.setattr(distributed, "LARGE", 3)

    def add(processes):
        model = torch.nn.ParameterList([torch.ones(3), torch.ones(2)])
        (x, y), found = model, []
        shared = distributed.Distributed(processes, small_config.seed, model, torch.nn.Module(), torch.Generator())
        for weights in ((1.0, 3.0), (0.0, 2.0)):
            x.grad = y.grad = None
            loss = (2 * x).sum() if processes.rank else (6 * x).sum() + y.sum()
            shared.weighted(loss, torch.full((1,), weights[processes.rank])).backward()
            counts, means = shared.added(torch.tensor([4.0, 9.0]).double(), loss.detach().double()[None])
            found.append([x.grad.tolist(), y.grad.tolist(), counts.tolist(), means.item()])
        return found, shared.bytes_added

    one, other = in_processes(2, tmp_path, add)
    assert one == other == ([[[3.0] * 3, [0.25] * 2, [8, 18], 9.5], [[2.0] * 3, [0.0] * 2, [8, 18], 6.0]], one[1])
    assert one[1] == 4 * 3 + 4 * 5


def test_models_that_differ_are_an_error(config, tmp_path):
    """In what was trained, in poses, and in the state at the start."""
    config.data.appearance, config.data.pose_optimization, config.trainer.robust = "affine", True, True

    def train(processes):
        trainer = trained(config, STEPS, processes=processes)
        trainer.together.compare(STEPS)
        assert trainer.training_step.outliers.rays.any(), "of this process alone: the gradients are those of all"
        assert trainer.adjustments.poses.any() and trainer.adjustments.appearance.any()
        for name in ("decoder.density_net.packed", "views.poses"):
            value = trainer.parameters[name].data.flatten()
            value[0] += 1e-6 * processes.rank
            with pytest.raises(TrainingError, match=f"step {STEPS} .*{name}"):
                trainer.together.compare(STEPS)
            value[0] -= 1e-6 * processes.rank
        first = make_trainer(config, processes=processes)
        if processes.rank == 1:
            first.model.sampler.occupancy[0] = False
        with pytest.raises(TrainingError, match=r"step 0 .*sampler\.occupancy"):
            first.train_step()

    in_processes(2, tmp_path, train)


def test_going_on_with_any_number_of_processes(config, tmp_path):
    config.trainer.steps, run = 24, tmp_path / "run"

    def first(processes):
        trained(config, 4, processes=processes).save(run)

    def second(processes):
        trainer = make_trainer(config, processes=processes)
        trainer.restore(run)
        assert (trainer.step, trainer.scheduled, trainer.last_step) == (4, 8, 12)
        for _ in range(2):
            trainer.timed_step()
        trainer.save(run)

    in_processes(2, tmp_path, first)
    in_processes(2, tmp_path, second)
    alone = make_trainer(config)
    alone.restore(run)
    assert (alone.step, alone.scheduled, alone.last_step) == (6, 12, 18)
    assert alone.train(run) and load_run(run, "cpu").state["step"] == 18


def test_unbounded_space(config, tmp_path, monkeypatch):
    """Each process notes the blocks that its own rays reach; the models are equal for all that, and a run goes on as
    if it had not stopped, wherever it does."""
    monkeypatch.setattr(distributed, "COMPARED_EVERY", 1)
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 0)
    config.trainer.deterministic, config.sampling.kind = True, "contracted"
    run = tmp_path / "run"

    def go_on(trainer):
        for _ in range(7):
            trainer.timed_step()
        trainer.model.sync_ranks(trainer.processes)
        return bits_of(trainer)

    def whole(processes):
        trainer = trained(config, 7, processes=processes)
        noted = processes.all_gather(trainer.model.sampler.unreached.tolist())
        assert noted[0] != noted[1], "a test of what they have alike needs a difference"
        trainer.save(run)
        assert trainer.model.sampler.unreached.tolist() == torch.tensor(noted).amin(0).tolist()
        return go_on(trainer)

    def second(processes):
        trainer = make_trainer(config, processes=processes)
        trainer.restore(run)
        return go_on(trainer)

    wanted, *others = (*in_processes(2, tmp_path, whole), *in_processes(2, tmp_path, second))
    for bits in others:
        assert all(torch.equal(bits[name], x) for name, x in wanted.items())


def test_the_clock_of_the_first_is_that_of_all(config, tmp_path):
    config.trainer.max_seconds = 0.4

    def train(processes):
        trainer = make_trainer(config, processes=processes)
        rates = []
        for _ in trainer.steps():
            rates.append(trainer.learning_rate())
            time.sleep(0.01 * processes.rank)
        return rates

    first, second = in_processes(2, tmp_path, train)
    assert first == second


def test_a_loss_that_is_not_finite_in_one_stops_all(config, tmp_path):
    def train(processes):
        trainer = trained(config, 1, processes=processes)
        trainer.save(tmp_path / "run")
        if processes.rank == 1:
            trainer.training_step.loss.data_term = lambda *both: {"mse": squared_error(*both)["mse"] * math.nan}
        table = trainer.model.grid.table.detach().clone()
        with pytest.raises(TrainingError, match="nan at step 1"):
            trainer.train(tmp_path / "run")
        assert torch.equal(trainer.model.grid.table, table)

    in_processes(2, tmp_path, train)
    assert load_run(tmp_path / "run", "cpu").state["step"] == 1


@pytest.fixture
def options(config, tmp_path):
    config.trainer.steps, config.data.downscale = 8, 2.0
    config.model.aggregator = config.model.encoder = False
    config_module.dump(config, tmp_path / "options.toml")
    return tmp_path / "options.toml"


def test_commands_share_the_work(options, tmp_path):
    run, both, one = tmp_path / "run", tmp_path / "shared", tmp_path / "alone"
    render = ("render", run, "--cameras", "test", "--outputs", "rgb,depth", "--device", "cpu", "--out")
    ended = forked(2, tmp_path, command("train", "--config", options, "--out", run))
    assert ended == [0, 0], ended.printed
    assert "2 processes" in ended.printed[0] and ended.printed[1] == ""
    assert load_run(run, "cpu").state["step"] == 4
    shared = json.loads((run / "metrics.json").read_text())
    assert (shared["protocol"]["size"], shared["protocol"]["downscale"]) == ("13x11", 2)
    ended = forked(2, tmp_path, command(*render, both))
    assert ended == [0, 0] and ended.printed[1] == "", ended.printed
    for alone in (("eval", run, "--device", "cpu"), (*render, one)):
        assert forked(1, tmp_path, command(*alone)) == [0]
    views = json.loads((run / "metrics.json").read_text())["views"]
    assert shared["views"] == views and len(views) > 1
    names = sorted(file.name for file in one.iterdir() if file.suffix in (".png", ".npz"))
    assert len(names) == 5 * len(views) + 2, "with legends of two depths"
    assert [name for name in names if (both / name).read_bytes() != (one / name).read_bytes()] == []
    first, other = (both / f"{views[view]['view']}.png" for view in (0, -1))
    first.unlink()
    kept = other.stat().st_mtime_ns
    assert forked(2, tmp_path, command(*render, both, "--resume")) == [0, 0]
    assert first.exists() and other.stat().st_mtime_ns == kept


def test_what_all_find_wrong_is_said_once(options, tmp_path):
    ended = forked(2, tmp_path, command("train", "--config", options, "--data.path", "nowhere"))
    assert ended == [1, 1] and "nowhere" in ended.printed[0] and ended.printed[1] == ""


def fail() -> None:
    raise ValueError("of this process alone")


@pytest.mark.parametrize(
    "rank, what, statuses, said, step",
    [
        (1, signal.SIGTERM, [143, 143], ("--resume {run}", ""), 3),
        (1, signal.SIGKILL, [1, -9], ("process 0 of 2: another process", ""), 1),
        (1, fail, [1, 1], ("process 0 of 2: another process", "process 1 of 2"), 1),
    ],
)
def test_what_ends_one_in_mid_run_ends_all(options, tmp_path, monkeypatch, rank: int, what, statuses, said, step: int):
    train_step, began = Trainer.train_step, time.monotonic()

    def with_end(trainer):
        if trainer.step == 2 and trainer.processes.rank == rank:
            fail() if what is fail else os.kill(os.getpid(), what)
        train_step(trainer)

    monkeypatch.setattr(Trainer, "train_step", with_end)
    ended = forked(2, tmp_path, command("train", "--config", options, "--out", tmp_path / "run"))
    assert ended == statuses and time.monotonic() - began < 30, ended.printed
    assert "Traceback" not in ended.printed[0]
    for text, printed in zip(said, ended.printed, strict=True):
        assert text.format(run=tmp_path / "run") in printed and (text or not printed)
    assert load_run(tmp_path / "run", "cpu").state["step"] == step


def test_one_process_of_torchrun_is_as_without(options, tmp_path):
    arguments = ("--config", options, "--eval.after_training", "false", "--out")
    assert forked(1, tmp_path, command("train", *arguments, tmp_path / "torchrun")) == [0]
    assert run_main(train, *arguments, tmp_path / "plain") == 0
    one, plain = (load_run(tmp_path / out, "cpu") for out in ("torchrun", "plain"))
    assert all(torch.equal(x, plain.model.state_dict()[name]) for name, x in one.model.state_dict().items())
    assert "parallel" not in one.state


@pytest.mark.long
def test_torchrun_itself(options, tmp_path):
    run = tmp_path / "run"
    printed = torchrun("scripts/train.py", "--config", options, "--out", run)
    assert printed.count("trained 4 steps") == 1
    printed = torchrun("-m", "nerfkit", "train", "--config", options, "--out", run, status=1)
    assert printed.count(f"'{run}' holds a run already") == 1
