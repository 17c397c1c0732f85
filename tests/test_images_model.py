# SPDX-License-Identifier: Apache-2.0
"""The model "images": whose image a ray never sees, what is trained, and what a run folder keeps of it."""

import shutil

import pytest
import torch

import nerfkit
from nerfkit.data.load import load_scene
from nerfkit.data.pool import ImagePool
from nerfkit.errors import ConfigError, RunError, SceneError, UserError
from nerfkit.model.images import renderer as images
from nerfkit.model.images.depth_maps import SIDE
from nerfkit.model.images.renderer import disturbed
from nerfkit.model.registry import build_model
from nerfkit.model.renderer import Renderer
from nerfkit.training.losses import squared_error
from nerfkit.training.run_folder import RunFolder
from nerfkit.training.run_images import check_images, read_images, save_images
from tests.image_based import disturb, mixed_sources, of_images, see_all, trained
from tests.naming import raises_naming
from tests.trainers import make_trainer, state_of


@pytest.fixture
def images_config(small_config):
    return of_images(small_config)


def test_the_first_rendering_is_the_fields_bit_for_bit(images_config):
    trainer = make_trainer(images_config)
    rays = trainer.views.draw(300).rays
    images_config.model.kind, images_config.model.options = "field", {}
    field = make_trainer(images_config).model
    ours, theirs = (model(rays, torch.ones(3)) for model in (trainer.model, field))
    for name in ("color", "opacity", "depth"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    jitter = torch.rand(300)
    ours, theirs = (model(rays, torch.ones(3), jitter) for model in (trainer.model, field))
    assert torch.equal(ours.color, theirs.color) and theirs.corrected is None
    error = (ours.corrected - ours.color).square().mean().sqrt()
    assert 0.04 < error < 0.08, "in training, what is corrected is disturbed"
    assert field.density(torch.zeros(1, 3)) == trainer.model.density(torch.zeros(1, 3))


@pytest.mark.parametrize("view", (0, 4, 11))
def test_a_training_view_never_sees_its_own_image(images_config, view):
    """Other colors in its own image change nothing for its rays, but they do for everybody else's."""
    trainer = trained(images_config)
    model, sources = trainer.model, trainer.model.sources
    disturb(model.blender, 3.0)
    see_all(trainer)
    own, others = (trainer.cameras.image_rays(v) for v in (view, (view + 1) % 12))
    before = [model(rays, torch.ones(3)).color for rays in (own, own._replace(view=None))]
    rows = trainer.views.source.pool.rows(view)
    sources.pixels = sources.pixels.clone()
    sources.pixels[rows] = 255 - sources.pixels[rows]
    after = [model(rays, torch.ones(3)).color for rays in (own, own._replace(view=None))]
    assert torch.equal(before[0], after[0])
    assert (before[1] - after[1]).abs().max() > 0.05, "a ray of no training view sees it"
    assert others.view[0] != view


def test_rendering_takes_no_view_for_a_training_view(images_config):
    """Rays of an image are rays of cameras that have numbers of their own."""
    trainer = trained(images_config)
    disturb(trainer.model.blender)
    see_all(trainer)
    few = trainer.cameras[[7, 2]]
    image = nerfkit.ImageRenderer(trainer.model, torch.ones(3))
    assert torch.equal(image(few, 1)["rgb"], image(trainer.cameras, 2)["rgb"])


def test_depth_maps_are_those_of_the_field(images_config):
    """Once all views had their turn, a map has the depths of the view's rays, where they are."""
    trainer = trained(images_config, 60)
    model, cameras = trainer.model, trainer.cameras
    see_all(trainer)
    image = nerfkit.ImageRenderer(model, torch.ones(3))
    width, height = cameras.size(5)
    out = image(cameras, 5, ("depth",))
    wanted = torch.where(out["opacity"] > 0.5, out["depth_ray"], 0)
    row, column = ((torch.arange(SIDE) + 0.5) * side / SIDE for side in (height, width))
    assert torch.equal(model.depth_maps.depths[5], wanted[row.long()][:, column.long()])
    assert width != height and (wanted > 0).any() and (wanted == 0).any()


def test_fewer_images_than_are_asked_for(images_config):
    images_config.model.options = {"views": 50}
    trainer = trained(images_config, 3)
    assert trainer.model(trainer.views.draw(50).rays, torch.ones(3)).color.isfinite().all()
    cameras, pool = trainer.cameras, trainer.views.source.pool
    with raises_naming(SceneError, "two training views"):
        trainer.model.look_at(cameras[[0]], pool)
    with raises_naming(UserError, "look_at"):
        build_model(images_config)(trainer.views.draw(5).rays, torch.ones(3))
    for name, value in (("views", 0), ("noise", float("nan")), ("noise", -0.1)):
        images_config.model.options = {name: value}
        with raises_naming(ConfigError, name, str(value)):
            build_model(images_config)


def test_the_field_is_trained_as_it_is_by_itself(images_config):
    """Bit for bit: what the blender learns takes nothing from it."""
    ours = trained(images_config, 30)
    images_config.model.kind, images_config.model.options = "field", {}
    field = trained(images_config, 30)
    wanted, found = dict(field.model.named_parameters()), dict(ours.model.named_parameters())
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert any(p.abs().max() > 0 for p in ours.model.blender.residual.parameters()), "the blender has learned"
    assert set(ours.training_step.term_names) == {"mse", "corrected"}


def test_the_disturbance_is_of_the_size_asked_for():
    """Without a mean, of three channels and rays that have nothing to do with each other."""
    color = torch.full((20000, 3), 0.5)
    error = disturbed(color, torch.rand(20000), 0.1) - color
    assert error.mean(0).abs().max() < 0.005 and (error.square().mean(0).sqrt() - 0.1).abs().max() < 0.005
    assert (torch.corrcoef(torch.cat([error, error.roll(1, 0)], 1).T) - torch.eye(6)).abs().max() < 0.05
    assert torch.equal(disturbed(color, torch.rand(20000), 0.0), color)


def test_each_error_has_its_own_gradients(images_config):
    """The field's color reaches the field alone, the corrected one the blender alone."""
    trainer = trained(images_config)
    model, rays = trainer.model, trainer.views.draw(200).rays
    disturb(model.blender)
    see_all(trainer)
    jitter = torch.rand(200)
    for name in ("color", "corrected"):
        model.zero_grad()
        getattr(model(rays, torch.ones(3), jitter), name).sum().backward()
        reached = {
            n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0
        }
        assert reached == ({"grid", "encoder", "aggregator", "decoder"} if name == "color" else {"blender"})
        if name == "corrected":
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.blender.parameters())


