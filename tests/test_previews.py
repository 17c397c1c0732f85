# SPDX-License-Identifier: Apache-2.0
"""Pictures of a training on its way: which there are, what they show, and that the training stays what it is."""

import dataclasses
import math
import time

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit import files
from nerfkit.data.load import load_scene
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import to_uint8
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching import previews
from nerfkit.training.watching.previews import PICTURES, Previews, places_passed, shown_view
from tests.naming import assert_names
from tests.toy_scene import HEIGHT, WIDTH
from tests.trainers import make_trainer, state_of


def with_previews(config, folder, trainer: Trainer | None = None) -> tuple[Trainer, Previews]:
    """A trainer with pictures, which has not begun, or goes on in its folder."""
    scene = load_scene(config.data.path)
    trainer = trainer or make_trainer(config, scene=scene)
    run = RunFolder(folder)
    if (folder / "config.toml").exists():
        run = RunFolder.existing(folder)
        trainer.restore(run)
    else:
        run.start(config, describe(scene))
    pictures = Previews(config, shown_view(scene), trainer.device)
    pictures.attach(trainer, run)
    trainer.folder = run
    return trainer, pictures


def steps_in(folder) -> list[int]:
    return [int(file.stem) for file in sorted((folder / "previews").glob("[0-9]*.png"))]


def test_the_training_has_the_same_bits(small_config, tmp_path):
    """Model, optimiser, modes of modules and every random stream, with pictures and without."""
    small_config.trainer.steps, small_config.trainer.preview_every = 30, 7
    small_config.data.background, small_config.trainer.background_warmup = "random", 100
    trainers = []
    for on in (False, True):
        trainer, pictures = with_previews(small_config, tmp_path / str(on))
        trainer.model.train()
        trainer.model.decoder.eval()  # a module that is in another mode stays in it
        if not on:
            trainer.on_step.clear()
        np.random.seed(3)
        trainer.train(trainer.folder)
        if on:
            pictures.finish(trainer)
        modes = [module.training for module in trainer.model.modules()]
        trainers.append((state_of(trainer), np.random.get_state()[1].tolist(), modes, trainer.optimizer.state_dict()))
    assert steps_in(tmp_path / "True") == [7, 14, 21, 28, 30]
    (plain, plain_numpy, plain_modes, plain_moments), (seen, numpy, modes, moments) = trainers
    for name, value in plain.items():
        assert torch.equal(value, seen[name]), name
    assert plain_numpy == numpy and plain_modes == modes and len(set(modes)) == 2
    for key, value in plain_moments["state"][0].items():
        assert torch.equal(value, moments["state"][0][key]), key


def test_a_picture_takes_no_training_time(small_config, tmp_path, monkeypatch):
    small_config.trainer.steps, small_config.trainer.preview_every = 3, 1
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    render = ImageRenderer.__call__
    waited = []

    def slow(*arguments):
        time.sleep(0.5)
        waited.append(0.5)
        return render(*arguments)

    monkeypatch.setattr(ImageRenderer, "__call__", slow)
    trainer.train(trainer.folder)
    assert len(waited) == 3 and trainer.seconds < 1.5


@pytest.mark.parametrize("side", [previews.SIDE, 13])
def test_a_picture_is_the_first_test_view(small_config, tmp_path, monkeypatch, side: int):
    """Pixel for pixel what the model renders of that view, not taller than wide, smaller where it has to be."""
    monkeypatch.setattr(previews, "SIDE", side)
    small_config.trainer.steps, small_config.trainer.preview_every = 80, 40
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    trainer.train(trainer.folder)
    pictures.finish(trainer)
    assert steps_in(tmp_path / "run") == [40, 80]
    size = (WIDTH, HEIGHT) if side > WIDTH else (13, 11)
    cameras = load_scene(small_config.data.path).split("test").cameras[[0]].resized(*size)
    wanted = to_uint8(ImageRenderer(trainer.model, torch.ones(3))(cameras, 0)["rgb"])
    found = imageio.imread(tmp_path / "run" / "previews" / "000080.png")
    assert found.shape == (size[1], size[0], 3) and np.abs(found.astype(int) - wanted).max() <= 1
    truth = imageio.imread(tmp_path / "run" / "previews" / "truth.png")
    image = Image.open(f"{small_config.data.path}/test/r_0.png")
    over = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.abs(truth.astype(float) - np.asarray(over.resize(size, Image.Resampling.BOX))).mean() < 2
    errors = [
        ((imageio.imread(tmp_path / "run" / "previews" / f"{step:06d}.png") / 255.0 - truth / 255.0) ** 2).mean()
        for step in (40, 80)
    ]
    assert errors[1] < errors[0], "it becomes what it is to be"


def test_without_test_views_it_is_the_first_training_view(small_config):
    scene = load_scene(small_config.data.path)
    alone = dataclasses.replace(scene, views={"train": scene.views["train"]})
    assert shown_view(alone).files == [scene.views["train"].files[0]]
    assert shown_view(scene).files == [scene.views["test"].files[0]] and len(shown_view(scene).cameras) == 1


