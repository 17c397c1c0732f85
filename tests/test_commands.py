# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them where something is in the way: nothing lost, one line that says what to do."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nerfkit import config as config_module
from nerfkit.commands import as_typed
from nerfkit.files import MARKER
from nerfkit.model import registry
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import PATHS
from nerfkit.training.run.folder import RunFolder
from tests.naming import assert_names
from tests.processes import ROOT, call, call_process
from tests.toy_scene import write_scene

pytestmark = pytest.mark.slow


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> Path:
    """A file of options that train a toy scene within a second."""
    folder = tmp_path_factory.mktemp("commands")
    config = config_module.Config(device="cpu")
    config.data.path = str(write_scene(folder / "scene", size=(15, 13)))
    config.data.box = (-0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
    config.model.levels, config.model.log2_table, config.model.max_resolution = 2, 8, 24
    config.model.hidden = config.model.state = 16
    config.sampling.step, config.sampling.occupancy_resolution = 0.08, 8
    config.trainer.steps, config.trainer.samples, config.trainer.log_every = 8, 512, 2
    config.eval.comparisons = 1
    config_module.dump(config, folder / "options.toml")
    return folder / "options.toml"


@pytest.fixture(scope="module")
def trained(options) -> Path:
    run = options.parent / "run"
    call("scripts/train.py", "--config", options, "--out", run)
    return run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_frames_are_not_written_among_images_of_somebody_else(run, tmp_path):
    images = tmp_path / "scene" / "train"
    images.mkdir(parents=True)
    for name in ("0000.png", "path.json", "rgb.mp4"):
        (images / name).write_text("mine")
    before = content(images)
    output = call("scripts/render.py", run, "--frames", "1", "--size", "5", "4", "--out", images, status=1)
    assert_names(last_line(output), images)
    assert content(images) == before
    assert_names(last_line(call("scripts/render.py", run, "--frames", "1", "--out", run, status=1)), run)


@pytest.mark.parametrize(
    "bad",
    [
        ("--model.kind", "nothing"),
        ("--data.box", "50", "50", "50", "51", "51", "51"),
        (
            "--model.log2_table",
            "30",
            "--model.features",
            "128",
            "--model.max_resolution",
            "60000",
        ),  # more memory than any machine has
        ("--model.options", "a", "1"),
        ("--data.downscale", "999"),
    ],
    ids=" ".join,
)
def test_overwrite_replaces_nothing_before_the_new_run_has_taken_a_step(options, run, bad):
    before = content(run)
    output = call("scripts/train.py", "--config", options, "--out", run, "--overwrite", *bad, status=1)
    assert last_line(output).startswith("error: ") and content(run) == before


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="a folder in which nobody, not even root, makes another")
def test_a_run_folder_that_cannot_be_made_is_said_before_the_scene_is_read(options, tmp_path):
    asked = ("--config", options, "--data.path", tmp_path / "nowhere", "--out")
    assert_names(last_line(call("scripts/train.py", *asked, "/proc/foo", status=1)), "/proc/foo")
    assert_names(last_line(call("scripts/train.py", *asked, tmp_path / "a" / "run", status=1)), tmp_path / "nowhere")
    assert not list(tmp_path.iterdir()), "nothing is left of a run that did not start"


def test_overwrite_leaves_files_of_the_user_in_the_run_folder(options, run):
    (run / "eval" / "mine.png").write_text("mine")
    (run / "notes").write_text("mine")
    RunFolder.existing(run).child(PATHS, "paths").write("path_1.json", "made by hand")
    call("scripts/train.py", "--config", options, "--out", run, "--overwrite", "--eval.after_training", "false")
    assert (run / "paths" / "path_1.json").exists() and "paths/" in RunFolder.existing(run).names()
    assert (run / "eval" / "mine.png").exists() and (run / "notes").exists()
    assert not (run / "metrics.json").exists() and not (run / "eval" / "r_0.png").exists(), "the old run's are gone"


def test_scores_on_another_scene_are_kept_apart(run, tmp_path):
    other = write_scene(tmp_path / "garden", size=(15, 13), counts={"train": 3, "test": 3})
    before = content(run)
    output = call("scripts/eval.py", run, "--data", other)
    assert_names(output, "garden")
    after = content(run)
    assert {name: after[name] for name in before if name != MARKER} == {k: v for k, v in before.items() if k != MARKER}
    assert json.loads(after["eval/on_garden/test/metrics.json"])["n_views"] == 3


def test_the_same_scene_elsewhere_is_the_runs_own(options, run, tmp_path):
    moved = shutil.copytree(options.parent / "scene", tmp_path / "moved")
    os.remove(run / "metrics.json")
    call("scripts/eval.py", run, "--data", moved)
    assert (run / "metrics.json").exists()