def test_the_correction_is_trained_on_the_first_rays(images_config, monkeypatch):
    trainer = trained(images_config)
    model, batch = trainer.model, trainer.views.draw(200)
    disturb(model.blender)
    see_all(trainer)
    every = model(batch.rays, batch.background, batch.jitter)
    monkeypatch.setattr(images, "TRAINED_RAYS", 50)
    some = model(batch.rays, batch.background, batch.jitter)
    assert torch.equal(some.corrected, every.corrected[:50]) and torch.equal(some.color, every.color)
    weight = torch.arange(200.0)
    loss = squared_error(some, batch._replace(weight=weight))["corrected"]
    first = batch._replace(rays=None, pixels=batch.pixels[:50], background=batch.background[:50], weight=weight[:50])
    wanted = squared_error(some._replace(color=some.corrected), first)["mse"]
    torch.testing.assert_close(loss, wanted)


def test_rays_that_meet_nothing_keep_their_color(images_config):
    """The others are corrected as by themselves."""
    trainer = trained(images_config, 40)
    model, view = trainer.model.eval(), trainer.cameras.image_rays(3)
    rays = view._replace(view=None, directions=torch.where(torch.arange(len(view.view))[:, None] % 3 > 0, view[1], 0))
    disturb(model.blender)
    see_all(trainer)
    background = torch.tensor([0.2, 0.5, 0.9])
    rendering = model(rays, background)
    misses = rendering.opacity == 0
    assert misses.sum() >= len(misses) // 3 and torch.equal(rendering.color[misses], background.expand(misses.sum(), 3))
    hits = (~misses).nonzero()[:, 0]
    alone = model(type(rays)(*(None if x is None else x[hits] for x in rays)), background.expand(len(hits), 3))
    torch.testing.assert_close(rendering.color[hits], alone.color)
    field = Renderer.forward(model, rays, background).color
    assert (rendering.color - field)[hits].abs().max() > 1e-3


def test_a_run_folder_renders_what_was_trained(images_config, tmp_path):
    trainer = make_trainer(images_config)
    trainer.train(tmp_path / "run")
    assert any(p.abs().max() > 0 for p in trainer.model.blender.residual.parameters()), "it has learned"
    shutil.move(tmp_path / "run", tmp_path / "moved")
    run = nerfkit.load_run(tmp_path / "moved", "cpu")
    wanted = nerfkit.ImageRenderer(trainer.model.eval(), torch.ones(3))(trainer.cameras, 3)["rgb"]
    assert torch.equal(run.render(run.cameras("train"), 3)["rgb"], wanted)
    (tmp_path / "moved" / "images" / "00004.webp").rename(tmp_path / "elsewhere.webp")
    with raises_naming(RunError, "00004.webp", "missing"):
        nerfkit.load_run(tmp_path / "moved", "cpu")
    shutil.copy(tmp_path / "moved" / "scene.json", tmp_path / "moved" / "images" / "00004.webp")
    with raises_naming(RunError, "00004.webp"):
        nerfkit.load_run(tmp_path / "moved", "cpu")


