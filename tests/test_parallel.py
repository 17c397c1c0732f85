# SPDX-License-Identifier: Apache-2.0
"""Several processes that train one run, over gloo."""

import json
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
from nerfkit.training.run.files import read_log
from nerfkit.training.step import distributed
from nerfkit.training.step.randomness import seed_step
from nerfkit.training.trainer import Trainer
from tests.processes import run_main
from tests.torchrun import command, forked, in_processes, torchrun
from tests.trainers import make_trainer, trained

pytestmark = pytest.mark.slow

STEPS = 6


class DoubleRenderer(Renderer):
    """Everything in float64."""

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
    step = trainer.training_step
    n_rays = [int(step.n_rays)] * n
    for number in range(STEPS):
        trainer.optimizer.param_groups[0]["lr"].fill_(trainer.learning_rate())
        trainer.views.background.draw_at_random(number < config.trainer.background_warmup)
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
    small_config.parallel.steps_scale = 1.0  # the same learning rates
    return small_config


@pytest.mark.parametrize("n, lazy", [(2, True), (3, False)])
def test_they_train_as_one_with_all_their_batches(config, tmp_path, n: int, lazy: bool):
    config.trainer.optimizer = "lazy_adam" if lazy else "adam"

    def train(processes):
        trainer = trained(config, STEPS, double, processes=processes)
        return bits_of(trainer), int(trainer.training_step.n_rays), trainer.pop_stats()

    shares = in_processes(n, tmp_path, train)
    one, n_rays = trained_by_one(config, n, double)
    assert [share[1] for share in shares] == n_rays and len(set(n_rays)) > 1
    for name, wanted in one.model.state_dict().items():
        torch.testing.assert_close(
            shares[0][0][name], wanted, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert all(torch.equal(share[0][name], shares[0][0][name]) for share in shares)
    assert shares[0][2]["loss"] == shares[1][2]["loss"]


@pytest.mark.parametrize("half", [False, True])
def test_gradients_are_divided_by_the_weights_of_all(small_config, half: bool, monkeypatch):
    """A batch of no weight does not count, and a parameter without a gradient counts as one of zero."""
    monkeypatch.setattr(distributed, "LARGE", 3)
    small_config.parallel.precision = "float16" if half else "float32"
    model = torch.nn.ParameterList([torch.ones(3), torch.ones(2)])
    (x, y), sent = model, []

    class Two:
        """With another process, whose weight is 2.5 and whose loss is (2 * x).sum(), 6."""

        size = 2

        def add(self, values):
            sent.append((values.dtype, tuple(values.shape)))
            share = 1 - shared.share if len(sent) % 3 != 1 else None
            values += (2.5, 2 * share if share is not None else 0, 0)[(len(sent) - 1) % 3]
            if len(sent) % 3 == 0:
                values[-1] += 6 * share

    shared = distributed.Distributed(Two(), small_config, model, torch.nn.Module(), torch.Generator())
    for weight, loss, wanted in ((7.0, lambda: (2 * x).sum() + y.sum(), 7 / 9.5), (0.0, lambda: (2 * x).sum(), 0.0)):
        x.grad = y.grad = None
        own = loss()
        shared.weighted(own, torch.full((1,), weight)).backward()
        counts, means = shared.added(torch.tensor([4.0, 9.0]).double(), own.detach().double()[None])
        assert x.grad.tolist() == pytest.approx([2.0] * 3, rel=1e-3)
        assert y.grad.tolist() == pytest.approx([wanted] * 2, rel=1e-3)
        assert counts.tolist() == [4, 9]
        assert means.item() == pytest.approx((weight * own.item() + 2.5 * 6) / (weight + 2.5))
    precision = torch.float16 if half else torch.float32
    assert sent == [(torch.float64, ()), (precision, (3,)), (torch.float32, (5,))] * 2


def test_models_that_differ_are_an_error(config, tmp_path):
    def train(processes):
        trainer = trained(config, 1, processes=processes)
        trainer.together.compare(1)
        if processes.rank == 1:
            trainer.model.decoder.density_net.packed.data[0] += 1e-6
        with pytest.raises(TrainingError, match=r"step 1 .*decoder\.density_net\.packed"):
            trainer.together.compare(1)
        first = make_trainer(config, processes=processes)
        if processes.rank == 1:
            first.model.sampler.occupancy[0] = False
        with pytest.raises(TrainingError, match=r"step 0 .*sampler\.occupancy"):
            first.train_step()

    in_processes(2, tmp_path, train)


def test_going_on_with_any_number_of_processes(config, tmp_path):
    config.parallel.steps_scale, config.trainer.deterministic = 0.0, True
    config.trainer.steps, run = 24, tmp_path / "run"

    def whole(processes):
        return bits_of(trained(config, 6, processes=processes))

    def first(processes):
        trained(config, 4, processes=processes).save(run)

    def second(processes):
        trainer = make_trainer(config, processes=processes)
        trainer.restore(run)
        assert (trainer.step, trainer.scheduled, trainer.last_step) == (4, 8, 12)
        for _ in range(2):
            trainer.timed_step()
        trainer.save(run)
        return bits_of(trainer)

    wanted = in_processes(2, tmp_path, whole)[0]
    in_processes(2, tmp_path, first)
    for share in in_processes(2, tmp_path, second):
        assert all(torch.equal(share[name], x) for name, x in wanted.items())
    alone = make_trainer(config)
    alone.restore(run)
    assert (alone.step, alone.scheduled, alone.last_step) == (6, 12, 18)
    alone.timed_step()
    alone.save(run)

    def third(processes):
        trainer = make_trainer(config, processes=processes)
        trainer.restore(run)
        assert (trainer.step, trainer.scheduled, trainer.last_step) == (7, 13, 11)
        assert trainer.train(run)
        return trainer.step

    assert in_processes(3, tmp_path, third) == [11] * 3
    assert load_run(run, "cpu").state["step"] == 11


def test_unbounded_space(config, tmp_path, monkeypatch):
    """Each process notes the blocks that its own rays reach; the models are equal for all that, and a run goes on as
    if it had not stopped, wherever it does."""
    monkeypatch.setattr(distributed, "COMPARED_EVERY", 1)
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 0)
    config.trainer.deterministic, config.sampling.kind = True, "contracted"
    run = tmp_path / "run"

    def whole(processes):
        trainer = trained(config, 7, processes=processes)
        noted = trainer.model.sampler.unreached.tolist()
        assert processes.gathered(noted) != [noted] * 2, "a test of what they have alike needs a difference"
        trainer.save(run)
        return bits_of(trainer)

    def second(processes):
        trainer = make_trainer(config, processes=processes)
        trainer.restore(run)
        for _ in range(7):
            trainer.timed_step()
        trainer.model.agree(processes)
        return bits_of(trainer)

    def at_once(processes):
        trainer = trained(config, 14, processes=processes)
        trainer.model.agree(processes)
        return bits_of(trainer)

    in_processes(2, tmp_path, whole)
    parts, wanted = in_processes(2, tmp_path, second), in_processes(2, tmp_path, at_once)
    for bits in (*parts, wanted[1]):
        assert all(torch.equal(bits[name], x) for name, x in wanted[0].items())


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
        trainer = make_trainer(config, processes=processes)
        assert trainer.train_step() is None
        trainer.save(tmp_path / "run")
        if processes.rank == 1:
            loss, data_term = trainer.training_step.loss, trainer.training_step.loss.data_term
            loss.data_term = lambda *a: {"mse": data_term(*a)["mse"] * float("nan")}
        before = bits_of(trainer)
        with pytest.raises(TrainingError, match="nan at step 1"):
            trainer.train(tmp_path / "run")
        occupancy = ("sampler.opacity", "sampler.occupancy")
        assert all(torch.equal(before[name], x) for name, x in bits_of(trainer).items() if name not in occupancy)

    in_processes(2, tmp_path, train)
    assert load_run(tmp_path / "run", "cpu").state["step"] == 1


