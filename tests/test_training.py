# SPDX-License-Identifier: Apache-2.0
import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nerfkit import Cameras, load_run, ops
from nerfkit import config as config_module
from nerfkit.config import to_dict
from nerfkit.errors import ConfigError, RunError, SceneError, TrainingError
from nerfkit.model.registry import build_model
from nerfkit.training.building import check_seen
from nerfkit.training.run import checkpoint
from nerfkit.training.run import files as run_files
from nerfkit.training.run.files import NAN_REPORT
from nerfkit.training.step.optim import DECAY_EVERY, decay_tables, learning_rate
from tests.naming import raises_naming
from tests.trainers import loss_of_a_step, make_trainer, state_of, trained

pytestmark = pytest.mark.slow


def test_resuming_with_other_options(small_config, tmp_path):
    make_trainer(small_config).save(tmp_path)
    before = to_dict(small_config)
    for group, key, value, named in (
        ("data", "box", (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0), ("data.box", "(-0.8", "(-1.0")),
        ("model", "hidden", 32, ("model.hidden", "16", "32", "--out")),
        ("sampling", "step", 0.05, ("sampling.step", "0.04", "0.05")),
    ):
        other = config_module.from_dict(before | {group: before[group] | {key: value}}, "copy")
        with raises_naming(RunError, *named):
            make_trainer(other).restore(tmp_path)
    with raises_naming(RunError, "seed", "0", "7"):
        make_trainer(config_module.from_dict(before | {"seed": 7}, "copy")).restore(tmp_path)


def test_resuming_with_another_length_rate_and_place(small_config, tmp_path):
    first = trained(small_config, 1)
    first.save(tmp_path)
    small_config.trainer.steps, small_config.trainer.learning_rate, small_config.trainer.log_every = 99, 0.01, 5
    small_config.out, small_config.eval.comparisons, small_config.ops.overrides = "elsewhere", 1, {"lltm": "torch"}
    small_config.trainer.capture = False
    second = make_trainer(small_config)
    second.restore(tmp_path)
    assert second.step == 1 and second.progress == pytest.approx(1 / 99)
    assert torch.equal(second.model.grid.table, first.model.grid.table)


def test_a_model_that_does_not_fit_the_configuration(small_config, tmp_path):
    make_trainer(small_config).save(tmp_path)
    small_config.model.hidden = 32
    config_module.dump(small_config, tmp_path / run_files.CONFIG)
    with raises_naming(RunError, "config.toml", "decoder"):
        make_trainer(small_config).restore(tmp_path)
    with raises_naming(RunError, "config.toml", "decoder"):
        load_run(tmp_path, "cpu")


@pytest.mark.parametrize("encoder, aggregator", [(False, False), (True, False), (False, True), (True, True)])
def test_ray_context_starts_as_a_plain_field(small_config, tmp_path, encoder: bool, aggregator: bool):
    """Zero-initialised residuals: before training, what the ray sees changes no color."""
    small_config.model.encoder, small_config.model.aggregator = encoder, aggregator
    renderer = make_trainer(small_config).model
    n_context = renderer.grid.n_features * encoder + small_config.model.state * aggregator
    assert n_context == 0 or not renderer.decoder.color_net.layers()[0][0][:, -n_context:].any()
    positions = torch.rand(5, 3)
    density = renderer.density(positions)
    features = renderer.grid(positions)
    torch.testing.assert_close(renderer.decoder.density(features)[0], density)


def test_nan_stops_and_reports(small_config, tmp_path):
    small_config.data.poses = "refine"
    trainer = trained(small_config, 1)
    trainer.save(tmp_path / "run")
    with torch.no_grad():
        trainer.model.decoder.color_net.layers()[-1][1].fill_(float("nan"))
    with raises_naming(TrainingError, "nan", "step 1", tmp_path / "run"):
        trainer.train(tmp_path / "run")
    report = json.loads((tmp_path / "run" / NAN_REPORT).read_text())
    assert report["step"] == 1 and report["not_finite"]["decoder.color_net.packed"] == 3
    assert report["not_finite"]["color"] > 0 and report["not_finite"]["origins"] == 0
    with raises_naming(TrainingError, "parameter", "step 1"):
        trainer.save(tmp_path / "run")
    trainer.adjustments.poses.data[0, 0] = math.nan
    with raises_naming(TrainingError, "parameter", "step 1"):
        trainer.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / NAN_REPORT).read_text())["not_finite"]["views.poses"] == 1
    tensors, state = checkpoint.load(tmp_path / "run")
    assert state["step"] == 1 and tensors["model.decoder.color_net.packed"].isfinite().all()
    small_config.trainer.steps = 3
    again = make_trainer(small_config)  # as the message says, in this process: the folder is not locked
    again.restore(tmp_path / "run")
    assert again.train(tmp_path / "run") and again.step == 3