def test_a_run_folder_looks_images_up_through_their_lenses(images_config, tmp_path):
    _, _, cameras, pool = mixed_sources()
    images_config.trainer.steps = 20
    trainer = nerfkit.Trainer(images_config, cameras, pool)
    trainer.train(tmp_path / "run")
    disturb(trainer.model.blender)
    trainer.save(tmp_path / "run")
    run, model = nerfkit.load_run(tmp_path / "run", "cpu"), trainer.model.eval()
    assert run.model.sources.lenses == model.sources.lenses != ()
    wanted = nerfkit.ImageRenderer(model, torch.ones(3))(run.cameras(), 1)["rgb"]
    assert torch.equal(run.render(run.cameras(), 1)["rgb"], wanted)


def test_a_run_goes_on_with_the_same_bits(images_config, tmp_path):
    straight = trained(images_config, 12)
    first = trained(images_config, 5)
    first.save(tmp_path / "run")
    resumed = make_trainer(images_config)
    resumed.restore(tmp_path / "run")
    for _ in range(7):
        resumed.train_step()
    wanted, found = state_of(straight), state_of(resumed)
    assert wanted.keys() == found.keys() and not any("pixels" in name for name in found)
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_a_run_does_not_go_on_with_other_images(images_config, tmp_path):
    trained(images_config, 1).save(tmp_path / "run")
    other = make_trainer(images_config)
    other.views.source.pool.pixels[5, 1] += 1
    with raises_naming(RunError, "view 0", "00000.webp"):
        other.restore(tmp_path / "run")


def test_images_that_have_become_transparent_are_other_ones(tmp_path):
    _, _, _, pool = mixed_sources()
    folder = RunFolder.for_new_run(tmp_path / "run")
    folder.claim()
    save_images(folder, pool)
    opaque = torch.full((len(pool.pixels), 1), 255, dtype=torch.uint8)
    check_images(folder.path, ImagePool(torch.cat([pool.pixels, opaque], 1), pool.first, pool.sizes))
    opaque[-1] = 254
    with raises_naming(RunError, "view 2", "00002.webp"):
        check_images(folder.path, ImagePool(torch.cat([pool.pixels, opaque], 1), pool.first, pool.sizes))


def test_kept_images_are_the_trained_ones(tmp_path):
    """Of several sizes, with masks, and with colors where nothing is opaque."""
    _, _, cameras, pool = mixed_sources(masked=True)
    pool.ignored[::7] = True
    for alpha in (None, torch.randint(0, 256, (len(pool.pixels), 1), dtype=torch.uint8)):
        pixels = pool.pixels if alpha is None else torch.cat([pool.pixels, alpha], 1)
        path = tmp_path / str(alpha is None)
        folder = RunFolder(path)
        folder.claim()
        save_images(folder, ImagePool(pixels, pool.first, pool.sizes, pool.ignored))
        found = read_images(path, cameras)
        assert torch.equal(found.pixels, pixels) and torch.equal(found.ignored, pool.ignored)
        assert torch.equal(found.first, pool.first) and found.sizes == pool.sizes


def test_training_takes_max_views_evenly(toy_scene):
    scene = load_scene(str(toy_scene))
    few = scene.with_fewer(3)
    views, chosen = few.split("train"), [2, 6, 10]
    assert [file.stem for file in views.files] == [scene.split("train").files[i].stem for i in chosen]
    assert torch.equal(views.cameras.camera_to_world, scene.split("train").cameras.camera_to_world[chosen])
    assert torch.equal(views.load().image(1), scene.split("train").load().image(6))
    assert "3 of 12" in few.notes[-1].text and few.views["test"] is scene.views["test"]
    assert scene.with_fewer(0) is scene and scene.with_fewer(12) is scene and scene.with_fewer(99) is scene


@pytest.mark.parametrize("option, value", [("appearance", "affine"), ("poses", "refine")])
def test_light_and_poses_that_are_learned_are_refused(images_config, option: str, value: str):
    setattr(images_config.data, option, value)
    with raises_naming(ConfigError, f"data.{option}", value, "field"):
        build_model(images_config)
