# SPDX-License-Identifier: Apache-2.0
"""The scripts as a user runs them: train, evaluate, render; then the run folder moved, without the scene."""

import json
import os
import shutil

import imageio.v2 as imageio
import numpy as np
import pytest

from nerfkit import config as config_module
from nerfkit.commands.render import FILES
from nerfkit.ops import native
from tests.naming import assert_names
from tests.processes import call
from tests.toy_scene import write_scene

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder, moved away, its scene deleted."""
    folder = tmp_path_factory.mktemp("scripts")
    write_scene(folder / "scene", size=(17, 15))
    options = config_module.Config()
    options.data.path, options.data.box = str(folder / "scene"), (-0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
    options.model.levels, options.model.log2_table, options.model.max_resolution = 3, 12, 48
    options.sampling.step, options.sampling.occupancy_resolution = 0.04, 24
    options.model.hidden = options.model.state = 16
    options.trainer.steps, options.trainer.samples, options.device = 150, 4096, "cpu"
    options.trainer.learning_rate, options.trainer.warmup = 0.03, 10
    options.eval.comparisons = 1
    config_module.dump(options, folder / "options.toml")
    output = call("scripts/train.py", "--config", folder / "options.toml", "--out", folder / "first")
    assert_names(output, "nerf_synthetic", "12 train", "2 test", "17x15", "lltm", "PSNR")
    score_twice(folder / "first")
    assert 'format = "nerf_synthetic"' in (folder / "first" / "config.toml").read_text(), "found, not auto"
    shutil.move(folder / "first", folder / "moved")
    shutil.rmtree(folder / "scene")
    return folder / "moved"


def score_twice(folder) -> None:
    """Scores of the train views leave those of the test views alone; --comparisons stays the run's unless given."""
    scores, comparisons = (folder / "metrics.json").read_text(), len(list((folder / "eval").glob("*.png")))
    assert comparisons == 1, "the run asks for one"
    output = call("scripts/eval.py", folder, "--split", "train", "--comparisons", "2")
    assert_names(output, "12 train", "PSNR")
    assert (folder / "metrics.json").read_text() == scores and len(list((folder / "eval").glob("*.png"))) == comparisons
    assert json.loads((folder / "eval" / "train" / "metrics.json").read_text())["protocol"]["split"] == "train"
    assert len(list((folder / "eval" / "train").glob("*.png"))) == 2
    assert_names(call("scripts/eval.py", folder), "2 test", "PSNR")
    assert len(list((folder / "eval").glob("*.png"))) == comparisons


