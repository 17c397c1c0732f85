# SPDX-License-Identifier: Apache-2.0
import json
import math
import random

import numpy as np
import pytest
import torch

from nerfkit.errors import RunError, TrainingError
from nerfkit.training.run import checkpoint
from nerfkit.training.run import files as run_files
from nerfkit.training.run.folder import RunFolder
from tests.naming import raises_mentioning
from tests.trainers import make_trainer, state_of, trained

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name, made", [("1.exp_avg", None), ("0.step", None), ("1.exp_avg_sq", torch.ones(3))])
def test_moments_are_whole_or_refused(small_config, tmp_path, name: str, made: torch.Tensor | None):
    trained(small_config, 1).save(tmp_path)
    whole, state = checkpoint.load(tmp_path)
    tensors = {key: x for key, x in whole.items() if key != f"optimizer.{name}"}
    tensors |= {f"optimizer.{name}": made} if made is not None else {}
    edited = state | {"random": {"python": 1}}
    for saved, named in ((tensors, state), f"optimizer.{name}"), ((whole, edited), "TypeError"):
        checkpoint.save(RunFolder.existing(tmp_path), *saved)
        with raises_mentioning(RunError, "checkpoint", tmp_path, named):
            make_trainer(small_config).restore(tmp_path)


def test_nan_stops_and_is_never_saved(small_config, tmp_path):
    small_config.data.pose_optimization, run = True, tmp_path / "run"
    trainer = trained(small_config, 1)
    trainer.save(run)
    trainer.model.decoder.color_net.layers()[-1][1].data.fill_(math.nan)
    with raises_mentioning(TrainingError, "nan", "step 1", run):
        trainer.train(run)
    with raises_mentioning(TrainingError, "decoder.color_net.packed", "step 1"):
        trainer.save(run)
    trainer.model.decoder.color_net.layers()[-1][1].data.zero_()
    trainer.adjustments.poses.data[0, 0] = math.nan
    with raises_mentioning(TrainingError, "views.poses", "step 1"):
        trainer.save(run)
    tensors, state = checkpoint.load(run)
    assert state["step"] == 1 and tensors["model.decoder.color_net.packed"].isfinite().all()
    small_config.trainer.steps = 3
    again = make_trainer(small_config)  # as the message says, in this process: the folder is not locked
    again.restore(run)
    assert again.train(run) and again.step == 3


def test_a_step_with_far_too_many_rays_renders_those_that_fit(small_config):
    trainer = make_trainer(small_config)
    trainer.training_step.n_rays.fill_(20_000)
    trainer.train_step()
    assert 4096 < trainer.training_step.pop_stats().samples <= 2 * 4096
    assert len(trainer.model(trainer.cameras.image_rays(0), torch.ones(3)).samples.t_starts) > 2 * 4096


def test_an_empty_batch_trains_on(small_config):
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
    trainer = make_trainer(small_config)
    with_clock(trainer, 0.25)
    assert trainer.train() and trainer.step == 8
    assert trainer.learning_rate() == pytest.approx(small_config.trainer.final_learning_rate, rel=0.05)


def test_a_stop_saves_what_is_done_and_a_resumed_run_logs_no_step_twice(small_config, tmp_path):
    small_config.trainer.steps = 9
    trainer, asked = make_trainer(small_config), []
    with_clock(trainer, 0.25)
    assert not trainer.train(tmp_path / "run", should_stop=lambda: asked.append(1) or len(asked) > 6)
    assert trainer.step == 6 and checkpoint.load(tmp_path / "run")[1]["step"] == 6
    trainer.folder.append(run_files.LOG, json.dumps({"step": 7, "seconds": 1.0, "loss": 123.0}))  # not saved any more
    resumed = make_trainer(small_config)
    resumed.restore(tmp_path / "run")
    with_clock(resumed, 0.25)
    assert resumed.train(tmp_path / "run")
    lines = run_files.read_log(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 10)) and max(line["loss"] for line in lines) < 100
    assert lines[2]["seconds"] > lines[1]["seconds"]
    assert lines[3]["rays_per_second"] > lines[2]["rays_per_second"] / 2, "of the time since the run went on"


def test_the_number_of_rays_follows_that_of_samples(small_config):
    small_config.trainer.samples_per_step = 3000
    trainer = trained(small_config, 20)
    trainer.training_step.pop_stats()
    for _ in range(10):
        trainer.train_step()
    assert trainer.training_step.pop_stats().samples / 10 == pytest.approx(3000, rel=0.15)


def test_checkpoints_on_the_way(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.save_every = 20, 6
    trainer, saved = make_trainer(small_config), []
    save = trainer.save
    trainer.save = lambda folder: (saved.append(trainer.step), save(folder))
    trainer.train(tmp_path / "run")
    assert saved == [0, 6, 12, 18, 20]


def draw() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), np.random.rand()


@pytest.mark.parametrize("background, optimizer, learned", [("white", "adam", ""), ("random", "lazy_adam", "both")])
def test_40_steps_equal_20_and_20(small_config, tmp_path, background: str, optimizer: str, learned: str):
    """Bit for bit: model, light and poses of the views, who passed by, optimiser, occupancy, number of rays and random
    states; the background's warm-up goes on."""
    small_config.trainer.steps = 240  # of which an eighth has random backgrounds
    small_config.data.background, small_config.trainer.optimizer = background, optimizer
    if learned:
        small_config.data.appearance, small_config.data.pose_optimization = "affine", True
        small_config.trainer.robust = True
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
    outliers_of = lambda trainer: trainer.training_step.outliers.state_dict() if learned else {}  # noqa: E731
    wanted, got = (state_of(trainer) | trainer.parameters | outliers_of(trainer) for trainer in (whole, second))
    assert second.step == 40 and second.training_step.n_rays == whole.training_step.n_rays
    assert [name for name in wanted if not torch.equal(wanted[name], got[name])] == []
    assert not learned or all(got[name].any() for name in ("views.poses", "views.appearance", "error"))
    for name, a in whole.parameters.items():
        moments_a, moments_b = whole.optimizer.state[a], second.optimizer.state[second.parameters[name]]
        assert all(torch.equal(moments_a[key], moments_b[key]) for key in moments_a)