@pytest.fixture
def options(config, tmp_path):
    config.parallel.steps_scale, config.trainer.steps, config.data.downscale = 0.0, 8, 2.0
    config.model.aggregator = config.model.encoder = False
    config_module.dump(config, tmp_path / "options.toml")
    return tmp_path / "options.toml"


def test_commands_share_the_work(options, tmp_path):
    run = tmp_path / "run"
    ended = forked(2, tmp_path, command("train", "--config", options, "--out", run))
    assert ended == [0, 0], ended.printed
    assert "2 processes" in ended.printed[0] and ended.printed[1] == ""
    assert [line["step"] for line in read_log(run)] == [] and load_run(run, "cpu").state["step"] == 4
    shared = json.loads((run / "metrics.json").read_text())
    path = ("--path", "test", "--outputs", "rgb,depth")
    ended = forked(2, tmp_path, command("render", run, *path, "--out", tmp_path / "shared", "--device", "cpu"))
    assert ended == [0, 0] and ended.printed[1] == "", ended.printed
    assert forked(1, tmp_path, command("eval", run, "--device", "cpu")) == [0]
    alone = json.loads((run / "metrics.json").read_text())
    assert shared["views"] == alone["views"] and shared["psnr"] == alone["psnr"] and len(shared["views"]) > 1
    assert forked(1, tmp_path, command("render", run, *path, "--out", tmp_path / "alone", "--device", "cpu")) == [0]
    names = sorted(file.name for file in (tmp_path / "alone").iterdir() if file.suffix in (".png", ".npz"))
    assert len(names) == 5 * len(shared["views"])
    for name in names:
        assert (tmp_path / "shared" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    first, other = (tmp_path / "shared" / f"{shared['views'][view]['view']}.png" for view in (0, -1))
    first.unlink()
    kept = other.stat().st_mtime_ns
    again = command("render", run, *path, "--out", tmp_path / "shared", "--device", "cpu", "--resume")
    assert forked(2, tmp_path, again) == [0, 0]
    assert first.exists()
    assert other.stat().st_mtime_ns == kept


def test_what_all_find_wrong_is_said_once(options, tmp_path):
    ended = forked(2, tmp_path, command("train", "--config", options, "--data.path", "nowhere"))
    assert ended == [1, 1] and "nowhere" in ended.printed[0] and ended.printed[1] == ""


def fail() -> None:
    raise ValueError("of this process alone")


@pytest.mark.parametrize(
    "rank, what, statuses, said, step",
    [
        (1, signal.SIGTERM, [143, 143], ("stopped at step 3", ""), 3),
        (0, signal.SIGINT, [130, 130], ("stopped at step 3", ""), 3),
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
        assert text in printed and (text or not printed)
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
    assert printed.count(f"{run} holds a run already") == 1