def test_the_run_folder_is_complete(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {
        "config.toml", "checkpoint.safetensors", "checkpoint.json", "metrics.jsonl", "metrics.json", "loss.png",
        "scene.json", "eval",
    }  # fmt: skip
    assert json.loads((trained / "checkpoint.json").read_text())["step"] == 150


def test_render_needs_the_run_folder_alone(trained):
    outputs = ("--outputs", "rgb,depth,opacity,normal")
    call("scripts/render.py", trained, "--frames", "3", *outputs, "--fps", "7", "--device", "cpu")
    folder = trained / "render" / "orbit"
    frame = imageio.imread(folder / "0000.png")
    assert frame.shape == (15, 17, 3) and frame.std() > 5
    values = {
        name: np.load(folder / f"{name}_0001.npz")[name] for name in ("depth_ray", "depth_z", "opacity", "normal")
    }
    assert values["depth_ray"].dtype == np.float32 and values["normal"].shape == (15, 17, 3)
    seen = values["opacity"] > 0.9
    assert seen.any() and (values["depth_z"] <= values["depth_ray"] + 1e-5).all()
    assert 1.8 < values["depth_ray"][seen].mean() < 4, "the balls are 2 to 4 units away"
    video = imageio.get_reader(folder / "rgb.mp4")
    assert video.count_frames() == 3 and video.get_meta_data()["size"] == (18, 16)
    assert video.get_meta_data()["fps"] == 7


def test_render_follows_a_path_file_and_resumes(trained):
    call("scripts/render.py", trained, "--path", "spiral", "--frames", "2", "--size", "10", "8", "--device", "cpu")
    spiral = trained / "render" / "spiral"
    out = trained / "again"
    call("scripts/render.py", trained, "--path", spiral / "path.json", "--out", out, "--device", "cpu")
    assert np.array_equal(imageio.imread(out / "0001.png"), imageio.imread(spiral / "0001.png"))
    (out / "0000.png").unlink()
    before = (out / "0001.png").stat().st_mtime_ns
    call("scripts/render.py", trained, "--path", spiral / "path.json", "--out", out, "--resume", "--device", "cpu")
    assert (out / "0000.png").exists() and (out / "0001.png").stat().st_mtime_ns == before
    message = call("scripts/render.py", trained, "--frames", "2", "--out", out, "--resume", "--device", "cpu", status=1)
    assert_names(message, out, "--resume", "--out")
    assert (out / "0001.png").stat().st_mtime_ns == before


def test_render_into_the_working_folder(trained, tmp_path):
    """Frames and video are in it, and nothing is beside it; another choice of outputs adds to the first."""
    out = tmp_path / "here"
    out.mkdir()
    script = os.path.abspath("scripts/render.py")
    for outputs in ("opacity", "depth", "opacity,depth"):
        resume = ["--resume"] if "," in outputs else []
        call(
            script, trained, "--frames", "2", "--size", "6", "5", "--outputs", outputs, "--out", ".", "--device",
            "cpu", *resume, folder=out,
        )  # fmt: skip
    assert np.load(out / "opacity_0001.npz")["opacity"].shape == (5, 6) and (out / "depth_z_0001.npz").exists()
    assert (out / "opacity.mp4").exists() and (out / "depth_ray.mp4").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    other = (script, trained, "--frames", "3", "--size", "6", "5", "--out", ".", "--device", "cpu")
    assert_names(call(*other, folder=out, status=1), "another rendering", "--overwrite", "--out")
    assert list(out.glob("depth_z_*")), "nothing is lost by an accident"
    call(*other, "--overwrite", folder=out)
    assert not list(out.glob("depth_z_*")), "frames of another path must not pass for this path's"


@pytest.mark.parametrize("path, frames", [("test", []), ("interpolate", ["--frames", "3"])])
def test_render_paths(trained, path: str, frames: list[str]):
    call("scripts/render.py", trained, "--path", path, *frames, "--size", "6", "6", "--device", "cpu")
    n_frames = len(list((trained / "render" / path).glob("*.png")))
    assert n_frames == (3 if frames else 2) and (trained / "render" / path / "rgb.mp4").exists()


def test_errors_say_what_to_do(trained, toy_scene, tmp_path):
    render, cpu = ("scripts/render.py", trained), ("--device", "cpu")
    assert_names(call(*render, "--path", "orbitt", *cpu, status=1), "--path", "'orbitt'", "did you mean orbit?")
    misspelt = trained.with_name(trained.name + "x")
    assert_names(call("scripts/render.py", misspelt, status=1), misspelt, "did you mean", trained)
    assert_names(call(*render, "--outputs", "rgb,deep", *cpu, status=1), "--outputs", "'deep'", ",".join(FILES))
    assert_names(call(*render, "--size", "0", "5", *cpu, status=1), "--size", "1", "65536", "0 5")
    assert_names(call("scripts/render.py", tmp_path, status=1), tmp_path, "config.toml")
    assert_names(call("scripts/eval.py", trained, *cpu, status=1), "--data")
    assert_names(call("scripts/train.py", "--out", tmp_path / "x", status=1), "data.path")
    message = call(
        "scripts/train.py", "--data.path", toy_scene, "--ops.backend", "cuda", "--device", "cpu", "--out",
        tmp_path / "y", status=1,
    )  # fmt: skip
    assert_names(message, "'cuda'")


def test_a_missing_split_is_said(toy_scene, tmp_path):
    output = call(
        "scripts/train.py", "--config", "configs/orrery_cpu.toml", "--data.path", toy_scene, "--data.downscale", "1",
        "--trainer.steps", "1", "--trainer.samples", "64", "--eval.split", "val", "--out", tmp_path / "run",
        "--model.log2_table", "8", "--device", "cpu", status=1,
    )  # fmt: skip
    assert_names(output, "eval.split", "val", "train", "test")


def test_doctor():
    output = call("doctor")
    assert_names(output, "verdict", "lltm", "extra", "the viewer: ", "poses of photographs: ")
    for library in native.libraries():
        assert_names(output, library.path.name)


def test_summary(trained):
    output = call("scripts/summary.py", trained)
    assert_names(output, "PSNR", "17x15")
