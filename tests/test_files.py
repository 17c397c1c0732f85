# SPDX-License-Identifier: Apache-2.0
"""Files are whole or not there, and nothing that nerfkit did not write is ever touched."""

import json
import os
import threading

import pytest
import torch

from nerfkit import files
from nerfkit.commands import eval, inspect
from nerfkit.errors import RunError, UserError
from nerfkit.files import MARKER, OwnFolder
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import LOG, read_log
from nerfkit.training.run.folder import RunFolder, RunScene
from nerfkit.training.watching import plot_training
from tests.naming import raises_mentioning
from tests.processes import run_main

STATE = {"step": 0, "seconds": 0.0, "n_rays": 64, "random": {}}
LINE = {"step": 10, "seconds": 1.0, "loss": 0.1, "psnr": 10.0}


def own_folder(path, kind: str = "run") -> OwnFolder:
    folder = OwnFolder(path, kind)
    folder.claim()
    return folder


def test_inspect_makes_no_folder_without_a_scene(tmp_path):
    with raises_mentioning(UserError, tmp_path / "nowhere"):
        run_main(inspect, tmp_path / "nowhere", "--out", tmp_path / "page")
    assert os.listdir(tmp_path) == []


def test_no_link_is_followed(tmp_path):
    """Links that wait at the names of temporary files, of the marker and of the file itself."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("x.txt", "x.txt.tmp", ".x.txt.tmp", ".probe", "log"):
        (run / name).symlink_to(mine)
    files.atomic_write(run / "x.txt", "new", keep=run / "old.txt")
    with pytest.raises(RunError):
        files.append_line(run / "log", "line")
    (run / MARKER).symlink_to(mine)
    for act in (lambda: OwnFolder(run, "run").claim(), lambda: files.append_line(run / MARKER, "line")):
        with pytest.raises(RunError):
            act()
    assert mine.read_text() == "mine" and (run / "x.txt").read_text() == "new"


def test_a_full_disk_leaves_every_file_as_it_was(tmp_path, monkeypatch):
    folder = own_folder(tmp_path)
    checkpoint.save(folder, {"x": torch.zeros(1)}, STATE)
    folder.write("image.png", b"as it was")
    monkeypatch.setattr(files.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
    with raises_mentioning(RunError, "image.png", "No space left"):
        folder.write("image.png", b"x")
    with raises_mentioning(RunError, checkpoint.NEWEST, "No space left"):
        checkpoint.save(folder, {"x": torch.ones(1)}, STATE)
    assert (tmp_path / "image.png").read_bytes() == b"as it was" and not list(tmp_path.glob(".*.tmp"))
    assert not checkpoint.load(tmp_path)[0]["x"].any()


def test_a_torn_line_of_the_log_is_passed_over(tmp_path):
    whole = json.dumps(LINE)
    folder = own_folder(tmp_path)
    folder.write(LOG, f'{whole}\n5\n{{"loss": 1}}\nnull\n{whole}\n{whole[:20]}')
    assert read_log(tmp_path) == [LINE, LINE]
    plot_training(folder)
    assert (tmp_path / "loss.png").exists()


def test_clear_deletes_what_was_written_and_nothing_else(tmp_path):
    folder = own_folder(tmp_path / "run")
    folder.write("a.txt", "a")
    folder.write("b.txt", "b")
    child = folder.child("render/orbit", "rendering")
    child.write("0000.png", "frame")
    folder.child("export", "export").child("cameras", "export").write("transforms.json", "cameras")
    (tmp_path / "run" / "mine.txt").write_text("mine")
    (tmp_path / "run" / "render" / "orbit" / "0001.png").write_text("mine")
    again = OwnFolder(tmp_path / "run", "run")
    again.claim()
    again.clear(again.names - {"b.txt"})
    left = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert left == [MARKER, "b.txt", "mine.txt", "render/orbit/0001.png"]
    assert own_folder(tmp_path / "run").names == {"b.txt"}


def test_a_marker_from_elsewhere_deletes_nothing_outside(tmp_path):
    outside = tmp_path / "outside"
    own_folder(outside, "rendering").write("x.png", "mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(outside)
    (run / MARKER).write_text(f"nerfkit run\n../outside/x.png\n{outside}/x.png\n../outside/\nlink/\n{outside}/\n")
    folder = OwnFolder(run, "run")
    folder.claim()
    folder.clear()
    assert (outside / "x.png").exists() and (outside / MARKER).exists() and (run / "link").is_symlink()


@pytest.mark.parametrize("name", ["..", "../run", "depth_../../evil", "a/../../b", "/tmp", "a\nb", ".", ""])
def test_no_name_leads_out_of_a_folder(tmp_path, name: str):
    """Such as that of a split, which a scene's file may call as it likes."""
    folder = own_folder(tmp_path / "run")
    for act in (lambda: folder.child(name, "rendering"), lambda: folder.write(name, "x")):
        with raises_mentioning(RunError, tmp_path / "run"):
            act()
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == [MARKER]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"nerfkit\n"])
def test_a_marker_that_is_none(tmp_path, content: bytes):
    (tmp_path / MARKER).write_bytes(content)
    with raises_mentioning(RunError, tmp_path / MARKER):
        OwnFolder(tmp_path, "run").claim()
    assert (tmp_path / MARKER).read_bytes() == content