def test_rays_that_miss_the_box(small_config, tmp_path):
    small_config.data.box = (50.0, 50.0, 50.0, 51.0, 51.0, 51.0)
    with raises_naming(SceneError, "data.box", "50.0", "51.0"):
        make_trainer(small_config)


def test_one_ray_that_meets_the_box_is_not_enough():
    """As a box has it that is far away on the axis of one of many views."""
    poses = torch.eye(4)[:3].repeat(100, 1, 1)
    cameras = Cameras(poses, torch.full((100, 2), 30.0), torch.full((100, 2), 16.0), 32, 32)
    model = SimpleNamespace(sees=lambda rays: torch.arange(len(rays.origins)) == 0)
    with raises_naming(SceneError, "next to no ray", "data.box"):
        check_seen(model, cameras, (0.0,) * 6)
    check_seen(SimpleNamespace(sees=lambda rays: torch.arange(len(rays.origins)) % 1000 == 0), cameras, (0.0,) * 6)


def test_an_empty_batch_trains_on(small_config, tmp_path):
    trainer = make_trainer(small_config)
    trainer.step = 1  # no occupancy update
    trainer.model.sampler.occupancy.zero_()
    trainer.train_step()
    assert trainer.training_step.pop_stats().samples == 0


def with_clock(trainer, seconds_a_step: float) -> None:
    """Let every step of `trainer` take that time, whatever it takes here."""
    train_step = trainer.train_step
    trainer.timed_step = lambda: (train_step(), setattr(trainer, "seconds", trainer.seconds + seconds_a_step))


def test_time_limit_ends_with_the_schedule(small_config, tmp_path):
    """After the steps that fit into it, as if there had been no more of them."""
    small_config.trainer.steps, small_config.trainer.max_seconds = 24, 2.0
    small_config.trainer.warmup = 1
    trainer = make_trainer(small_config)
    with_clock(trainer, 0.25)
    assert trainer.train() and trainer.step == 8
    assert trainer.learning_rate() == pytest.approx(small_config.trainer.final_learning_rate, rel=0.05)


