# SPDX-License-Identifier: Apache-2.0
"""examples/image_based: trained by the command and from Python, rendered without its scene."""

import shutil
import sys

import pytest
import torch

import nerfkit
from nerfkit import ops
from nerfkit.config import dump
from nerfkit.model import registry
from tests.naming import raises_naming
from tests.processes import ROOT, call
from tests.trainers import make_trainer


@pytest.fixture
def example(small_config, monkeypatch):
    """Options of the example, which is registered for one test."""
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))
    monkeypatch.syspath_prepend(ROOT / "examples")
    for name in [name for name in sys.modules if name.startswith("image_based")]:
        monkeypatch.delitem(sys.modules, name)
    registry.import_models("image_based")
    small_config.model.kind, small_config.trainer.steps = "image_based", 24
    small_config.model.options = {"sources": 6, "side": 24, "nearest": 3, "channels": 4, "state": 8}
    return small_config


def test_it_trains_and_renders_by_the_commands(example, toy_scene, tmp_path, monkeypatch):
    called, both = [], {"depthwise_conv2d", "lltm_cell"}
    for op in both:
        function = getattr(ops, op)
        monkeypatch.setattr(ops, op, lambda *x, op=op, function=function: called.append(op) or function(*x))
    dump(example, tmp_path / "options.toml")
    scene, run, examples = shutil.copytree(toy_scene, tmp_path / "scene"), tmp_path / "run", ROOT / "examples"
    own = ("--model.kind", "image_based", "--model.module", "image_based")
    call("train.py", scene, "--config", tmp_path / "options.toml", "--out", run, *own, folder=examples)
    assert set(called) == both
    called.clear()
    shutil.rmtree(scene)  # the run is complete by itself
    call("render.py", run, "--frames", "1", "--size", "26", "22", "--module", "image_based", folder=examples)
    assert set(called) == both
    model = nerfkit.load_run(run, "cpu", "image_based").model
    assert model.residual.weight.abs().max() > 0 and model.image_encoder.around.weight.isfinite().all()


def test_it_starts_as_the_field_and_a_ray_never_sees_its_own_image(example):
    trainer = make_trainer(example)
    model, rays = trainer.model.eval(), trainer.cameras.image_rays(4)
    assert torch.equal(nerfkit.Renderer.forward(model, rays, torch.ones(3)).color, model(rays, torch.ones(3)).color)
    torch.nn.init.normal_(model.residual.weight)
    assert 4 in model.sources.view
    before = [model(of, torch.ones(3)).color for of in (rays, rays._replace(view=None))]
    model.sources.images[model.sources.view == 4] ^= 255
    after = [model(of, torch.ones(3)).color for of in (rays, rays._replace(view=None))]
    assert torch.equal(before[0], after[0]) and (before[1] - after[1]).abs().max() > 0.01


def test_a_point_is_looked_up_where_it_appears(example):
    """Along the rays of a view, its own source has them all, each at its pixel."""
    example.model.options |= {"sources": 12, "nearest": 1, "side": 44}
    trainer = make_trainer(example)
    sources, images = trainer.model.sources, trainer.views.source.pool
    for view in (0, 7):
        rays = trainer.cameras.image_rays(view)._replace(view=None)
        chosen, pixels, _, valid = sources.nearest(rays, rays.origins + 2.5 * rays.directions, 1)
        assert (chosen == view).all() and valid.all()
        seen = sources.sample(sources.rgba().permute(0, 2, 3, 1), chosen, pixels)[:, 0, 3].view(22, 26)
        assert (seen - images.image(view)[..., 3] / 255).abs().mean() < 0.05


def test_what_is_missing_is_said(example):
    views = make_trainer(example).cameras
    with raises_naming(nerfkit.UserError, "image_based", "observe_images"):
        registry.build_model(example)(views.image_rays(0), torch.ones(3))
    with raises_naming(nerfkit.UserError, "image_based", "2"):
        nerfkit.Trainer(example, views[[0]], torch.zeros(1, 22, 26, 3, dtype=torch.uint8))
