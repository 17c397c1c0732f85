# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and run folders."""

import copy
import json

import pytest
import torch

from nerfkit import load_run
from nerfkit.commands import eval, export, render, summary, train, view
from nerfkit.config.files import DECISIONS
from nerfkit.data.load import load_scene
from nerfkit.device import pick_device
from nerfkit.errors import RunError
from nerfkit.files import MARKER, OwnFolder
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import CONFIG, PATHS, SCENE, read_config
from nerfkit.training.run.folder import RunFolder, describe, read_scene
from tests.naming import raises_mentioning, warns_naming
from tests.processes import run_main
from tests.test_files import STATE, own_folder
from tests.trainers import make_trainer


@pytest.fixture
def folder(tmp_path) -> OwnFolder:
    return own_folder(tmp_path)


def save_steps(folder: OwnFolder, *steps: int) -> None:
    for step in steps:
        checkpoint.save(folder, {"x": torch.full((1000,), float(step))}, STATE | {"step": step})


def test_a_cut_and_every_flipped_bit_are_noticed(folder):
    """In header, state and data alike: the checkpoint before is taken, and no other error comes out."""
    save_steps(folder, 1, 2)
    file = folder.path / checkpoint.NEWEST
    content = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(content) * 8, (150,), generator=generator).tolist() + list(range(64, 64 + 800, 16))
    for place in [None, *places]:
        broken = bytearray(content[:-100] if place is None else content)
        if place is not None:
            broken[place // 8] ^= 1 << place % 8
        file.write_bytes(broken)
        with warns_naming(UserWarning, checkpoint.NEWEST, checkpoint.PREVIOUS, "step 1"):
            tensors, state = checkpoint.load(folder.path)
        assert state["step"] == 1 and bool((tensors["x"] == 1).all()), place
    (folder.path / checkpoint.PREVIOUS).unlink()
    with raises_mentioning(RunError, folder.path, checkpoint.NEWEST):
        checkpoint.load(folder.path)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.filterwarnings("ignore:.*is missing")
def test_a_broken_checkpoint_never_becomes_the_previous(folder, monkeypatch, is_cut: bool):
    with monkeypatch.context() as changed:
        changed.setattr(checkpoint, "_read", None)  # what this process wrote is not read again to be kept
        save_steps(folder, 1, 2)
    file = folder.path / checkpoint.NEWEST
    content = file.read_bytes()
    folder.whole.clear()
    file.write_bytes(content[:-100] if is_cut else content[:-1] + bytes([content[-1] ^ 1]))
    save_steps(folder, 3)
    assert checkpoint.load(folder.path)[1]["step"] == 3
    file.unlink()
    assert checkpoint.load(folder.path)[1]["step"] == 1


def test_no_and_other_checkpoints(folder, monkeypatch):
    with raises_mentioning(RunError, folder.path):
        checkpoint.load(folder.path)
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 99)
    checkpoint.save(folder, {"x": torch.zeros(1)}, STATE)
    monkeypatch.undo()
    with raises_mentioning(RunError, checkpoint.NEWEST, 99, checkpoint.FORMAT_VERSION):
        checkpoint.load(folder.path)


@pytest.fixture
def scene(small_config):
    return describe(load_scene(small_config.data.path))


def started_run(path, config, scene) -> RunFolder:
    """One that has saved step 7, and ended."""
    run = RunFolder.for_new_run(path)
    run.start(config, scene)
    save_steps(run, 7)
    run.unlock()
    return run


def test_runs_are_not_overwritten_unless_asked(small_config, scene, tmp_path):
    path = tmp_path / "run"
    run = RunFolder.for_new_run(path)
    assert not path.exists(), "nothing is made before the first step"
    run.start(small_config, scene)
    run.unlock()  # as of one that was killed before its first checkpoint
    started_run(path, small_config, scene).child(PATHS, "paths").write("path_1.json", "made by hand")
    (path / "notes.txt").write_text("mine")
    for way in (path, tmp_path / "new" / ".." / "run"):
        with raises_mentioning(RunError, path, "--resume", "--overwrite"):
            RunFolder.for_new_run(way)
    again = RunFolder.for_new_run(path, overwrite=True)
    assert checkpoint.load(path)[1]["step"] == 7, "still there"
    again.start(small_config, scene)
    assert {file.name for file in path.iterdir()} == {MARKER, CONFIG, DECISIONS, SCENE, "notes.txt", "paths"}
    assert (path / "paths" / "path_1.json").exists() and "paths/" in again.names
    with raises_mentioning(RunError, path / "notes.txt" / "run"):
        RunFolder.for_new_run(path / "notes.txt" / "run")