def test_places_are_dense_at_first_and_as_many_for_every_length():
    for n_steps in (2000, 100_000):
        passed = np.array([places_passed((step + 1) / n_steps) for step in range(n_steps)])
        taken = np.flatnonzero(np.diff(passed, prepend=0)) + 1
        assert passed[-1] == PICTURES and passed.max() == PICTURES and (np.diff(passed) >= 0).all()
        assert 20 <= len(taken) <= PICTURES and taken[-1] == n_steps
        assert len(taken[taken <= n_steps // 10]) >= len(taken) // 2, "half of them in the first tenth"
        ratios = taken[1:] / taken[:-1]
        assert ratios[-10:].max() / ratios[-10:].min() < 1.05, "evenly spaced in the logarithm"
    assert places_passed(0.0) == 0 and places_passed(3.0) == PICTURES


@pytest.mark.parametrize("most, is_coarse", [(-1.0, True), (1e9, False), ("stopped", True)])
def test_a_picture_that_would_cost_too_much_is_a_coarse_one(small_config, tmp_path, monkeypatch, most, is_coarse):
    """As every one is for which somebody waits, who has stopped the training."""
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    monkeypatch.setattr(Previews, "_most_seconds", lambda self, trainer: most)
    monkeypatch.setattr(previews, "WAITED", -1.0)
    rendered, render = [], ImageRenderer.__call__
    monkeypatch.setattr(ImageRenderer, "__call__", lambda *all_: (rendered.append(all_[1].size(0)), render(*all_))[1])
    for _ in range(30):
        trainer.timed_step()
    if most == "stopped":
        pictures.finish(trainer, stopped=True)
    else:
        pictures.after_step(trainer)
    assert rendered == [(6, 5)] + [(WIDTH, HEIGHT)] * (not is_coarse)
    picture = imageio.imread(tmp_path / "run" / "previews" / "000030.png").astype(float)
    pictures.finish(trainer)
    assert steps_in(tmp_path / "run") == [30]
    whole = imageio.imread(tmp_path / "run" / "previews" / "000030.png")
    assert np.abs(picture - whole).mean() < 20, "it stands where the whole one does"


def test_how_long_a_picture_may_take(small_config, tmp_path):
    """Such that all that are to come keep to their share of the training's time, as far as it is known."""
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    trainer.step, trainer.seconds, pictures._spent = 30, 500.0, 11.0  # of 60 steps: a training of 1000 s
    left = PICTURES + 1 - places_passed(0.5)
    assert left > 2 and pictures._most_seconds(trainer) == pytest.approx((0.03 * 1000 + 1 - 11) / left)
    pictures.every = 5
    assert pictures._most_seconds(trainer) == math.inf


def test_strip_and_videos_are_of_all_parts_of_a_run(small_config, tmp_path):
    """Stopped and resumed: earlier pictures stay, those of steps that come again go, files of users stay."""
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 30, 2
    trainer, pictures = with_previews(small_config, run)
    assert not trainer.train(trainer.folder, should_stop=lambda: trainer.step >= 11)
    pictures.finish(trainer)
    assert steps_in(run) == [2, 4, 6, 8, 10, 11]
    assert imageio.imread(run / "previews" / "strip.png").shape == (HEIGHT, 7 * WIDTH + 6 * previews.GAP, 3)
    pictures.folder.write("000012.png", b"of a step that was not saved")
    (run / "previews" / "mine.png").write_text("mine")
    before = (run / "previews" / "000004.png").stat().st_mtime_ns
    trainer, pictures = with_previews(small_config, run)
    assert trainer.step == 11 and steps_in(run) == [2, 4, 6, 8, 10, 11]
    trainer.train(trainer.folder)
    pictures.finish(trainer)
    steps = [2, 4, 6, 8, 10, 11, *range(12, 31, 2)]
    assert steps_in(run) == steps and (run / "previews" / "mine.png").read_text() == "mine"
    assert (run / "previews" / "000004.png").stat().st_mtime_ns == before
    strip = imageio.imread(run / "previews" / "strip.png")
    parts = [strip[:, i * (WIDTH + previews.GAP) :][:, :WIDTH] for i in range(previews.IN_STRIP)]
    assert strip.shape[1] == previews.IN_STRIP * (WIDTH + previews.GAP) - previews.GAP
    for part, name in ((parts[0], "000002"), (parts[-2], "000030"), (parts[-1], "truth")):
        assert np.array_equal(part, imageio.imread(run / "previews" / f"{name}.png")), name
    with Image.open(run / "previews" / "progress.gif") as gif:
        assert gif.size == (WIDTH, HEIGHT) and 2 < gif.n_frames <= len(steps)
    with imageio.get_reader(run / "previews" / "progress.mp4") as video:
        assert video.count_frames() == len(steps) + 16 and video.get_meta_data()["fps"] == previews.FPS


def test_a_full_disk_ends_no_training(small_config, tmp_path, monkeypatch, capsys):
    small_config.trainer.steps, small_config.trainer.preview_every = 12, 2
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    written, write = [], files.atomic_write

    def full(path, *content):
        if path.parent.name == "previews" and path.suffix == ".png":
            written.append(path.name)
            raise files.RunError(f"cannot write {path}: No space left on device")
        write(path, *content)

    monkeypatch.setattr(files, "atomic_write", full)
    assert trainer.train(trainer.folder)
    pictures.finish(trainer)
    assert written == ["000002.png"] and trainer.step == 12, "it is tried once"
    assert_names(capsys.readouterr().out, "000002.png", "No space left")


def test_a_folder_of_a_users_is_left_alone(small_config, tmp_path, capsys):
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 4, 2
    make_trainer(small_config).save(run)
    (run / "previews").mkdir()
    (run / "previews" / "000002.png").write_text("mine")
    trainer, pictures = with_previews(small_config, run, make_trainer(small_config))
    assert trainer.train(trainer.folder)
    pictures.finish(trainer)
    assert [file.name for file in (run / "previews").iterdir()] == ["000002.png"]
    assert (run / "previews" / "000002.png").read_text() == "mine"
    assert_names(capsys.readouterr().out, run / "previews")
