# SPDX-License-Identifier: Apache-2.0
"""Scores of held-out views while a model is trained, in metrics.jsonl, loss.png and TensorBoard."""

import json
import sys

import pytest
import torch

from nerfkit import config as config_module
from nerfkit.commands import train
from nerfkit.commands.options import train_options
from nerfkit.data.load import load_scene
from nerfkit.errors import ConfigError, RunError, UserError
from nerfkit.training.evaluator import evaluate, evenly_chosen
from nerfkit.training.run.files import LOG, read_lines, read_log, read_scores
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.watching import plot, progress
from nerfkit.training.watching.progress import ScoresOverTime
from tests.naming import assert_names, raises_naming
from tests.processes import run_main
from tests.torchrun import in_processes
from tests.toy_scene import write_scene
from tests.trainers import make_trainer, state_of

WHY_TENSORBOARD = "needs the extra 'tensorboard'"


def test_views_are_evenly_spread():
    assert evenly_chosen(200, 8) == [0, 25, 50, 75, 100, 125, 150, 175]
    assert evenly_chosen(5, 3) == [0, 1, 3] and evenly_chosen(3, 8) == [0, 1, 2] and evenly_chosen(3, 0) == []


@pytest.fixture
def config(small_config, tmp_path, monkeypatch):
    """Of a scene with five test views, of which three are scored."""
    monkeypatch.setattr(progress, "SCORED_VIEWS", 3)
    small_config.data.path = str(write_scene(tmp_path / "scene", counts={"train": 8, "test": 5}))
    small_config.trainer.steps, small_config.trainer.log_every = 30, 4
    small_config.eval.every = 10
    return small_config


def scored(config, folder, processes=None, on: bool = True):
    """A trained trainer, with its scores on the way."""
    scene, known = load_scene(config.data.path), {} if processes is None else {"processes": processes}
    trainer = make_trainer(config, **known)
    run = RunFolder(folder)
    if trainer.processes.is_first:
        run.start(config, describe(scene))
    trainer.processes.wait()
    if on:
        ScoresOverTime(config, scene.split("test"), trainer.device, trainer.processes).attach(trainer, run)
    trainer.train(run)
    return trainer


def test_they_are_the_scores_of_evaluation_and_change_nothing(config, tmp_path):
    state = torch.get_rng_state()
    trainer, plain = scored(config, tmp_path / "run"), scored(config, tmp_path / "plain", on=False)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in state_of(plain).items():
        if name != "random":
            assert torch.equal(value, state_of(trainer)[name]), name
    assert trainer.model.training == plain.model.training
    lines = read_scores(tmp_path / "run")
    assert [line["step"] for line in lines] == [10, 20, 30] and lines[0]["seconds"] < lines[2]["seconds"]
    assert [line["step"] for line in read_log(tmp_path / "run")] == [4, 8, 12, 16, 20, 24, 28]
    views, device = load_scene(config.data.path).split("test")[[0, 1, 3]], torch.device("cpu")
    state, folder = {"seconds": 1.0, "step": 30}, RunFolder.existing(tmp_path / "run")
    metrics = evaluate(trainer.model.eval(), config, views, state, folder, device)
    assert lines[2]["test_psnr"] == pytest.approx(metrics["psnr"], abs=1e-4)


def test_processes_share_the_views(config, tmp_path):
    """Scores are those of one process, written once, also where there are fewer views than processes."""
    config.parallel.steps_scale, config.trainer.steps, config.eval.every = 1.0, 4, 4

    def train_shared(processes):
        trainer = scored(config, tmp_path / "shared", processes)
        progress.SCORED_VIEWS = 1
        scene = load_scene(config.data.path)
        few = ScoresOverTime(config, scene.split("test"), trainer.device, processes).score(trainer)
        progress.SCORED_VIEWS = 3
        alone = ScoresOverTime(config, scene.split("test"), trainer.device).score(trainer)
        return few, alone, read_scores(tmp_path / "shared")

    shares = in_processes(2, tmp_path, train_shared)
    assert shares[0][0] == shares[1][0] > 5
    (line,) = shares[0][2]
    assert line["step"] == 4 and line["test_psnr"] == pytest.approx(shares[1][1], abs=1e-5)


def test_a_resumed_run_scores_no_step_twice(config, tmp_path):
    trainer = scored(config, tmp_path / "run")
    trainer.folder.append(LOG, json.dumps({"step": 40, "seconds": 9.0, "test_psnr": 99.0}))  # not saved any more
    config.trainer.steps = 50
    resumed = make_trainer(config)
    resumed.restore(tmp_path / "run")
    views = load_scene(config.data.path).split("test")
    ScoresOverTime(config, views, resumed.device).attach(resumed, resumed.folder)
    resumed.train(resumed.folder)
    lines = read_scores(tmp_path / "run")
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 50] and max(x["test_psnr"] for x in lines) < 60
    assert len(read_log(tmp_path / "run")) == 12


def test_a_view_without_pixels_is_refused_before_training(config, monkeypatch):
    """Not at its first score, which would end a training."""
    views = load_scene(config.data.path).split("test")
    nothing = torch.zeros(22, 26, dtype=torch.bool)
    monkeypatch.setattr(
        "nerfkit.training.evaluator.pixels_that_count", lambda images, cameras, view: nothing if view == 2 else None
    )
    with raises_naming(RunError, views.names[3], "mask"):
        ScoresOverTime(config, views, torch.device("cpu"))


