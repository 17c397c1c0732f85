# SPDX-License-Identifier: Apache-2.0
"""Scores of held-out views: after a training, worked out anew from the images, and on its way; images on its way,
what they show; and that the training stays what it is."""

import json
import math
import time

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from matplotlib import figure
from PIL import Image, ImageDraw

from nerfkit import config as config_module
from nerfkit.commands import train
from nerfkit.data.load import load_scene
from nerfkit.metrics import ssim
from nerfkit.parallel import SINGLE_PROCESS
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import LEAST, colorize, to_uint8
from nerfkit.training import watching
from nerfkit.training.evaluator import evaluate
from nerfkit.training.run.files import LOG, read_log, read_scores
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching import Previews, ScoresOverTime, TensorBoard, places_passed, plot_training, shown_view
from tests.naming import assert_names
from tests.processes import in_processes, run_main
from tests.toy_scene import HEIGHT, WIDTH, write_scene
from tests.trainers import make_trainer, state_of

STATE = {"seconds": 12.345, "step": 7, "backend": {"lltm": "torch"}}


@pytest.fixture
def scored(small_config, tmp_path):
    """A field of three steps, over black, its scores and its folder; the model that gave them, and the truth."""
    small_config.data.background, small_config.trainer.steps = "black", 3
    small_config.eval.comparison_images = 1
    trainer = make_trainer(small_config)
    trainer.train(tmp_path / "run")
    views = load_scene(small_config.data.path).split("test")
    metrics = evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
    pixels = views.load().stack().double() / 255
    return metrics, trainer, views, pixels[..., :3] * pixels[..., 3:]  # over black


def rendered(trainer, cameras, view: int) -> torch.Tensor:
    with torch.no_grad():
        color = trainer.model(cameras.image_rays(view), torch.zeros(3)).color
    return color.clamp(0, 1).unflatten(0, (cameras.height, cameras.width))


def test_scores_are_means_over_the_views(scored):
    metrics, trainer, views, truth = scored
    images = [rendered(trainer, views.cameras, view) for view in range(2)]
    scores = [-10 * math.log10((image.double() - truth[view]).square().mean()) for view, image in enumerate(images)]
    assert [row["psnr"] for row in metrics["views"]] == pytest.approx(scores, abs=1e-3)
    assert abs(scores[0] - scores[1]) > 0.01, "they differ, so that a mean is no maximum"
    assert metrics["psnr"] == pytest.approx(sum(scores) / 2, abs=1e-3)
    similar = [ssim(image, truth[view].float()) for view, image in enumerate(images)]
    assert [row["ssim"] for row in metrics["views"]] == pytest.approx(similar, abs=1e-5)
    assert metrics["ssim"] == pytest.approx(sum(similar) / 2, abs=1e-5)
    assert [row["view"] for row in metrics["views"]] == ["r_0", "r_1"]


@pytest.fixture
def words(monkeypatch) -> list[str]:
    found, write = [], ImageDraw.ImageDraw.text
    draw = lambda self, place, text, *how: found.append(text) or write(self, place, text, *how)  # noqa: E731
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", draw)
    return found


