# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch

from nerfkit import config as config_module
from nerfkit import files
from nerfkit.data.load import load_scene
from nerfkit.errors import RunError
from nerfkit.model.renderer import Renderer
from nerfkit.rendering import images
from nerfkit.training import checkpoint, plot, run
from nerfkit.training.evaluator import evaluate

LINE = {"step": 10, "seconds": 1.0, "loss": 0.1, "psnr": 10.0}


@pytest.fixture
def full_disk(monkeypatch):
    def no_space(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)


def test_atomic_write_replaces_and_keeps(tmp_path):
    file, before = tmp_path / "folder" / "x.txt", tmp_path / "folder" / "before.txt"
    files.atomic_write(file, "one")
    files.atomic_write(file, b"two", keep=before)
    assert (file.read_text(), before.read_text()) == ("two", "one")
    assert len(list(file.parent.iterdir())) == 2


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write .*x.txt: "):
        files.atomic_write(tmp_path / "file" / "x.txt", "one")


def test_a_full_disk_leaves_every_file_as_it_was(small_config, tmp_path, full_disk):
    """config.toml, scene.json, metrics.json, pictures, plot and checkpoint: none is cut short."""
    scene, renderer, device = load_scene(small_config.data.path), Renderer(small_config), torch.device("cpu")
    small_config.eval.sheets = 0
    state = {"seconds": 1.0, "step": 1}
    (tmp_path / run.LOG).write_text(json.dumps(LINE) + "\n")
    writers = {
        run.CONFIG: lambda: config_module.dump(small_config, tmp_path / run.CONFIG),
        run.METRICS: lambda: evaluate(renderer, small_config, scene.split("test"), state, tmp_path, device),
        "picture.png": lambda: images.save_png(tmp_path / "picture.png", torch.zeros(2, 2, 3)),
        "loss.png": lambda: plot.plot_training(tmp_path),
        checkpoint.NEWEST: lambda: checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {}),
    }
    for name, write in writers.items():
        (tmp_path / name).write_text("as it was")
        with pytest.raises(RunError, match=f"cannot write .*{name}: No space left on device"):
            write()
        assert (tmp_path / name).read_text() == "as it was"
    assert not list(tmp_path.glob("*.tmp"))


def test_scene_json_is_written_aside(small_config, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(run, "atomic_write", lambda path, content: written.append(path.name))
    run.save_description(tmp_path, small_config, load_scene(small_config.data.path))
    assert written == [run.SCENE]


def test_a_torn_line_of_the_log_is_passed_over(tmp_path):
    whole = json.dumps(LINE)
    (tmp_path / run.LOG).write_text(f"{whole}\n{whole}\n{whole[:20]}")
    assert run.read_log(tmp_path) == [LINE, LINE]
    plot.plot_training(tmp_path)
    assert (tmp_path / "loss.png").exists()
