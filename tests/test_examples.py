# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ run as they say, on a small capture; a run goes on, and is drawn, without its scene."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch

import nerfkit
from nerfkit.config import dump
from nerfkit.model import registry
from nerfkit.training.run import checkpoint
from tests.camera_layouts import ring
from tests.posed_captures import write_capture
from tests.processes import ROOT, call, call_process
from tests.trainers import make_trainer

EXAMPLES = ROOT / "examples"
SMALL = "--device cpu --trainer.steps 3 --trainer.samples_per_step 256 --sampling.occupancy_resolution 8".split()


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    return write_capture(tmp_path_factory.mktemp("examples") / "scene", ring(20)).resolve()


@pytest.fixture
def as_new(monkeypatch):
    """Forgets what has been imported from examples/, as a new process has."""
    models = dict(registry.MODELS)

    def forget() -> None:
        monkeypatch.setattr(registry, "MODELS", dict(models))
        for name in [name for name in sys.modules if name.startswith(("own_", "image_based"))]:
            monkeypatch.delitem(sys.modules, name)

    forget()
    return forget


def program(name: str, monkeypatch, capsys, *words: object) -> str:
    """What `python examples/NAME WORDS` prints."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.slow
def test_own_loss_and_grid_only(capture, monkeypatch, capsys):
    out = program("own_loss.py", monkeypatch, capsys, capture, 2)
    assert "loss.l1" in out and "loss.distortion" in out and "psnr" in out
    assert float(program("grid_only.py", monkeypatch, capsys).split()[2]) < 0.02


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(monkeypatch):
    """In a new process, as Jupyter does; it is kept without outputs."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = json.loads((EXAMPLES / "demo.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    check = "assert psnr > 20 and difference < 0.01 and torch.allclose(weights, line_of_pytorch)"
    call_process("-c", "\n".join(["".join(cell["source"]) for cell in cells] + [check]), folder=EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--trainer.loss", "own_loss:robust"),
        ("--model.kind", "difference", "--model.module", "own_encoder"),
        ("--model.kind", "blobs", "--model.module", "own_model"),
    ],
    ids=["loss", "encoder", "model"],
)
def test_by_command(capture, words, tmp_path, as_new):
    """And the run goes on with its own code only if that is named again; no module stays on Python's path."""
    out, path = tmp_path / "run", list(sys.path)
    call("train.py", capture, *SMALL, "--eval.after_training", "false", *words, "--out", out, folder=EXAMPLES)
    as_new()
    call("eval.py", out, "--device", "cpu", *(("--module", words[3]) if len(words) == 4 else ()), folder=EXAMPLES)
    assert (out / "metrics.json").exists()
    as_new()
    again = ("train.py", "--resume", out, "--trainer.steps", "5")
    assert words[1] in call(*again, status=1, folder=EXAMPLES)
    as_new()
    call(*again, *words[-2:], folder=EXAMPLES)
    assert checkpoint.load(out)[1]["step"] == 5 and sys.path == path


def test_an_own_stage_takes_the_recipe_of_the_scene(capture, as_new, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from own_encoder import OwnEncoder

    scene = nerfkit.load_scene(str(capture))
    plain, own = (nerfkit.Config().resolved(scene, "cpu", kind) for kind in (nerfkit.Renderer, OwnEncoder))
    assert plain == own
    model = OwnEncoder(own)
    assert "depthwise_conv1d" not in model.used_ops and {"lltm", "grid_encode"} < set(model.used_ops)
    assert model.silent_modules == ()


@pytest.fixture
def image_based(small_config, as_new, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    registry.import_models("image_based")
    small_config.model.kind, small_config.trainer.steps = "image_based", 24
    small_config.model.options = {"sources": 6, "side": 24, "nearest": 3, "channels": 4, "state": 8}
    return small_config


def test_image_based_trains_and_renders_by_the_commands(image_based, toy_scene, tmp_path):
    dump(image_based, tmp_path / "options.toml")
    scene, run = shutil.copytree(toy_scene, tmp_path / "scene"), tmp_path / "run"
    own = ("--model.kind", "image_based", "--model.module", "image_based")
    call("train.py", scene, "--config", tmp_path / "options.toml", "--out", run, *own, folder=EXAMPLES)
    shutil.rmtree(scene)  # the run is complete by itself
    call("render.py", run, "--frames", "1", "--size", "26", "22", "--module", "image_based", folder=EXAMPLES)
    model = nerfkit.load_run(run, "cpu", "image_based").model
    assert model.residual.weight.abs().max() > 0 and model.image_encoder.around.weight.isfinite().all()
    assert {"depthwise_conv2d", "lltm_cell"} <= set(model.used_ops)


def test_image_based_starts_as_the_field_and_a_ray_never_sees_its_own_image(image_based):
    trainer = make_trainer(image_based)
    model, rays = trainer.model.eval(), trainer.cameras.image_rays(4)
    assert torch.equal(nerfkit.Renderer.forward(model, rays, torch.ones(3)).color, model(rays, torch.ones(3)).color)
    torch.nn.init.normal_(model.residual.weight)
    assert 4 in model.sources.view
    before = [model(of, torch.ones(3)).color for of in (rays, rays._replace(view=None))]
    model.sources.images[model.sources.view == 4] ^= 255
    after = [model(of, torch.ones(3)).color for of in (rays, rays._replace(view=None))]
    assert torch.equal(before[0], after[0]) and (before[1] - after[1]).abs().max() > 0.01


def test_image_based_looks_a_point_up_where_it_appears(image_based):
    """Along the rays of a view, its own source has them all, each at its pixel."""
    image_based.model.options |= {"sources": 12, "nearest": 1, "side": 44}
    trainer = make_trainer(image_based)
    sources, images = trainer.model.sources, trainer.views.source.pool
    for view in (0, 7):
        rays = trainer.cameras.image_rays(view)._replace(view=None)
        chosen, pixels, _, valid = sources.nearest(rays, rays.origins + 2.5 * rays.directions, 1)
        assert (chosen == view).all() and valid.all()
        seen = sources.sample(sources.rgba().permute(0, 2, 3, 1), chosen, pixels)[:, 0, 3].view(22, 26)
        assert (seen - images.image(view)[..., 3] / 255).abs().mean() < 0.05