def test_a_model_that_gives_no_numbers_scores_nothing(run):
    """And leaves the scores that there are."""
    tensors, state = checkpoint.load(run)
    tensors["model.decoder.color_net.packed"][:] = float("nan")
    from nerfkit.training.run.folder import RunFolder

    checkpoint.save(RunFolder.existing(run), tensors, state)
    before = (run / "metrics.json").read_bytes()
    assert_names(last_line(call("scripts/eval.py", run, status=1)), "psnr", "nan")
    assert (run / "metrics.json").read_bytes() == before


@pytest.mark.parametrize("change", ["poses", "names", "views"])
def test_a_changed_scene_is_not_resumed(options, run, tmp_path, change: str):
    scene = shutil.copytree(options.parent / "scene", tmp_path / "scene")
    file = scene / "transforms_train.json"
    transforms = json.loads(file.read_text())
    if change == "poses":
        transforms["frames"][4]["transform_matrix"][0][3] += 0.01
    elif change == "names":
        shutil.copy(scene / "train" / "r_4.png", scene / "train" / "new.png")
        transforms["frames"][4]["file_path"] = "train/new"
    else:
        transforms["frames"].pop()
    file.write_text(json.dumps(transforms))
    before = content(run)
    output = call("scripts/train.py", "--resume", run, "--data.path", scene, "--trainer.steps", "9", status=1)
    named = {"poses": ("4", "r_4", "transform_matrix"), "names": ("4", "new", "file_path"), "views": ("11", "12")}
    assert_names(last_line(output), "train", *named[change])
    assert content(run) == before


def test_a_scene_that_is_gone_or_of_another_format_is_said(options, run, tmp_path):
    """Where the run's scene was and that --data.path gives it; no folder beside it with a name like its."""
    scene = shutil.copytree(options.parent / "scene", tmp_path / "sizes")
    call("scripts/train.py", "--resume", run, "--data.path", scene, "--trainer.steps", "9")
    scene.rename(tmp_path / "sizes1")
    message = last_line(call("scripts/train.py", "--resume", run, status=1))
    assert_names(message, scene, "--data.path")
    assert "sizes1" not in message
    other = tmp_path / "llff"
    other.mkdir()
    (other / "poses_bounds.npy").touch()
    message = last_line(call("scripts/train.py", "--resume", run, "--data.path", other, status=1))
    assert_names(message, "nerf_synthetic", scene, other, "--data.path")
    asked = ("--config", options, "--out", tmp_path / "new", "--data.path", other, "--data.format", "colmap")
    assert_names(last_line(call("scripts/train.py", *asked, status=1)), "colmap", other, "llff", "--data.format")


def test_a_checkpoint_with_a_flipped_bit_falls_back_with_one_line(run):
    file = run / checkpoint.NEWEST
    flipped = bytearray(file.read_bytes())
    flipped[-5] ^= 4
    file.write_bytes(flipped)
    output = call("scripts/train.py", "--resume", run, "--trainer.steps", "9", "--eval.after_training", "false")
    assert output.count(f"{checkpoint.NEWEST} ") == 1 and checkpoint.load(run)[1]["step"] == 9


@pytest.mark.parametrize(
    "key, value", [("random", {}), ("random", {"python": 1}), ("n_rays", -(10**30)), ("scaler", [])]
)
def test_a_state_that_was_edited_is_one_line(run, key: str, value):
    from nerfkit.training.run.folder import RunFolder

    tensors, state = checkpoint.load(run)
    checkpoint.save(RunFolder.existing(run), tensors, state | {key: value})
    if key != "scaler":  # which a CPU has no use for
        output = call("scripts/train.py", "--resume", run, "--trainer.steps", "9", status=1)
        assert_names(last_line(output), run)


def test_a_moment_of_another_shape_is_one_line(run):
    from nerfkit.training.run.folder import RunFolder

    tensors, state = checkpoint.load(run)
    checkpoint.save(RunFolder.existing(run), tensors | {"optimizer.0.exp_avg": torch.zeros(3)}, state)
    output = call("scripts/train.py", "--resume", run, "--trainer.steps", "9", status=1)
    assert_names(last_line(output), "optimizer.0.exp_avg")