def test_a_run_that_came_in_meanwhile_is_not_replaced(small_config, scene, tmp_path):
    """Two new runs into one folder: the slower one finds the other's when it starts."""
    slow = RunFolder.for_new_run(tmp_path / "run")
    started_run(tmp_path / "run", small_config, scene)
    with raises_mentioning(RunError, tmp_path / "run"):
        slow.start(small_config, scene)
    assert checkpoint.load(tmp_path / "run")[1]["step"] == 7


def test_a_folder_without_the_marker_is_left_alone(small_config, scene, tmp_path):
    run = started_run(tmp_path / "run", small_config, scene)
    (run.path / MARKER).unlink()
    for open_it in (RunFolder.existing, RunFolder.for_new_run, lambda path: RunFolder.for_new_run(path, True)):
        with raises_mentioning(RunError, run.path):
            open_it(run.path)
    assert checkpoint.load(run.path)[1]["step"] == 7


def test_a_scene_that_is_not_the_runs_is_named(small_config, scene, tmp_path):
    """And options that cannot change, all at once."""
    run = RunFolder(tmp_path)
    run.start(small_config, scene)
    run.check_resumable(small_config, scene)
    cases = {
        ("train", "3", "r_3", "fl_x"): lambda s: s["train"]["frames"][3].update(fl_x=99.0),
        ("train", "0", "r_0", "transform_matrix"): lambda s: s["train"]["frames"][0]["transform_matrix"][0].reverse(),
        ("train", "11", "12"): lambda s: s["train"]["frames"].pop(),
        ("train", "52x22", "26x22"): lambda s: s["train"].update(w=52),
        ("test",): lambda s: s.pop("test"),
    }
    for named, edit in cases.items():
        other = copy.deepcopy(scene)
        edit(other.splits)
        with raises_mentioning(RunError, *named):
            run.check_resumable(small_config, other)
    small_config.data.box, small_config.model.mlp_width, small_config.seed = (-1.0,) * 3 + (1.0,) * 3, 32, 7
    changes = "data.box (-0.8", "become (-1.0", "mlp_width 16, which cannot become 32", "seed 0, which cannot become 7"
    with raises_mentioning(RunError, "--out", *changes):
        run.check_resumable(small_config, scene)


@pytest.mark.parametrize("content", ["[]", "{", '{"name": "x", "up": [0, 0, 1], "splits": 3}'])
def test_a_broken_scene_file_is_one_line(tmp_path, content: str):
    (tmp_path / SCENE).write_text(content)
    with raises_mentioning(RunError, "scene.json"):
        read_scene(tmp_path)


@pytest.mark.parametrize("found", [None, 2])
def test_a_run_of_another_format_is_refused_by_every_door(small_config, scene, tmp_path, found):
    RunFolder(tmp_path).start(small_config, scene)
    described = json.loads((tmp_path / SCENE).read_text())
    assert described.pop("format") == 1
    (tmp_path / SCENE).write_text(json.dumps(described if found is None else {"format": found} | described))
    commands = ((train, "--resume"), (render,), (eval,), (view,), (export, "mesh"), (summary,))
    doors = [lambda words=words: run_main(*words, tmp_path) for words in commands]
    version = "no run format" if found is None else f"run format {found}"
    for door in (*doors, lambda: make_trainer(small_config).restore(tmp_path), lambda: load_run(tmp_path)):
        with raises_mentioning(RunError, tmp_path, version, "format 1"):
            door()


def test_scene_and_network_are_found_from_any_working_folder(small_config, scene, toy_scene, tmp_path, monkeypatch):
    monkeypatch.chdir(toy_scene.parent)
    small_config.data.path, small_config.eval.lpips = toy_scene.name, "vgg.pth"
    RunFolder(tmp_path / "run").start(small_config, scene)
    assert small_config.data.path == toy_scene.name
    monkeypatch.chdir(tmp_path)
    written = read_config(tmp_path / "run")
    assert load_scene(written.data.path).name == toy_scene.name
    assert written.eval.lpips == str(toy_scene.parent.resolve() / "vgg.pth")


@pytest.mark.parametrize("name", ["tpux", "meta", "cuda:7"])
def test_a_device_that_is_not_there_is_named(monkeypatch, name: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1").index == 1
    with raises_mentioning(RunError, name, "cuda"):
        pick_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises_mentioning(RunError, "GPU", "nerfkit doctor"):
        pick_device("cuda")