def test_the_plot_shows_them_beside_the_training(tmp_path, monkeypatch):
    figures, made = [], plot.Figure
    monkeypatch.setattr(plot, "Figure", lambda **options: figures.append(made(**options)) or figures[-1])
    log = [{"step": step, "seconds": step / 2, "loss": 0.1, "psnr": 10.0 + step} for step in (1, 2)]
    score = {"step": 2, "seconds": 1.0, "test_psnr": 8.5}
    for name, lines in {"plain": log, "both": [*log, score], "alone": [score]}.items():
        folder = RunFolder(tmp_path / name)
        folder.claim()
        for line in lines:
            folder.append(LOG, json.dumps(line))
        plot.plot_training(folder)
        assert (tmp_path / name / "loss.png").exists()
    plain, both, _ = ([line.get_xydata().tolist() for line in figure.axes[1].lines] for figure in figures)
    assert plain == [[[0.5, 11.0], [1.0, 12.0]]] and both == [*plain, [[1.0, 8.5]]]


@pytest.fixture
def options(config, tmp_path):
    config.trainer.preview_every, config.eval.comparisons = 10, 0
    config_module.dump(config, tmp_path / "options.toml")
    return ["--config", str(tmp_path / "options.toml"), "--out", str(tmp_path / "run")]


def test_the_command_writes_them_all(options, tmp_path, capsys):
    assert run_main(train, *options) == 0
    run = tmp_path / "run"
    assert [line["step"] for line in read_scores(run)] == [10, 20, 30]
    names = {file.name for file in (run / "previews").iterdir()} - {".nerfkit"}
    pictures = {f"{step:06d}.png" for step in (10, 20, 30)}
    assert names == pictures | {"truth.png", "strip.png", "progress.gif", "progress.mp4"}
    assert not (run / "tensorboard").exists() and (run / "loss.png").exists()
    more = ["--trainer.steps", "34", "--trainer.preview_every", "2", "--eval.every", "0"]
    assert run_main(train, "--resume", str(run), *more) == 0
    assert sorted(int(file.stem) for file in (run / "previews").glob("0*.png"))[-3:] == [30, 32, 34]
    assert run_main(train, *options, "--overwrite", "--trainer.preview_every", "0", "--eval.every", "0") == 0
    assert not (run / "previews").exists() and read_scores(run) == []
    with raises_naming(ConfigError, "eval.split", "val", "train", "test"):
        run_main(train, *options, "--overwrite", "--eval.split", "val")
    assert read_scores(run) == [], "the run is still there"


def test_a_missing_package_is_named_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    nowhere = ["--config", "cpu", "--data.path", str(tmp_path / "nowhere")]
    with raises_naming(UserError, "tensorboard", 'pip install "nerfkit[tensorboard]"'):
        run_main(train, *nowhere, "--trainer.tensorboard", "true")
    assert not train_options([]).trainer.tensorboard


def test_files_of_a_users_cost_no_run(options, tmp_path, capsys):
    """What stands in the way of the events is found when an earlier run is gone already: the new one goes on."""
    pytest.importorskip("tensorboard", reason=WHY_TENSORBOARD)
    assert run_main(train, *options) == 0
    (tmp_path / "run" / "tensorboard").mkdir()
    (tmp_path / "run" / "tensorboard" / "mine.txt").write_text("mine")
    assert run_main(train, *options, "--overwrite", "--trainer.tensorboard", "true") == 0
    assert_names(capsys.readouterr().out, "nothing is written for TensorBoard", tmp_path / "run" / "tensorboard")
    assert [file.name for file in (tmp_path / "run" / "tensorboard").iterdir()] == ["mine.txt"]
    assert len(read_scores(tmp_path / "run")) == 3


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_events_are_those_of_the_log_and_go_on(options, tmp_path):
    """A run that was resumed has one curve; steps after the checkpoint, which it trains again, are in it once."""
    pytest.importorskip("tensorboard", reason=WHY_TENSORBOARD)
    run = tmp_path / "run"
    assert run_main(train, *options, "--trainer.tensorboard", "true") == 0
    events = read_events(run / "tensorboard")
    lines = read_lines(run, "loss")
    assert [(e.step, e.value) for e in events.Scalars("train/psnr")] == [
        (line["step"], pytest.approx(line["psnr"], rel=1e-5)) for line in lines
    ]
    scores = read_scores(run)
    assert [e.value for e in events.Scalars("test/psnr")] == [pytest.approx(x["test_psnr"], rel=1e-5) for x in scores]
    metrics = json.loads((run / "metrics.json").read_text())
    (final,) = events.Scalars("test/final_psnr")
    assert final.step == 30 and final.value == pytest.approx(metrics["psnr"], rel=1e-5)
    assert [(e.step, e.width, e.height) for e in events.Images("preview")] == [(10, 26, 22), (20, 26, 22), (30, 26, 22)]
    assert "train/step" not in events.Tags()["scalars"] and events.Images("truth")[0].width == 26

    from nerfkit.training.watching.tensorboard import TensorBoard

    ahead = TensorBoard(RunFolder.existing(run), 30)
    ahead.add_line({"step": 32, "psnr": 99.0})  # of a part of the run that was killed before it saved
    ahead.close()
    assert run_main(train, "--resume", str(run), "--trainer.steps", "40") == 0
    events = read_events(run / "tensorboard")
    assert [e.step for e in events.Scalars("train/psnr")] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert max(e.value for e in events.Scalars("train/psnr")) < 60
    assert [e.step for e in events.Scalars("test/psnr")] == [10, 20, 30, 40]
    assert run_main(train, *options, "--overwrite") == 0
    assert not (run / "tensorboard").exists(), "they are nerfkit's, and go with the run"
