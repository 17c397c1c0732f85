# SPDX-License-Identifier: Apache-2.0
"""Light and pose of each training view: when they are, what they are, that they are trained, saved and reported."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit import load_run
from nerfkit.config import Config, DataConfig
from nerfkit.data.cameras.cameras import Rays
from nerfkit.data.images.batch import Batch
from nerfkit.data.light import difference
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.errors import RunError, UserError
from nerfkit.metrics import color_corrected, psnr
from nerfkit.model.compositing import Rendering
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.evaluator import aligned
from nerfkit.training.run import checkpoint
from nerfkit.training.step.adjustments import ViewAdjustments, in_light, radius_of, rotated
from nerfkit.viewer.scene import ViewerScene
from tests import sphere_field
from tests.naming import raises_mentioning
from tests.noisy_captures import LENS, capture
from tests.processes import ROOT
from tests.test_quality import needs_images_of
from tests.trainers import make_trainer

BOTH = DataConfig(appearance="affine", pose_optimization=True)
GAMMA = 2.2


def adjustments(n_views: int, data: DataConfig = BOTH) -> ViewAdjustments:
    generator, found = torch.Generator().manual_seed(0), ViewAdjustments(data, n_views)
    for p in found.parameters():
        p.data = 0.05 * torch.randn(p.shape, generator=generator)
    return found


def test_colors_change_but_for_the_background():
    torch.manual_seed(1)
    own, a, behind, change = torch.rand(5, 3), torch.rand(5), torch.rand(5, 3), 0.3 * torch.randn(5, 3, 4)
    a[0] = 0
    color = a[:, None] * own + (1 - a)[:, None] * behind
    matrix, offset = torch.eye(3) + change[..., :3], change[..., 3]
    wanted = a[:, None] * ((matrix @ own[..., None])[..., 0] + offset) + (1 - a)[:, None] * behind
    torch.testing.assert_close(in_light(color, a, behind, change), wanted)
    torch.testing.assert_close(in_light(color, a, behind, change)[0], behind[0])
    arguments = [x.double().requires_grad_() for x in (color, a, behind, change)]
    assert torch.autograd.gradcheck(in_light, arguments)


def test_refined_cameras_are_those_whose_rays_are_trained():
    """Of images that are no squares, through a lens."""
    of, found = capture(0), adjustments(14)
    view, row, column = torch.arange(14), torch.arange(14) * 2, torch.arange(14) * 29 % LENS.width
    moved = found.rays(of.given.rays(view, column, row))
    cameras = found.cameras(of.given)
    wanted = cameras.rays(view, column, row)
    torch.testing.assert_close(moved.origins, wanted.origins)
    torch.testing.assert_close(moved.directions, wanted.directions)
    assert cameras.table is of.given.table and (moved.origins - of.given.positions).norm(dim=-1).min() > 1e-3


def test_light_that_all_views_have_is_none():
    found, color, opacity, background = adjustments(7), torch.rand(7, 3), torch.rand(7), torch.rand(7, 3)
    batch = Batch(Rays(color, color, torch.arange(7)), None, None, background, None)
    before = found.rendering(Rendering(color, opacity, opacity), batch).color
    found.appearance.data += torch.randn(3, 4)
    after = found.rendering(Rendering(color, opacity, opacity), batch).color
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert (before - color).abs().max() > 1e-3


def test_lengths_are_those_of_the_box():
    assert radius_of((0, 0, 0, 1.0, 2.0, 2.0)) == pytest.approx(3**0.5 / 2)
    boxes = ((-1.0,) * 3 + (1.0,) * 3, (-10.0,) * 3 + (10.0,) * 3)
    one, ten = (adjustments(5, DataConfig(pose_optimization=True, box=box)) for box in boxes)
    assert ten.stats()["cameras_shifted"] == pytest.approx(10 * one.stats()["cameras_shifted"])
    turned = (one.poses - one.poses.mean(0))[:, :3].square().sum(-1).mean().sqrt().item()
    assert one.stats()["cameras_turned"] == pytest.approx(math.degrees(turned))
    assert ten.stats()["cameras_turned"] == pytest.approx(math.degrees(turned))


def test_poses_wait_for_a_field():
    found = ViewAdjustments(BOTH, 3)
    names = [name for name, _ in found.named_parameters()]
    rates = [dict(zip(names, found.rates(progress), strict=True)) for progress in (0.0, 0.01, 0.05, 0.2, 1.0)]
    poses = [rate["poses"] for rate in rates]
    assert poses[:2] == [0.0, 0.0] and 0 < poses[2] < poses[3] and poses[4] < 0.05 * poses[3]
    assert rates[0]["appearance"] > rates[3]["appearance"] > rates[4]["appearance"] > 0


def test_a_loaded_run_has_the_cameras_that_were_found(small_config, tmp_path):
    small_config.data.pose_optimization = True
    trainer = make_trainer(small_config, scene=load_scene(small_config.data.path))
    trainer.adjustments.poses.data = adjustments(12).poses.data
    trainer.save(tmp_path / "run")
    run = load_run(tmp_path / "run", "cpu")
    wanted = trainer.adjustments.cameras(trainer.cameras).camera_to_world
    torch.testing.assert_close(run.cameras("train").camera_to_world, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run.given_cameras("train").camera_to_world, trainer.cameras.camera_to_world)
    subject = ViewerScene.from_run(run)
    assert subject.photo is not None and torch.equal(subject.cameras.camera_to_world, run.cameras().camera_to_world)
    tensors, state = checkpoint.load(tmp_path / "run")
    del tensors["views.poses"]
    checkpoint.save(trainer.folder, tensors, {**state})
    with raises_mentioning(RunError, "config.toml", "poses"):
        load_run(tmp_path / "run", "cpu")


def test_a_light_is_found_by_least_squares():
    """Exactly, behind clipped values too; what is not counted, and the background, have no say."""
    generator = torch.Generator().manual_seed(0)
    own, opacity = torch.rand(12, 17, 3, generator=generator), torch.rand(12, 17, generator=generator)
    opacity[:4], opacity[4:6], background = 1.0, 0.0, torch.tensor([1.0, 0.5, 0.9])
    behind = (1 - opacity)[..., None] * background
    render = opacity[..., None] * own + behind
    matrix = torch.eye(3) + 0.2 * torch.randn(3, 3, generator=generator)
    offset = 0.1 * torch.randn(3, generator=generator)
    truth = (opacity[..., None] * (own @ matrix.T + offset) + behind).clamp(0, 1)
    assert ((truth == 0) | (truth == 1)).any()
    counts = torch.rand(12, 17, generator=generator) < 0.8
    spoiled = torch.where(counts[..., None], truth, 0.3)
    torch.testing.assert_close(color_corrected(render, opacity, truth, background), truth, rtol=1e-4, atol=1e-4)
    found = color_corrected(render, opacity, spoiled, background, counts)
    torch.testing.assert_close(found[counts], truth[counts], rtol=1e-4, atol=1e-4)
    assert psnr(render, truth) < 30


def test_a_light_that_colors_do_not_tell_is_none():
    gray, solid, black = torch.full((8, 9, 3), 0.5), torch.ones(8, 9), torch.zeros(3)
    torch.testing.assert_close(color_corrected(gray, solid, gray * 1.2, black), gray * 1.2)
    torch.testing.assert_close(color_corrected(gray, solid, torch.ones(8, 9, 3), black), gray)
    torch.testing.assert_close(color_corrected(gray, 0 * solid, gray * 1.2, gray[0, 0]), gray)


def test_a_pose_is_found_with_the_field_frozen():
    """The balls, of which one view is off; what it saw has pixels that do not count."""
    torch.testing.assert_close(rotated(torch.eye(3)[0], torch.tensor([0, 0, math.pi / 2])), torch.eye(3)[1])
    config, cameras, view, background = sphere_field.config(), sphere_field.cameras(3, (44, 40)), 2, torch.ones(3)
    model = sphere_field.Balls(config)
    model.update(0)
    truth = ImageRenderer(model, background)(cameras, view)["rgb"]
    generator = torch.Generator().manual_seed(0)
    turn, pose = 0.02 * torch.randn(3, generator=generator), cameras.camera_to_world.clone()
    pose[view, :, :3] = rotated(pose[view, :, :3].mT, turn.expand(3, 3)).mT
    pose[view, :, 3] += 0.02 * torch.randn(3, generator=generator)
    given, counts = replace(cameras, camera_to_world=pose), torch.rand(40, 44, generator=generator) < 0.9
    state, seen = torch.get_rng_state(), torch.where(counts[..., None], truth, 0.0)
    found = aligned(model, config, given, view, seen, counts, background)
    assert torch.equal(torch.get_rng_state(), state) and model.amount.requires_grad and model.amount.grad is None
    before, after = (ImageRenderer(model, background)(*of)["rgb"] for of in ((given, view), (found, 0)))
    assert psnr(after, truth) > psnr(before, truth) + 6, (psnr(before, truth), psnr(after, truth))
    axes = found.camera_to_world[0, :, :3]
    torch.testing.assert_close(axes @ axes.T, torch.eye(3), rtol=1e-5, atol=1e-5)


def test_a_model_without_gradients_in_the_rays_is_named(small_config):
    """In the first step, not after training; and where it was trained without."""

    class Fixed(sphere_field.Balls):
        def forward(self, rays, background, jitter=None, capacity=None):
            fixed = Rays(rays.origins.detach(), rays.directions.detach(), rays.view)
            return super().forward(fixed, background, jitter, capacity)

    config = sphere_field.config()
    with raises_mentioning(UserError, "Fixed", "data.pose_optimization"):
        aligned(Fixed(config), config, sphere_field.cameras(1), 0, torch.ones(40, 44, 3), None, torch.ones(3))
    small_config.data.pose_optimization = True
    make_trainer(small_config, model=sphere_field.Balls).train_step()
    with raises_mentioning(UserError, "Fixed", "data.pose_optimization"):
        make_trainer(small_config, model=Fixed).train_step()


# ---- light that changes from image to image is noticed


def room(folder: Path, stops: float = 0.0, colors: float = 0.0, masked: bool = False) -> Scene:
    """The shipped room with half of its images brighter or darker by `stops`, and all between warmer and colder."""
    needs_images_of(ROOT / "data" / "room" / "images")
    (folder / "images").mkdir()
    content = json.loads((ROOT / "data" / "room" / "transforms.json").read_text())
    for frame in content["frames"] if masked else ():
        frame["mask_path"] = "mask.png"
    (folder / "transforms.json").write_text(json.dumps(content))
    Image.fromarray(np.pad(np.full((130, 240), 255, np.uint8), ((0, 30), (0, 0)))).save(folder / "mask.png")
    draw = np.random.default_rng(0)
    for file in sorted((ROOT / "data" / "room" / "images").iterdir()):
        gains = stops * draw.choice([-1, 0, 0, 1]) + colors * draw.choice([-1, 1]) * np.array([1, 0, -1])
        levels = 255 * ((np.asarray(Image.open(file)) / 255) ** GAMMA * 2**gains).clip(0, 1) ** (1 / GAMMA)
        Image.fromarray(levels.round().astype(np.uint8)).save(folder / "images" / file.name, quality=95)
    return load_scene(str(folder))


@pytest.mark.parametrize("how", [{"stops": 0.7}, {"colors": 0.35}, {"stops": 0.7, "masked": True}])
def test_changing_light_is_noticed(tmp_path, how):
    """An option that is given stays as it is."""
    scene = room(tmp_path, **how)
    config = Config().resolved(scene)
    assert config.data.appearance == "affine" and "from image to image" in config.decisions["data.appearance"].why
    assert Config(data=DataConfig(appearance="none")).resolved(scene).data.appearance == "none"


def test_a_shadow_on_a_part_is_no_change_of_light():
    lit = 0.4 + 0.4 * torch.rand(64, 64).expand(3, -1, -1)
    shaded = lit.clone()
    shaded[:, 32:, 32:] *= 0.5
    counts, near = torch.ones(64, 64).bool(), [[view, (view + 1) % 12] for view in range(12)]
    assert difference([lit, shaded] * 6, [counts] * 12, near) < 0.01
    assert difference([lit, lit / 2] * 6, [counts] * 12, near) == pytest.approx(GAMMA, rel=0.01)


@pytest.mark.parametrize("name", ["room", "orrery"])
def test_steady_light_costs_nothing(name):
    """Though metal shines elsewhere in each view, and the room has windows."""
    needs_images_of(ROOT / "data" / name / ("images" if name == "room" else "train"))
    config = Config().resolved(load_scene(str(ROOT / "data" / name)))
    assert config.data.appearance == "none"