def test_as_many_steps_as_asked_for_and_a_line_of_log_for_every_few(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.log_every = 11, 4
    trainer = make_trainer(small_config)
    with_clock(trainer, 0.25)
    assert trainer.train(tmp_path / "run") and trainer.step == 11
    assert checkpoint.load(tmp_path / "run")[1]["step"] == 11
    lines = run_files.read_log(tmp_path / "run")
    assert [line["step"] for line in lines] == [4, 8]
    for line in lines:
        assert line["psnr"] == pytest.approx(-10 * math.log10(line["loss"]), abs=1e-6)
        assert line["seconds"] == pytest.approx(line["step"] * 0.25, abs=0.2)
        assert 1 < line["samples_per_ray"] < 100
        assert line["rays_per_second"] > 100


def test_a_stop_saves_what_is_done_and_a_resumed_run_logs_no_step_twice(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.log_every = 9, 2
    trainer, asked = make_trainer(small_config), []
    assert not trainer.train(tmp_path / "run", should_stop=lambda: asked.append(1) or len(asked) > 5)
    assert trainer.step == 5 and checkpoint.load(tmp_path / "run")[1]["step"] == 5
    trainer.folder.append(run_files.LOG, json.dumps({"step": 6, "seconds": 1.0, "loss": 123.0}))  # not saved any more
    resumed = make_trainer(small_config)
    resumed.restore(tmp_path / "run")
    assert resumed.train(tmp_path / "run")
    lines = run_files.read_log(tmp_path / "run")
    assert [line["step"] for line in lines] == [2, 4, 6, 8] and max(line["loss"] for line in lines) < 100
    assert lines[2]["seconds"] > lines[1]["seconds"]


def test_the_number_of_rays_follows_that_of_samples(small_config):
    """A step has about as many samples as asked for, once the field is known."""
    small_config.trainer.samples = 3000
    trainer = trained(small_config, 20)
    trainer.training_step.pop_stats()
    for _ in range(10):
        trainer.train_step()
    assert trainer.training_step.pop_stats().samples / 10 == pytest.approx(3000, rel=0.15)


def test_the_optimiser_takes_the_rate_of_the_schedule(small_config):
    """Adam's first step is as long as its rate, a tenth of it in a warm-up of ten."""
    trainer = make_trainer(small_config)
    bias = trainer.model.decoder.color_net.layers()[-1][1]
    before = bias.detach().clone()
    trainer.train_step()
    torch.testing.assert_close((bias - before).abs(), torch.full((3,), 0.003), rtol=1e-3, atol=0)


@pytest.mark.parametrize("optimizer, stands_still", [("adam", False), ("lazy_adam", True)])
def test_the_optimiser_is_the_one_asked_for(small_config, optimizer: str, stands_still: bool):
    """Without gradients Adam goes on by its old moments, the lazy one stands still."""
    small_config.trainer.optimizer = optimizer
    trainer = trained(small_config, 1)
    table = trainer.model.grid.table
    before = table.detach().clone()
    table.grad = torch.zeros_like(table)
    trainer.optimizer.step()
    assert torch.equal(table, before) == stands_still


@pytest.mark.parametrize(
    "schedule, rates",
    [
        ("exponential", (0.1, 0.1**1.5, 0.01, 0.001)),
        ("linear", (0.1, 0.07525, 0.0505, 0.001)),
        ("cosine", (0.1, 0.0855017857, 0.0505, 0.001)),
    ],
)
def test_how_the_rate_falls(small_config, schedule: str, rates: tuple[float, ...]):
    """At the start of the schedule, after a quarter and a half of it, and at its end."""
    settings = small_config.trainer
    settings.learning_rate, settings.final_learning_rate, settings.warmup, settings.schedule = 0.1, 0.001, 1, schedule
    found = [learning_rate(settings, 100, progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx(rates) and learning_rate(settings, 100, 1.7) == pytest.approx(0.001)
    settings.warmup = 10  # in which it rises
    risen = [learning_rate(settings, step, 0.0) / 0.1 for step in (0, 4, 9, 10)]
    assert risen == pytest.approx([0.1, 0.5, 1, 1])


def test_a_table_decays_by_the_rate(small_config):
    """A row that no sample touches shrinks by (1 - rate * decay) a step, over a rate that changes."""
    small_config.trainer.table_decay, small_config.trainer.optimizer = 0.5, "lazy_adam"
    trainer = make_trainer(small_config)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    rate, shrunk = trainer.learning_rate, 1.0
    for step in range(2 * DECAY_EVERY):
        if step % DECAY_EVERY == 0:
            shrunk *= (1 - rate() * 0.5) ** DECAY_EVERY
        trainer.train_step()
    untouched = (trainer.optimizer.state[trainer.model.grid.table]["exp_avg_sq"] == 0).all(1)
    assert untouched.any() and shrunk < 0.95
    assert torch.allclose(trainer.model.grid.table[untouched], before["grid.table"][untouched] * shrunk, rtol=1e-5)


def test_a_decay_that_would_turn_features_round_is_refused(small_config):
    small_config.trainer.table_decay = 1 / small_config.trainer.learning_rate
    with raises_naming(ConfigError, "trainer.table_decay", small_config.trainer.learning_rate):
        config_module.check(small_config)
    small_config.trainer.table_decay *= 0.99
    config_module.check(small_config)

    def without_tables(config):
        model = build_model(config)
        model.tables = lambda: []
        return model

    with raises_naming(ConfigError, "trainer.table_decay", "tables"):
        make_trainer(small_config, model=without_tables)


def test_networks_do_not_decay(small_config):
    small_config.trainer.table_decay = 2.0
    model = make_trainer(small_config).model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    decay_tables(model, small_config.trainer, DECAY_EVERY + 1, 0.01)
    assert torch.equal(model.grid.table, before["grid.table"]), "between two decays"
    decay_tables(model, small_config.trainer, 3 * DECAY_EVERY, 0.01)
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert changed == ["grid.table"]
    assert torch.allclose(model.grid.table, before["grid.table"] * 0.98**DECAY_EVERY)


def test_checkpoints_on_the_way_and_time_that_goes_on(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.save_every = 20, 6
    trainer, saved = make_trainer(small_config), []
    save = trainer.save
    trainer.save = lambda folder: (saved.append(trainer.step), save(folder))
    trainer.train(tmp_path / "run")
    assert saved == [0, 6, 12, 18, 20]
    trainer.seconds = 123.0
    save(tmp_path / "run")
    other = make_trainer(small_config)
    other.restore(tmp_path / "run")
    assert other.seconds == 123


def draw() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), np.random.rand()


@pytest.mark.parametrize("background, optimizer, learned", [("white", "adam", ""), ("random", "lazy_adam", "both")])
def test_40_steps_equal_20_and_20(small_config, tmp_path, background: str, optimizer: str, learned: str):
    """Bit for bit: model, light and poses of the views, optimiser, occupancy, number of rays and random states; the
    background's warm-up goes on."""
    small_config.trainer.background_warmup, small_config.trainer.steps = 30, 100
    small_config.data.background, small_config.trainer.optimizer = background, optimizer
    if learned:
        small_config.data.appearance, small_config.data.poses = "affine", "refine"
    whole = make_trainer(small_config)
    for step in range(40):
        if step == 20:
            whole.save(tmp_path / "parts")
            drawn = draw()
        whole.train_step()
    second = make_trainer(small_config)
    second.restore(tmp_path / "parts")
    assert draw() == drawn, "what code of one's own may draw from goes back, too"
    for _ in range(20):
        second.train_step()
    wanted, got = (state_of(trainer) | trainer.parameters for trainer in (whole, second))
    assert second.step == 40 and second.training_step.n_rays == whole.training_step.n_rays
    assert [name for name in wanted if not torch.equal(wanted[name], got[name])] == []
    assert not learned or (got["views.poses"].any() and got["views.appearance"].any())
    for name, a in whole.parameters.items():
        moments_a, moments_b = whole.optimizer.state[a], second.optimizer.state[second.parameters[name]]
        assert all(torch.equal(moments_a[key], moments_b[key]) for key in moments_a)


def test_switching_the_backend_in_the_middle(small_config, tmp_path):
    """20 steps with one, 20 with the other, then resumed with the first; a switch changes no step that follows it."""
    if not all("cpp" in ops.available(op) for op in ops.resolved("cpu")):
        pytest.skip("needs the CPU's fused ops")
    small_config.trainer.background_warmup = 0  # losses compare over one background
    trainer = make_trainer(small_config)
    trainer.save(tmp_path)
    names = sorted(trainer.model.state_dict())
    losses, order = [], ("torch", "cpp", "torch")
    for part, backend in enumerate(order):
        if part:
            random_state = torch.get_rng_state()
            twin = make_trainer(small_config)
            twin.restore(tmp_path)
            with ops.backend(order[part - 1]):
                stayed = loss_of_a_step(twin)
            torch.set_rng_state(random_state)
        if part == 2:
            trainer = make_trainer(small_config)
            trainer.restore(tmp_path)
        with ops.backend(backend):
            losses += [loss_of_a_step(trainer) for _ in range(20)]
            trainer.save(tmp_path)
        if part:
            assert losses[20 * part] == pytest.approx(stayed, rel=1e-3)
        tensors, state = checkpoint.load(tmp_path)
        assert sorted(checkpoint.part(tensors, "model")) == sorted(trainer.model.state_dict()) == names
        assert state["step"] == 20 * (part + 1) and set(state["backend"].values()) == {backend}
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])
