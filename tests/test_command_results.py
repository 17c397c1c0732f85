# SPDX-License-Identifier: Apache-2.0
"""What the commands write, number by number. They are called in this process: each start of Python costs seconds."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from nerfkit import config as config_module
from nerfkit import load_run
from nerfkit.commands import eval as eval_command
from nerfkit.commands import render, status_of, summary, train
from nerfkit.data.readers.transforms.cameras_json import parse_cameras, read_json
from nerfkit.errors import RunError, UserError
from nerfkit.rendering import paths
from nerfkit.rendering.images import preview
from nerfkit.training.evaluator import in_one_line
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import read_config, read_log
from tests.naming import assert_names, raises_naming
from tests.processes import run_main
from tests.toy_scene import write_scene

pytestmark = pytest.mark.slow

BOX = (-0.8, -0.8, -0.7, 0.8, 0.8, 0.9)
STEPS = 60


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> Path:
    """A file of options that train a toy scene within a second."""
    folder = tmp_path_factory.mktemp("results")
    config = config_module.Config(device="cpu")
    config.data.path, config.data.box = str(write_scene(folder / "scene", size=(15, 13))), BOX
    config.model.levels, config.model.log2_table, config.model.max_resolution = 2, 10, 24
    config.model.hidden = config.model.state = 16
    config.sampling.step, config.sampling.occupancy_resolution = 0.08, 8
    config.trainer.steps, config.trainer.samples, config.trainer.log_every = STEPS, 1024, 20
    config.trainer.learning_rate, config.trainer.warmup, config.trainer.background_warmup = 0.03, 5, 0
    config.eval.comparisons = 1
    config_module.dump(config, folder / "options.toml")
    return folder / "options.toml"


def call(command, *arguments) -> None:
    """Run a command that has to succeed."""
    assert run_main(command, *arguments) == 0


@pytest.fixture(scope="module")
def trained(options) -> Path:
    call(train, "--config", options, "--out", options.parent / "run")
    return options.parent / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_trained_run_is_where_it_was_asked_for(options, trained):
    assert not (options.parent / "runs").exists()
    tensors, state = checkpoint.load(trained)
    assert state["step"] == STEPS and state["seconds"] > 0
    assert [line["step"] for line in read_log(trained)] == [20, 40, 60]
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["steps"] == STEPS and metrics["n_views"] == 2 and 10 < metrics["psnr"] < 40
    assert metrics["train_seconds"] == pytest.approx(state["seconds"], abs=0.01)
    assert metrics["protocol"]["size"] == "15x13"
    assert [file.name for file in (trained / "eval").glob("*.png")] == ["r_0.png"]
    assert read_config(trained).trainer.steps == STEPS and (trained / "loss.png").stat().st_size > 1000


def test_a_run_goes_where_it_belongs_unless_told(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call(train, "--config", options, "--trainer.steps", 2, "--eval.after_training", "false")
    assert checkpoint.load(tmp_path / "runs" / "scene")[1]["step"] == 2
    assert not (tmp_path / "runs" / "scene" / "metrics.json").exists(), "scoring was left out"


def test_the_seed_decides(options, tmp_path):
    """The same seed gives the same field, another one another."""
    tables = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        few = ("--trainer.steps", 2, "--eval.after_training", "false", "--trainer.deterministic", "true")
        call(train, "--config", options, "--seed", seed, "--out", tmp_path / name, *few)
        tables.append(checkpoint.load(tmp_path / name)[0]["model.grid.table"])
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_a_resumed_run_takes_the_steps_that_are_left(options, run, capsys):
    seconds = checkpoint.load(run)[1]["seconds"]
    limit = ("--trainer.max_seconds", 600)
    call(train, "--resume", run, "--trainer.steps", STEPS + 3, *limit, "--eval.after_training", "false")
    printed = capsys.readouterr().out
    assert_names(printed, "600 s", f"{seconds:.1f} s", f"{STEPS + 3} steps")
    state = checkpoint.load(run)[1]
    assert state["step"] == STEPS + 3 and seconds < state["seconds"] < seconds + 60
    with pytest.raises(RunError):
        call(train, "--resume", run, "--trainer.steps", STEPS)
    for limits, option in (((), "--trainer.steps"), (("--trainer.max_seconds", 1e-3), "--trainer.max_seconds")):
        steps = STEPS + 3 if not limits else STEPS + 9
        call(train, "--resume", run, "--trainer.steps", steps, *limits, "--eval.after_training", "false")
        assert option in capsys.readouterr().out, "it is what ended the run"
        assert checkpoint.load(run)[1]["step"] == STEPS + 3


def test_a_run_is_replaced_only_when_that_is_asked_for(options, run):
    again = ("--config", options, "--out", run, "--trainer.steps", 2, "--eval.after_training", "false")
    with pytest.raises(RunError):
        call(train, *again)
    assert checkpoint.load(run)[1]["step"] == STEPS
    call(train, *again, "--overwrite")
    assert checkpoint.load(run)[1]["step"] == 2


def test_smaller_images_are_trained_and_scored(options, tmp_path, capsys):
    """15x13 by 1.25 is 12x10, and so are the cameras that the run keeps."""
    run = tmp_path / "small"
    small = ("--data.downscale", 1.25, "--trainer.steps", 2, "--eval.split", "train")
    call(train, "--config", options, "--out", run, *small)
    cameras = load_run(run, "cpu").cameras()
    assert (cameras.width, cameras.height) == (12, 10)
    assert f"{run}/eval/train" in capsys.readouterr().out
    for again in (False, True):
        if again:
            call(eval_command, run, "--split", "test", "--device", "cpu", "--comparisons", 1)
            assert_names(capsys.readouterr().out, f"{run}/eval", "--comparisons -1")
        file = run / "metrics.json" if again else run / "eval" / "train" / "metrics.json"
        protocol = json.loads(file.read_text())["protocol"]
        assert (protocol["size"], protocol["downscale"]) == ("12x10", 1.25)


def test_the_background_of_a_run_is_behind_its_renders(run):
    loaded = load_run(run, "cpu")
    loaded.config.data.background = "black"
    assert loaded.background.tolist() == [0, 0, 0]
    with torch.no_grad():
        loaded.model.sampler.occupancy.zero_()
    assert loaded.render(loaded.cameras())["rgb"].max() == 0


def test_scores_of_a_split_are_of_that_split(run):
    before = (run / "metrics.json").read_bytes()
    call(eval_command, run, "--split", "train", "--comparisons", 3, "--device", "cpu")
    metrics = json.loads((run / "eval" / "train" / "metrics.json").read_text())
    assert metrics["n_views"] == 12 and metrics["protocol"]["split"] == "train" and metrics["steps"] == STEPS
    assert len(list((run / "eval" / "train").glob("*.png"))) == 3 and (run / "metrics.json").read_bytes() == before
    call(eval_command, run, "--device", "cpu")
    again, first = json.loads((run / "metrics.json").read_text()), json.loads(before)
    assert again["psnr"] == pytest.approx(first["psnr"], abs=1e-3) and again["n_views"] == 2
    assert again["train_seconds"] == first["train_seconds"]


def test_another_scene_is_scored_when_it_is_given(run, tmp_path):
    garden = write_scene(tmp_path / "garden", size=(15, 13), counts={"train": 1, "test": 3})
    call(eval_command, run, "--data", garden, "--device", "cpu")
    assert json.loads((run / "eval" / "on_garden" / "test" / "metrics.json").read_text())["n_views"] == 3


@pytest.fixture(scope="module")
def frames(trained) -> Path:
    """Three frames of an orbit, every output, in a folder and a size of their own."""
    out = trained.parent / "frames"
    call(
        render, trained, "--frames", 3, "--size", 11, 9, "--fps", 5, "--outputs", "rgb,depth,opacity,normal", "--out",
        out, "--device", "cpu",
    )  # fmt: skip
    return out


NAMES = ("rgb", "depth_ray", "depth_z", "opacity", "normal")


def file_of(name: str, view: int, extension: str = "png") -> str:
    return f"{view:04d}.{extension}" if name == "rgb" else f"{name}_{view:04d}.{extension}"


def test_every_output_has_its_files(trained, frames):
    wanted = {"path.json", *(f"{name}.mp4" for name in NAMES)}
    wanted |= {file_of(name, view) for name in NAMES for view in range(3)}
    wanted |= {file_of(name, view, "npz") for name in NAMES[1:] for view in range(3)}
    assert {path.name for path in frames.iterdir() if not path.name.startswith(".")} == wanted
    assert not (trained / "render").exists(), "they went elsewhere"


def test_frames_are_what_the_model_sees_on_an_orbit(trained, frames):
    """Around the middle of the box, at the mean distance of the training cameras, up being up."""
    run = load_run(trained, "cpu")
    got = parse_cameras(read_json(frames / "path.json"), frames / "path.json")
    middle = torch.tensor(BOX).view(2, 3).mean(0)
    wanted = paths.orbit(run.cameras(), middle, torch.tensor([0.0, 0, 1]), 3).resized(11, 9)
    for name in ("camera_to_world", "focal", "center"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=1e-5, atol=1e-5, msg=name)
    distance = (run.cameras().positions - middle).norm(dim=-1).mean().item()
    reach = torch.tensor(BOX).view(2, 3).diff(dim=0).norm().item() / 2
    for view in range(3):
        images = run.render(wanted, view, ("rgb", "depth", "opacity", "normal"))
        for name in NAMES:
            shown = imageio.imread(frames / file_of(name, view))
            assert shown.shape == (9, 11, 3)
            seen = preview(name, images, (distance - reach, distance + reach))
            np.testing.assert_allclose(shown / 255, seen.numpy(), atol=0.02, err_msg=name)
            if name != "rgb":
                values = np.load(frames / file_of(name, view, "npz"))[name]
                assert values.dtype == np.float32
                np.testing.assert_allclose(values, images[name].numpy(), atol=1e-4, err_msg=name)


def test_a_video_has_the_frames_in_their_order(frames):
    reader = imageio.get_reader(frames / "rgb.mp4")
    assert reader.get_meta_data()["fps"] == 5 and reader.get_meta_data()["size"] == (12, 10)
    shown = [np.asarray(image, dtype=float)[:9, :11] for image in reader]
    images = [imageio.imread(frames / file_of("rgb", view)).astype(float) for view in range(3)]
    assert len(shown) == 3
    distances = [[np.abs(a - b).mean() for b in images] for a in shown]
    assert [int(np.argmin(row)) for row in distances] == [0, 1, 2]


def test_frames_that_are_there_are_kept_on_request(run, monkeypatch):
    few = ("--frames", 2, "--size", 6, 5, "--device", "cpu")
    call(render, run, *few)
    folder = run / "render" / "orbit"
    assert len(list(folder.glob("0*.png"))) == 2
    whole = (folder / "0001.png").read_bytes()
    (folder / "0001.png").unlink()
    before = (folder / "0000.png").stat().st_mtime_ns
    call(render, run, *few, "--resume")
    assert (folder / "0001.png").read_bytes() == whole and (folder / "0000.png").stat().st_mtime_ns == before
    call(render, run, *few)
    assert (folder / "0000.png").stat().st_mtime_ns > before
    load_run = render.load_run

    def load_another(*arguments):
        found = load_run(*arguments)
        return replace(found, state=found.state | {"seconds": 987.6})

    with raises_naming(RunError, "another rendering", "--overwrite", "--out"):
        call(render, run, "--frames", 3, *few[2:])  # of the same training
    assert len(list(folder.glob("0*.png"))) == 2
    monkeypatch.setattr(render, "load_run", load_another)
    with raises_naming(RunError, folder, "--resume"):
        call(render, run, *few, "--resume")  # of another training, of as many steps
    earlier = {file.name: file.stat().st_mtime_ns for file in folder.glob("0*.png")}
    call(render, run, "--frames", 3, *few[2:])
    now = {file.name: file.stat().st_mtime_ns for file in folder.glob("0*.png")}
    assert len(now) == 3 and all(now[name] > time for name, time in earlier.items()), "they were out of date"


def test_a_rendering_that_is_stopped_says_how_it_goes_on(run, tmp_path, monkeypatch, capsys):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(render, "png_bytes", stop)
    with pytest.raises(KeyboardInterrupt):
        call(render, run, "--frames", 2, "--out", tmp_path / "frames", "--device", "cpu")
    assert_names(capsys.readouterr().out, tmp_path / "frames", "--resume")


def test_a_training_whose_scoring_is_stopped_says_what_scores_it(options, tmp_path, monkeypatch, capsys):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        call(train, "--config", options, "--out", tmp_path / "my run", "--trainer.steps", 2)
    assert_names(capsys.readouterr().out, "complete", f"eval '{tmp_path / 'my run'}'")
    assert load_run(tmp_path / "my run", "cpu").state["step"] == 2


def test_a_score_of_a_part_of_the_pixels_says_so():
    metrics = {"psnr": 20.0, "ssim": 0.5, "lpips": None}
    assert "28% of pixels" in in_one_line(metrics | {"share_of_pixels": 0.28})
    assert "pixels" not in in_one_line(metrics | {"share_of_pixels": 0.99}) + in_one_line(metrics)


def test_a_path_between_cameras_is_of_the_held_out_ones_and_a_file_is_followed(run, tmp_path):
    few = ("--outputs", "opacity", "--device", "cpu")
    call(render, run, "--path", "interpolate", "--frames", 4, "--size", 7, 5, *few)
    file, held_out = run / "render" / "interpolate" / "path.json", load_run(run, "cpu").cameras("test")
    made = parse_cameras(read_json(file), file)
    torch.testing.assert_close(made.camera_to_world[::2], held_out.camera_to_world, rtol=0, atol=1e-5)
    call(render, run, "--path", file, "--out", tmp_path / "again", *few)
    for view in range(4):
        first, again = (
            np.load(x / file_of("opacity", view, "npz"))["opacity"] for x in (file.parent, tmp_path / "again")
        )
        assert again.shape == (5, 7)
        np.testing.assert_allclose(again, first, atol=1e-5)


@pytest.mark.parametrize("path, n_frames", [("test", 2), ("train", 12)])
def test_the_views_of_a_split_are_its_cameras(run, path: str, n_frames: int):
    call(render, run, "--path", path, "--outputs", "opacity", "--device", "cpu")
    folder, loaded = run / "render" / path, load_run(run, "cpu")
    names = loaded.scene.names(path)
    assert {file.name for file in folder.glob("*.npz")} == {f"opacity_{name}.npz" for name in names}
    assert len(names) == n_frames and not (folder / f"{names[0]}.png").exists()
    wanted = loaded.render(loaded.cameras(path), n_frames - 1, ("opacity",))["opacity"]
    values = np.load(folder / f"opacity_{names[-1]}.npz")["opacity"]
    assert values.shape == (13, 15)
    np.testing.assert_allclose(values, wanted.numpy(), atol=1e-4)


def test_a_summary_has_the_runs_numbers(run, capsys):
    call(render, run, "--frames", 1, "--size", 6, 5, "--device", "cpu")
    metrics = json.loads((run / "metrics.json").read_text())
    changed = {"psnr": 23.456, "ssim": 0.78912, "n_views": 17, "steps": 4321, "train_seconds": 98.6, "psnr_cc": 24.567}
    (run / "metrics.json").write_text(json.dumps(metrics | changed))
    capsys.readouterr()
    call(summary, run)
    output = capsys.readouterr().out
    for number in ("PSNR 23.46", "24.57 dB", "SSIM 0.7891", "17 test", "15x13", "4321 steps", "99 s"):
        assert number in output
    assert all(str(run / name) in output for name in ("render/orbit/rgb.mp4", "eval", "loss.png"))


def test_a_summary_of_a_run_without_scores_tells_how_far_it_is(run, capsys):
    (run / "metrics.json").unlink()
    call(summary, run)
    output, last = capsys.readouterr().out, read_log(run)[-1]
    for part in (f"step {STEPS}", f"{last['seconds']:.0f} s", f"loss {last['loss']:.3g}", f"eval {run}", "loss.png"):
        assert part in output
    (run / "metrics.jsonl").unlink()
    call(summary, run)
    assert f"eval {run}" in capsys.readouterr().out
    for name in (checkpoint.NEWEST, checkpoint.PREVIOUS):
        (run / name).unlink(missing_ok=True)
    call(summary, run)
    assert f"eval {run}" not in capsys.readouterr().out, "there is nothing to score"


def test_a_summary_is_of_the_split_that_the_run_is_scored_on(options, tmp_path, capsys):
    few = ("--trainer.steps", 2, "--eval.split", "train")
    call(train, "--config", options, "--out", tmp_path / "run", *few)
    capsys.readouterr()
    call(summary, tmp_path / "run")
    assert "12 train views" in capsys.readouterr().out


@pytest.mark.parametrize("command", [render, eval_command])
@pytest.mark.parametrize("asked", [("--device", "meta"), ("--device", "cpu", "--ops.backend", "cuda")], ids=" ".join)
def test_a_device_or_backend_that_is_asked_for_is_taken_or_an_error(run, command, asked):
    with pytest.raises(UserError):
        call(command, run, *asked)


@pytest.mark.parametrize("asked", [("--device", "meta"), ("--device", "cpu", "--ops.backend", "cuda")], ids=" ".join)
def test_training_takes_the_device_and_backend_asked_for(options, tmp_path, asked):
    with pytest.raises(UserError):
        call(train, "--config", options, "--out", tmp_path / "run", *asked)
    assert not (tmp_path / "run").exists()


def test_the_status_tells_whether_it_worked(capsys):
    def fails(error: BaseException):
        def command():
            raise error

        return command

    assert status_of(lambda: None) == 0 and status_of(lambda: 143) == 143
    assert status_of(fails(RunError("no run"))) == 1 and "no run" in capsys.readouterr().err
    assert status_of(fails(KeyboardInterrupt())) == 130
    assert status_of(fails(FileNotFoundError(2, "No such file", "x.png"))) == 1
    assert status_of(fails(MemoryError("too much"))) == 1