def test_a_folder_that_vanished_is_said(tmp_path):
    folder = own_folder(tmp_path / "run")
    folder.write("a.txt", "a")
    files.shutil.rmtree(tmp_path / "run")
    save = lambda: checkpoint.save(folder, {}, STATE)  # noqa: E731
    for act in (lambda: folder.write("a.txt", "b"), lambda: folder.append("log", "line"), save):
        with pytest.raises(RunError, match=f"{tmp_path / 'run'}.* is gone: nothing can be saved there$"):
            act()
    assert not (tmp_path / "run").exists()


def test_a_reader_beside_a_writer_never_fails(tmp_path, recwarn):
    """The newest checkpoint is there at every moment, and each that is read is of one save."""
    folder, seen, stop = own_folder(tmp_path), [], threading.Event()
    checkpoint_of = lambda step: ({"x": torch.full((2000,), float(step))}, STATE | {"step": step})  # noqa: E731
    checkpoint.save(folder, *checkpoint_of(0))

    def read() -> None:
        while not stop.is_set():
            try:
                tensors, state = checkpoint.load(tmp_path)
                seen.append(bool((tensors["x"] == state["step"]).all()))
            except Exception as error:  # whatever it is, it must not be
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 200):
        checkpoint.save(folder, *checkpoint_of(step))
    stop.set()
    reader.join()
    assert len(seen) > 20 and set(seen) == {True}
    assert not recwarn.list


def test_what_kills_left_is_cleaned_up(tmp_path):
    folder = own_folder(tmp_path)
    folder.write("a.txt", "a")
    for clean in (folder.lock, folder.clear):
        for name in (".a.txt.0123456789ab.tmp", ".mine.0123456789ab.tmp", ".a.txt.tmp"):
            (tmp_path / name).write_text("")
        clean()
        assert {path.name for path in tmp_path.glob(".*.tmp")} == {".mine.0123456789ab.tmp", ".a.txt.tmp"}


def test_a_file_of_somebody_else_in_nerfkits_own_folder_stays(tmp_path):
    folder = own_folder(tmp_path)
    (tmp_path / "metrics.json").write_text("mine")
    for act in (lambda: folder.write("metrics.json", "{}"), lambda: folder.append("metrics.json", "line")):
        with raises_mentioning(RunError, tmp_path / "metrics.json"):
            act()
    folder.clear()
    assert (tmp_path / "metrics.json").read_text() == "mine"


@pytest.mark.parametrize("line", ["/", "./", "..", "", "a/../b/", "x\0y", "a\u2028b", "a\rb", "//", "\x7f"])
def test_a_damaged_marker_loses_nothing_and_raises_nothing(tmp_path, line: str):
    folder = own_folder(tmp_path)
    folder.write("a.txt", "a")
    (tmp_path / "b").write_text("mine")
    with open(tmp_path / MARKER, "a", newline="") as file:
        file.write(f"{line}\ntorn")
    again = own_folder(tmp_path)
    again.write("c.txt", "c")
    assert own_folder(tmp_path).names >= {"a.txt", "c.txt"}, "a torn line swallows no name"
    own_folder(tmp_path).clear()
    assert {path.name for path in tmp_path.iterdir()} == {MARKER, "b"}


def test_another_run_in_a_folder_of_this_one_is_not_cleared(tmp_path):
    folder = own_folder(tmp_path / "run")
    folder.child("eval", "scores")
    files.shutil.rmtree(tmp_path / "run" / "eval")
    own_folder(tmp_path / "run" / "eval").write("checkpoint", "another run's")
    folder.clear()
    assert (tmp_path / "run" / "eval" / "checkpoint").exists()


def test_a_folder_within_is_listed_before_it_is_there(tmp_path, monkeypatch):
    """So that a kill between both leaves nothing that stays for ever."""
    folder = own_folder(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(OwnFolder, "claim", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        folder.child("eval", "scores")
    assert own_folder(tmp_path).names == {"eval/"}


def test_eval_waits_for_a_training_in_the_same_run(tmp_path, small_config):
    training = RunFolder(tmp_path / "run")
    training.start(small_config, RunScene("toy", (0.0, 0.0, 1.0), {}))
    with raises_mentioning(RunError, tmp_path / "run", "another process"):
        run_main(eval, tmp_path / "run")


def test_a_folder_that_was_moved_is_not_written_to_where_another_came(tmp_path):
    folder = own_folder(tmp_path / "run")
    folder.lock()
    (tmp_path / "run").rename(tmp_path / "moved")
    own_folder(tmp_path / "run")
    with raises_mentioning(RunError, tmp_path / "run"):
        folder.write("a.txt", "mine")