def place(image: np.ndarray, part: np.ndarray, tolerance: int = 1) -> tuple[int, int]:
    """Row and column at which one image [H, W, 3] uint8 stands in another, whose pixels it has."""
    rows, columns = (whole - own + 1 for whole, own in zip(image.shape[:2], part.shape[:2], strict=True))
    levels, fits = image.astype(int), np.ones((rows, columns), dtype=bool)
    for row, column in np.argwhere(np.ones(part.shape[:2]))[:: max(part.shape[0] * part.shape[1] // 400, 1)]:
        off = np.abs(levels[row : row + rows, column : column + columns] - part[row, column])
        fits &= off.max(-1) <= tolerance
    height, width, _ = part.shape
    found = [
        (row, column) for row, column in np.argwhere(fits)  # of some of its pixels; now of all
        if np.abs(levels[row : row + height, column : column + width] - part).max() <= tolerance
    ]  # fmt: skip
    ((row, column),) = found
    return row, column


def test_a_comparison_is_truth_render_and_error_side_by_side(words, scored):
    metrics, trainer, views, truth = scored
    (file,) = (trainer.folder.path / "eval").glob("*.png")
    image, render = np.asarray(Image.open(file)), rendered(trainer, views.cameras, 0)
    error = (render - truth[0]).abs().mean(-1)
    side = LEAST // max(truth[0].shape)  # of a pixel of these small images
    error, *shown = (x.repeat_interleave(side, 0).repeat_interleave(side, 1) for x in (error, truth[0], render))
    parts = [place(image, to_uint8(part)) for part in shown]
    parts.append(place(image, to_uint8(colorize(error, 0, 0.25, "inferno")), tolerance=8))
    (top, left), (_, middle), (_, right) = parts
    assert file.stem == "r_0" and {row for row, _ in parts} == {top} and left < middle < right
    brightness = image[top:, right:][: len(error), : error.shape[1]].sum(-1) / 255
    assert brightness[error < 0.002].max() < 0.2 and brightness[error > 0.25].min() > 2.2
    assert_names(" ".join(words), "truth", "r_0", "render", f"{metrics['views'][0]['psnr']:.2f} dB", "error")


def test_as_many_comparisons_as_asked_for_spread_over_the_views(small_config, tmp_path, capsys):
    """Of the last scoring alone, and what nerfkit did not write; what is removed is told."""
    small_config.eval.split, folder = "train", tmp_path / "run/eval/train"
    trainer = make_trainer(small_config)
    trainer.save(tmp_path / "run")
    views = load_scene(small_config.data.path).split("train")
    for asked, wanted in ((3, {"r_0", "r_4", "r_8"}), (0, set()), (-1, {f"r_{view}" for view in range(12)})):
        small_config.eval.comparison_images = asked
        evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
        (folder / "mine.png").write_bytes(b"")
        assert {file.stem for file in folder.glob("*.png")} == wanted | {"mine"}
        assert (f"3 images of an earlier scoring are removed from {folder}" in capsys.readouterr().out) == (not wanted)


@pytest.fixture
def config(small_config, tmp_path, monkeypatch):
    """Of a scene with five test views, of which three are scored."""
    monkeypatch.setattr(watching, "SCORED_VIEWS", 3)
    small_config.data.path = str(write_scene(tmp_path / "scene", counts={"train": 8, "test": 5}))
    small_config.trainer.steps = 30
    small_config.eval.every = small_config.trainer.preview_every = 10
    return small_config


def trained(config, folder, processes=SINGLE_PROCESS, watched: bool = True) -> Trainer:
    scene, run = load_scene(config.data.path), RunFolder(folder)
    trainer = make_trainer(config, processes=processes)
    trainer.model.decoder.eval()  # a module that is in another mode stays in it
    if processes.is_first:
        run.start(config, describe(scene))
    processes.barrier()
    if watched:
        watching.Progress(trainer, scene).attach(run)
    trainer.train(run)
    return trainer


def test_they_are_the_scores_of_evaluation_and_change_nothing(config, tmp_path):
    """Nor do images change a bit of it."""
    config.data.background, run, states = "random", tmp_path / "run", []
    before = torch.get_rng_state(), str(np.random.get_state())
    for folder, watched in ((tmp_path / "plain", False), (run, True)):
        trainer = trained(config, folder, watched=watched)
        modes = torch.tensor([module.training for module in trainer.model.modules()])
        states.append(state_of(trainer) | trainer.optimizer.state_dict()["state"][0] | {"modes": modes})
    assert torch.equal(torch.get_rng_state(), before[0]) and str(np.random.get_state()) == before[1]
    assert [name for name, x in states[0].items() if not torch.equal(x, states[1][name])] == []
    assert modes.any() and not modes.all() and steps_in(run) == [10, 20, 30]
    lines = read_scores(run)
    assert [line["step"] for line in lines] == [10, 20, 30] and lines[0]["seconds"] < lines[2]["seconds"]
    assert [line["step"] for line in read_log(run)] == list(range(1, 31))
    views = load_scene(config.data.path).split("test")[[0, 1, 3]]
    metrics = evaluate(trainer.model.eval(), config, views, STATE, RunFolder.existing(run), trainer.device)
    assert lines[2]["test_psnr"] == pytest.approx(metrics["psnr"], abs=1e-4)


def test_of_several_processes_the_first_scores(config, tmp_path):
    config.trainer.steps, config.eval.every = 8, 4
    views, run = load_scene(config.data.path).split("test"), tmp_path / "shared"
    scored = lambda of: ScoresOverTime(config, views, of.device).score(of)  # noqa: E731
    assert len(set(in_processes(2, tmp_path, lambda processes: scored(trained(config, run, processes))))) == 1
    assert [line["step"] for line in read_scores(run)] == [4] and read_scores(run)[0]["test_psnr"] > 5


def test_the_plot_shows_them_beside_the_training(tmp_path, monkeypatch):
    figures, made = [], figure.Figure
    monkeypatch.setattr(figure, "Figure", lambda **options: figures.append(made(**options)) or figures[-1])
    log = [{"step": step, "seconds": step / 2, "loss": 0.1, "psnr": 10.0 + step} for step in (1, 2)]
    score = {"step": 2, "seconds": 1.0, "test_psnr": 8.5}
    for name, lines in {"both": [*log, score], "alone": [score]}.items():
        folder = RunFolder(tmp_path / name)
        folder.claim()
        for line in lines:
            folder.append(LOG, json.dumps(line))
        plot_training(folder, {"n_views": 3, "psnr": 9.25, "train_seconds": 1.5})
        assert (tmp_path / name / "loss.png").exists()
    drawn = [line.get_xydata().tolist() for line in figures[0].axes[1].lines]
    assert drawn == [[[0.5, 11.0], [1.0, 12.0]], [[1.0, 8.5]], [[1.5, 9.25]]]
    assert_names(figures[0].axes[1].get_legend().get_texts()[-1].get_text(), "3 held-out views", "9.25 dB")


@pytest.fixture
def options(config, tmp_path):
    config.eval.comparison_images = 0
    config_module.dump(config, tmp_path / "options.toml")
    return ["--config", str(tmp_path / "options.toml"), "--out", str(tmp_path / "run")]


def test_events_are_those_of_the_log_and_go_on(options, tmp_path):
    """A run that was resumed has one curve; steps after the checkpoint, which it trains again, are in it once."""
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def events() -> EventAccumulator:
        found = EventAccumulator(str(run / "tensorboard"))
        found.Reload()
        return found

    def curve(name: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in events().Scalars(name)]

    run = tmp_path / "run"
    assert run_main(train, *options, "--trainer.tensorboard", "true") == 0
    wanted = [(line["step"], pytest.approx(line["psnr"], rel=1e-5)) for line in read_log(run)]
    assert curve("train/psnr") == wanted
    wanted = [(line["step"], pytest.approx(line["test_psnr"], rel=1e-5)) for line in read_scores(run)]
    assert curve("test/psnr") == wanted
    metrics = json.loads((run / "metrics.json").read_text())
    assert curve("test/final_psnr") == [(30, pytest.approx(metrics["psnr"], rel=1e-5))]
    images = [(image.step, image.width, image.height) for image in events().Images("preview")]
    assert images == [(10, 26, 22), (20, 26, 22), (30, 26, 22)] and events().Images("truth")[0].width == 26
    ahead = TensorBoard(RunFolder.existing(run), 30)
    ahead.add_line({"step": 32, "psnr": 99.0})  # of a part of the run that was killed before it saved
    ahead.writer.close()
    assert run_main(train, "--resume", run, "--trainer.steps", "40") == 0
    assert [step for step, _ in curve("train/psnr")] == [*range(2, 31), *range(32, 41, 2)]
    assert max(psnr for _, psnr in curve("train/psnr")) < 60
    assert run_main(train, *options, "--overwrite", "--trainer.preview_every", 0, "--eval.every", 0) == 0
    assert not (run / "tensorboard").exists(), "they are nerfkit's, and go with the run"
    assert not (run / "previews").exists() and read_scores(run) == [], "nobody asked for them"


def with_previews(config, folder) -> tuple[Trainer, Previews]:
    """A trainer with images, which has not begun, or goes on in its folder."""
    scene = load_scene(config.data.path)
    trainer, run = make_trainer(config, scene=scene), RunFolder(folder)
    if (folder / "config.toml").exists():
        run = RunFolder.existing(folder)
        trainer.restore(run)
    else:
        run.start(config, describe(scene))
    images = Previews(config, shown_view(scene), trainer.device)
    images.attach(trainer, run)
    trainer.folder = run
    return trainer, images


def image_of(folder, name: str) -> np.ndarray:
    return imageio.imread(folder / "previews" / f"{name}.png").astype(float)


def steps_in(folder) -> list[int]:
    return [int(file.stem) for file in sorted((folder / "previews").glob("[0-9]*.png"))]


def test_an_image_takes_no_training_time(small_config, tmp_path, monkeypatch):
    small_config.trainer.steps, small_config.trainer.preview_every = 3, 1
    trainer, images = with_previews(small_config, tmp_path / "run")
    render = ImageRenderer.__call__
    monkeypatch.setattr(ImageRenderer, "__call__", lambda *arguments: (time.sleep(0.5), render(*arguments))[1])
    trainer.train(trainer.folder)
    assert steps_in(tmp_path / "run") == [1, 2, 3] and trainer.seconds < 1.5


def test_an_image_is_the_first_test_view(small_config, tmp_path, monkeypatch):
    """Pixel for pixel what the model renders of that view, not taller than wide, smaller where it has to be."""
    monkeypatch.setitem(watching.SIDE, "cpu", 13)
    small_config.trainer.steps, small_config.trainer.preview_every = 80, 40
    run, size = tmp_path / "run", (13, 11)
    trainer, images = with_previews(small_config, run)
    trainer.train(trainer.folder)
    images.finish(trainer)
    assert steps_in(run) == [40, 80]
    cameras = load_scene(small_config.data.path).split("test").cameras[[0]].resized(*size)
    wanted = to_uint8(ImageRenderer(trainer.model, torch.ones(3))(cameras, 0)["rgb"])
    early, late, truth = (image_of(run, name) for name in ("000040", "000080", "truth"))
    assert late.shape == (11, 13, 3) and np.abs(late - wanted).max() <= 1
    image = Image.open(f"{small_config.data.path}/test/r_0.png")
    over = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.abs(truth - np.asarray(over.resize(size, Image.Resampling.BOX))).mean() < 2
    assert ((late - truth) ** 2).mean() < ((early - truth) ** 2).mean(), "it becomes what it is to be"


def test_images_wait_for_the_time_that_they_may_take(small_config, tmp_path, monkeypatch):
    """After one that was slow; who has stopped the training does not wait for another, which the end has. Of their
    places most are in the first tenth."""
    assert [places_passed(progress) for progress in (0.0, 0.1, 1.0, 3.0)] == [0, 19, 30, 30]
    small_config.trainer.preview_every = watching.AUTOMATIC
    run, (trainer, images) = tmp_path / "run", with_previews(small_config, tmp_path / "run")
    for _ in range(10):
        trainer.timed_step()
        images.after_step(trainer)
        monkeypatch.setattr(images, "_spent", 1e6)
    images.finish(trainer, stopped=True)
    assert steps_in(run) == [1] and (run / "previews" / "strip.png").exists()
    images._spent = 0.0
    images.after_step(trainer)
    assert steps_in(run) == [1, 10]
    trainer.timed_step()
    images.finish(trainer)
    assert steps_in(run) == [1, 10, 11]


def test_strip_and_gif_are_of_all_parts_of_a_run(words, small_config, tmp_path):
    """Stopped and resumed: earlier images stay, those of steps that come again go, files of users stay."""
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 30, 2
    trainer, images = with_previews(small_config, run)
    assert not trainer.train(trainer.folder, should_stop=lambda: trainer.step >= 11)
    images.finish(trainer)
    assert steps_in(run) == [2, 4, 6, 8, 10, 11]
    images.folder.write("000012.png", b"of a step that was not saved")
    (run / "previews" / "mine.png").write_text("mine")
    trainer, images = with_previews(small_config, run)
    assert trainer.step == 11 and steps_in(run) == [2, 4, 6, 8, 10, 11]
    trainer.train(trainer.folder)
    images.finish(trainer)
    steps = [2, 4, 6, 8, 10, 11, *range(12, 31, 2)]
    assert steps_in(run) == steps and (run / "previews" / "mine.png").read_text() == "mine"
    strip, *parts = (image_of(run, name).astype(np.uint8) for name in ("strip", "000002", "000030", "truth"))
    rows, columns = zip(*(place(strip, part, tolerance=0) for part in parts), strict=True)
    assert len(set(rows)) == 1 and list(columns) == sorted(columns)
    titles = words[-watching.IN_STRIP :]
    assert titles[0].startswith("step 2\n") and titles[-2:] == [f"step 30\n{trainer.seconds:.1f} s", "truth"]
    with Image.open(run / "previews" / "progress.gif") as gif:
        assert gif.size == (WIDTH, HEIGHT) and 2 < gif.n_frames <= len(steps)
        first = gif.info["duration"]
        gif.seek(gif.n_frames - 1)
        assert gif.info["duration"] >= first + 1000 * watching.LAST


def test_a_folder_of_a_users_is_left_alone_and_ends_no_training(small_config, tmp_path, capsys):
    run, small_config.trainer.steps, small_config.trainer.preview_every = tmp_path / "run", 4, 2
    make_trainer(small_config, scene=load_scene(small_config.data.path)).save(run)
    (run / "previews").mkdir()
    (run / "previews" / "000002.png").write_text("mine")
    trainer, images = with_previews(small_config, run)
    assert trainer.train(trainer.folder)
    images.finish(trainer)
    assert [file.name for file in (run / "previews").iterdir()] == ["000002.png"]
    assert (run / "previews" / "000002.png").read_text() == "mine"
    assert_names(capsys.readouterr().out, run / "previews")