def test_a_run_folder_that_vanishes_ends_the_run_with_an_error(options, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "scripts/train.py", "--config", options, "--out", run, "--trainer.steps", "1000000"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None
        run.rename(tmp_path / "elsewhere")  # at once: the run writes into it while files are deleted one by one
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and not run.exists()
    assert_names(last_line(errors), run)


def test_output_that_nobody_reads(options, tmp_path):
    command = f"{sys.executable} scripts/train.py --config {options} --out {tmp_path / 'run'}"
    done = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr
    if os.path.exists("/dev/full"):
        done = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True)
        assert done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_deterministic_says_its_price_and_gives_the_same_bits(options, tmp_path):
    outputs = [
        call("scripts/train.py", "--config", options, "--out", tmp_path / name, "--trainer.deterministic", "true")
        for name in "ab"
    ]
    for output in outputs:
        assert_names(output, "deterministic")
    (a, _), (b, _) = (checkpoint.load(tmp_path / name) for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_progress_in_a_log_is_a_few_lines(options, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TQDM")}
    steps = "--trainer.steps", 600, "--trainer.log_every", 1
    output = call_process("scripts/train.py", "--config", options, "--out", tmp_path / "run", *steps, env=env)
    assert 1 <= output.count("training:") <= 3 and "600/600" in output


def test_names_are_utf8_whatever_the_locale(options, run, tmp_path):
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = tmp_path / "bäume"
    output = call_process("scripts/train.py", "--config", options, "--out", out, env=env, encoding="utf-8")
    assert "bäume" in output and (out / "config.toml").exists()
    call_process("scripts/render.py", out, "--frames", "1", "--size", "4", "3", env=env, encoding="utf-8")


def test_a_model_of_ones_own_from_a_module(options, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mymodel.py").write_text(
        "import nerfkit\n\n\n@nerfkit.register_model('dark')\nclass Dark(nerfkit.Renderer):\n"
        "    def forward(self, *arguments):\n        rendering = super().forward(*arguments)\n"
        "        return rendering._replace(color=rendering.color * 0.5)\n"
    )
    scripts, run = ROOT / "scripts", tmp_path / "run"
    own = ("--model.kind", "dark", "--model.module", "mymodel")
    call_process(scripts / "train.py", "--config", options, "--out", run, *own, folder=tmp_path)
    frames = ("--frames", "1", "--size", "6", "5")
    output = call(scripts / "render.py", run, *frames, status=1, folder=tmp_path)
    assert "--module mymodel" in last_line(output), "a run folder imports nothing by itself"
    call(scripts / "train.py", "--resume", run, "--trainer.steps", "9", status=1, folder=tmp_path)
    call(scripts / "render.py", run, *frames, "--module", "mymodel", folder=tmp_path)
    from PIL import Image

    assert np.asarray(Image.open(run / "render" / "orbit" / "0000.png")).max() <= 128
    call(scripts / "train.py", "--resume", run, "--trainer.steps", "9", *own[2:], folder=tmp_path)


def test_a_clone_where_nothing_is_installed(tmp_path):
    """With a Python that has no packages, and no nerfkit on its path."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for script in ("train", "render", "eval", "summary", "inspect_scene"):
        done = subprocess.run(
            [sys.executable, "-S", "-E", str(tmp_path / "scripts" / f"{script}.py")], capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "pip install -e ." in done.stderr, done.stderr


def test_every_command_has_help():
    assert "train" in call_process("-m", "nerfkit", "--help")
    for command in ("train", "render", "eval", "summary", "inspect"):
        assert "usage" in call(command, "--help").lower()
    call_process("-m", "nerfkit", "paint", status=2)
    assert_names(last_line(call_process("-m", "nerfkit", "trian", status=2)), "'trian'", "did you mean train?")
    assert_names(last_line(call("export", "run", status=1)), "after the run folder", "mesh", "'run'")


@pytest.mark.parametrize(
    "started, typed",
    [
        ("scripts/train.py", "python scripts/render.py"),
        ("/usr/bin/nerfkit", "nerfkit render"),
        ("/site-packages/nerfkit/__main__.py", "python -m nerfkit render"),
    ],
)
def test_what_to_type_next(monkeypatch, started: str, typed: str):
    """In the form that the user has: with `python -m nerfkit` there may be no scripts."""
    monkeypatch.setattr(sys, "argv", [started])
    assert as_typed("render") == typed
    assert (
        as_typed("render", Path("runs/Dose süß"), "--module", "its own")
        == f"{typed} 'runs/Dose süß' --module 'its own'"
    )


def test_commands_to_copy_are_quoted(options, tmp_path):
    run = tmp_path / "Dose süß"
    few = ("--config", options, "--out", run, "--trainer.steps", 1, "--eval.after_training", "false")
    output = call("scripts/train.py", *few)
    assert shlex.split(last_line(output))[1:] == ["python", "scripts/render.py", str(run)]
    assert f"--resume '{run}'" in last_line(call("scripts/train.py", *few, status=1))


def test_frames_are_not_of_a_path_that_has_cameras(run):
    """Neither a split nor a file of cameras has another number of frames than its own."""
    message = call("scripts/render.py", run, "--path", "test", "--frames", "9", status=1)
    assert "--frames" in message and "test" in message
