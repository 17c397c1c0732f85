# SPDX-License-Identifier: Apache-2.0
"""Pictures of a training on its way: which there are, what they show, and that the training stays what it is."""

import time

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from PIL import Image

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


def with_previews(config, folder) -> tuple[Trainer, Previews]:
    """A trainer with pictures, which has not begun, or goes on in its folder."""
    scene = load_scene(config.data.path)
    trainer, run = make_trainer(config, scene=scene), RunFolder(folder)
    if (folder / "config.toml").exists():
        run = RunFolder.existing(folder)
        trainer.restore(run)
    else:
        run.start(config, describe(scene))
    pictures = Previews(config, shown_view(scene), trainer.device)
    pictures.attach(trainer, run)
    trainer.folder = run
    return trainer, pictures


def picture_of(folder, name: str) -> np.ndarray:
    return imageio.imread(folder / "previews" / f"{name}.png").astype(float)


def steps_in(folder) -> list[int]:
    return [int(file.stem) for file in sorted((folder / "previews").glob("[0-9]*.png"))]


def test_the_training_has_the_same_bits(small_config, tmp_path):
    """Model, optimiser, modes of modules and every random stream, with pictures and without."""
    small_config.trainer.steps, small_config.trainer.preview_every = 30, 7
    small_config.data.background = "random"
    found = []
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
        moments = trainer.optimizer.state_dict()["state"][0]
        found.append((state_of(trainer) | moments, np.random.get_state()[1].tolist(), modes))
    assert steps_in(tmp_path / "True") == [7, 14, 21, 28, 30]
    (plain, *plain_others), (seen, *others) = found
    assert [name for name, value in plain.items() if not torch.equal(value, seen[name])] == []
    assert plain_others == others and len(set(others[1])) == 2


def test_a_picture_takes_no_training_time(small_config, tmp_path, monkeypatch):
    small_config.trainer.steps, small_config.trainer.preview_every = 3, 1
    trainer, pictures = with_previews(small_config, tmp_path / "run")
    render = ImageRenderer.__call__
    monkeypatch.setattr(ImageRenderer, "__call__", lambda *arguments: (time.sleep(0.5), render(*arguments))[1])
    trainer.train(trainer.folder)
    assert steps_in(tmp_path / "run") == [1, 2, 3] and trainer.seconds < 1.5


def test_a_picture_is_the_first_test_view(small_config, tmp_path, monkeypatch):
    """Pixel for pixel what the model renders of that view, not taller than wide, smaller where it has to be."""
    monkeypatch.setitem(previews.SIDE, "cpu", 13)
    small_config.trainer.steps, small_config.trainer.preview_every = 80, 40
    run, size = tmp_path / "run", (13, 11)
    trainer, pictures = with_previews(small_config, run)
    trainer.train(trainer.folder)
    pictures.finish(trainer)
    assert steps_in(run) == [40, 80]
    cameras = load_scene(small_config.data.path).split("test").cameras[[0]].resized(*size)
    wanted = to_uint8(ImageRenderer(trainer.model, torch.ones(3))(cameras, 0)["rgb"])
    early, late, truth = (picture_of(run, name) for name in ("000040", "000080", "truth"))
    assert late.shape == (11, 13, 3) and np.abs(late - wanted).max() <= 1
    image = Image.open(f"{small_config.data.path}/test/r_0.png")
    over = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.abs(truth - np.asarray(over.resize(size, Image.Resampling.BOX))).mean() < 2
    assert ((late - truth) ** 2).mean() < ((early - truth) ** 2).mean(), "it becomes what it is to be"


@pytest.mark.parametrize("n_steps", [2000, 100_000])
def test_places_are_dense_at_first_and_as_many_for_every_length(n_steps: int):
    passed = np.array([places_passed((step + 1) / n_steps) for step in range(n_steps)])
    taken = np.flatnonzero(np.diff(passed, prepend=0)) + 1
    assert 20 <= len(taken) <= PICTURES == passed[-1] and (np.diff(passed) >= 0).all() and taken[-1] == n_steps
    assert len(taken[taken <= n_steps // 10]) >= len(taken) // 2, "half of them in the first tenth"
    assert places_passed(0.0) == 0 and places_passed(3.0) == PICTURES


def test_pictures_wait_for_the_time_that_they_may_take(small_config, tmp_path, monkeypatch):
    """After one that was slow; who has stopped the training does not wait for another, which the end has."""
    small_config.trainer.preview_every = previews.AUTOMATIC
    run, (trainer, pictures) = tmp_path / "run", with_previews(small_config, tmp_path / "run")
    for _ in range(10):
        trainer.timed_step()
        pictures.after_step(trainer)
        monkeypatch.setattr(pictures, "_spent", 1e6)
    pictures.finish(trainer, stopped=True)
    assert steps_in(run) == [1] and (run / "previews" / "strip.png").exists()
    pictures._spent = 0.0
    pictures.after_step(trainer)
    assert steps_in(run) == [1, 10]
    trainer.timed_step()
    pictures.finish(trainer)
    assert steps_in(run) == [1, 10, 11]


def test_strip_and_gif_are_of_all_parts_of_a_run(small_config, tmp_path):
    """Stopped and resumed: earlier pictures stay, those of steps that come again go, files of users stay."""
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 30, 2
    trainer, pictures = with_previews(small_config, run)
    assert not trainer.train(trainer.folder, should_stop=lambda: trainer.step >= 11)
    pictures.finish(trainer)
    assert steps_in(run) == [2, 4, 6, 8, 10, 11]
    pictures.folder.write("000012.png", b"of a step that was not saved")
    (run / "previews" / "mine.png").write_text("mine")
    trainer, pictures = with_previews(small_config, run)
    assert trainer.step == 11 and steps_in(run) == [2, 4, 6, 8, 10, 11]
    trainer.train(trainer.folder)
    pictures.finish(trainer)
    steps = [2, 4, 6, 8, 10, 11, *range(12, 31, 2)]
    assert steps_in(run) == steps and (run / "previews" / "mine.png").read_text() == "mine"
    strip = picture_of(run, "strip")
    parts = [strip[:, i * (WIDTH + previews.GAP) :][:, :WIDTH] for i in range(previews.IN_STRIP)]
    assert strip.shape[1] == previews.IN_STRIP * (WIDTH + previews.GAP) - previews.GAP
    for part, name in ((parts[0], "000002"), (parts[-2], "000030"), (parts[-1], "truth")):
        assert np.array_equal(part, picture_of(run, name)), name
    with Image.open(run / "previews" / "progress.gif") as gif:
        assert gif.size == (WIDTH, HEIGHT) and 2 < gif.n_frames <= len(steps)


def test_a_folder_of_a_users_is_left_alone_and_ends_no_training(small_config, tmp_path, capsys):
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 4, 2
    make_trainer(small_config, scene=load_scene(small_config.data.path)).save(run)
    (run / "previews").mkdir()
    (run / "previews" / "000002.png").write_text("mine")
    trainer, pictures = with_previews(small_config, run)
    assert trainer.train(trainer.folder)
    pictures.finish(trainer)
    assert [file.name for file in (run / "previews").iterdir()] == ["000002.png"]
    assert (run / "previews" / "000002.png").read_text() == "mine"
    assert_names(capsys.readouterr().out, run / "previews")
