# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and run folders."""

import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from nerfkit import config as config_module
from nerfkit.data.load import load_scene
from nerfkit.device import pick_device
from nerfkit.errors import RunError
from nerfkit.training import checkpoint, run


def test_a_cut_checkpoint_falls_back_to_the_previous(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"x": torch.full((1000,), float(step))}, {"step": step})
    file = tmp_path / checkpoint.NEWEST
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="checkpoint.safetensors is cut short .*; using .*previous.* of step 1"):
        tensors, state = checkpoint.load(tmp_path)
    assert state["step"] == 1 and tensors["x"][0] == 1
    (tmp_path / checkpoint.PREVIOUS).unlink()
    with pytest.raises(RunError, match="no whole checkpoint in .*checkpoint.safetensors is cut short"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("broken", [b"", b"no checkpoint", None])
def test_a_broken_checkpoint_never_becomes_the_previous(tmp_path, broken: bytes | None):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"x": torch.full((1000,), float(step))}, {"step": step})
    file = tmp_path / checkpoint.NEWEST
    file.write_bytes(file.read_bytes()[:-100] if broken is None else broken)
    checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {"step": 3})
    assert checkpoint.load(tmp_path)[1]["step"] == 3
    file.unlink()
    assert checkpoint.load(tmp_path)[1]["step"] == 1


def test_no_and_other_checkpoints(tmp_path, monkeypatch):
    with pytest.raises(RunError, match="no checkpoint in .*; is it a run folder"):
        checkpoint.load(tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 99)
    checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {})
    monkeypatch.undo()
    with pytest.raises(RunError, match="has checkpoint format 99, this nerfkit reads 2"):
        checkpoint.load(tmp_path)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    """The file size limit makes the write fail as a full disk does."""
    checkpoint.save(tmp_path, {"x": torch.zeros(10)}, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(RunError, match="cannot save the checkpoint in .*File too large; the last one is kept"):
            checkpoint.save(tmp_path, {"x": torch.zeros(10**6)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoint.load(tmp_path)[1]["step"] == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_run_folders_are_not_overwritten(small_config, tmp_path):
    run.create(tmp_path / "run")
    run.save_description(tmp_path / "run", small_config, load_scene(small_config.data.path))
    with pytest.raises(RunError, match="holds a run already; go on with --resume .* or replace it with --overwrite"):
        run.create(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run.create(tmp_path / "run", overwrite=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"], "what is not the run's stays"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to the run folder .*; choose another with --out"):
        run.create(tmp_path / "file" / "run")


def test_the_scene_is_found_from_any_working_folder(small_config, toy_scene, tmp_path, monkeypatch):
    monkeypatch.chdir(toy_scene.parent)
    small_config.data.path = toy_scene.name
    run.save_description(tmp_path, small_config, load_scene(small_config.data.path))
    assert small_config.data.path == toy_scene.name
    monkeypatch.chdir(tmp_path)
    assert load_scene(run.read_config(tmp_path).data.path).name == toy_scene.name


@pytest.mark.parametrize("name", ["tpux", "mps", "meta"])
def test_unknown_device(name: str):
    with pytest.raises(RunError, match=f"'{name}' is unknown; use auto, cpu"):
        pick_device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="sees no GPU; run .python -m nerfkit doctor"):
            pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1").index == 1
    with pytest.raises(RunError, match="cuda:7 was asked for, but there are cuda:0 to cuda:1 only"):
        pick_device("cuda:7")


def test_a_signal_saves_and_says_how_to_resume(small_config, tmp_path):
    """scripts/train.py as its own process: SIGTERM in mid-run, then --resume to the end."""
    small_config.trainer.steps, small_config.eval.after_training = 3000, False
    config_module.dump(small_config, tmp_path / "options.toml")
    folder = tmp_path / "run"
    command = [sys.executable, "scripts/train.py"]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "options.toml"), "--out", str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        while not (folder / run.LOG).exists():
            assert process.poll() is None, "ended before its first step"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"python scripts/train.py --resume {folder}" in output
    step = checkpoint.load(folder)[1]["step"]
    assert 0 < step < 3000
    done = subprocess.run(
        [*command, "--resume", str(folder), "--trainer.steps", str(step + 5)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(folder)[1]["step"] == step + 5
