# SPDX-License-Identifier: Apache-2.0
"""The model "images": what its rays look up, whose image they never see, and what a run folder keeps of it."""

import math
import shutil

import pytest
import torch

import nerfkit
from nerfkit.config import SamplingConfig
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.lens import Lens
from nerfkit.data.load import load_scene
from nerfkit.data.pool import ImagePool
from nerfkit.errors import ConfigError, RunError, SceneError, UserError
from nerfkit.model.images import lookup
from nerfkit.model.images import renderer as images
from nerfkit.model.images.blender import Blender
from nerfkit.model.images.depth_maps import EVERY, SIDE, DepthMaps
from nerfkit.model.images.lookup import look_up
from nerfkit.model.images.renderer import disturbed
from nerfkit.model.images.sources import Sources
from nerfkit.model.registry import build_model
from nerfkit.model.renderer import Renderer
from nerfkit.training.losses import squared_error
from nerfkit.training.run_folder import RunFolder
from nerfkit.training.run_images import check_images, read_images, save_images
from tests.naming import raises_naming
from tests.rigs import look_at
from tests.trainers import make_trainer, state_of


@pytest.fixture
def images_config(small_config):
    small_config.model.kind, small_config.model.options = "images", {"views": 3, "state": 8}
    small_config.model.density_bias = 4.0  # surfaces from the start
    return small_config


def disturb(model, scale: float = 0.5) -> None:
    """Make the residual something: it is zero at first."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.blender.residual.parameters():
            parameter.copy_(scale * torch.randn_like(parameter))


def trained(config, steps: int = 40):
    trainer = make_trainer(config)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def see_all(trainer) -> None:
    """Give every view its turn of a depth map."""
    model = trainer.model
    for step in range(0, EVERY * len(trainer.cameras), EVERY):
        model.depth_maps.update(trainer.cameras, step, lambda rays: Renderer.forward(model, rays, torch.ones(3)))


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
    disturb(model, 3.0)
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
    disturb(trainer.model)
    see_all(trainer)
    few = trainer.cameras[[7, 2]]
    image = nerfkit.ImageRenderer(trainer.model, torch.ones(3))
    assert torch.equal(image(few, 1)["rgb"], image(trainer.cameras, 2)["rgb"])


def lenses() -> list[Lens]:
    return [
        Lens("OPENCV", (40.0, 42.0, 20.3, 15.1, -0.2, 0.05, 0.003, -0.002), 41, 30),
        Lens("PINHOLE", (30.0, 31.0, 13.0, 17.5), 27, 33),
        Lens("OPENCV_FISHEYE", (25.0, 25.0, 18.0, 14.0, 0.05, 0.0, 0.0, 0.0), 36, 28),
    ]


def mixed_sources(masked: bool = False) -> tuple[Sources, DepthMaps, Cameras, ImagePool]:
    """Three images of three lenses and sizes, whose colors are their own pixels' columns and rows; all see 2 far."""
    eyes = torch.tensor([[2.0, 0.3, 0.2], [1.8, -0.5, 0.4], [1.5, 0.8, -0.3]]).double().numpy()
    poses = torch.tensor(look_at(eyes, eyes[0] * 0), dtype=torch.float32)
    cameras = Cameras.of_lenses(poses, lenses())
    parts = []
    for view, (width, height) in enumerate(cameras.sizes()):
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        parts.append(torch.stack([column * 4, row * 4, torch.full_like(row, 60 * view)], -1).flatten(0, 1))
    pixels = torch.cat(parts).to(torch.uint8)
    ends = torch.tensor([len(part) for part in parts]).cumsum(0)
    first = torch.cat([ends.new_zeros(1), ends[:-1]])
    ignored = torch.zeros(len(pixels), dtype=torch.bool) if masked else None
    pool = ImagePool(pixels, first, tuple(cameras.sizes()), ignored)
    maps = DepthMaps(cameras, SamplingConfig())
    maps.depths.fill_(2.0)
    return Sources(cameras, pool), maps, cameras, pool


def test_a_look_up_finds_the_pixel_that_the_lens_says():
    """Of a point on the ray of a pixel, each lens and size finds that pixel, and so its color."""
    sources, maps, cameras, pool = mixed_sources()
    for view, (width, height) in enumerate(cameras.sizes()):
        column, row = torch.arange(2, width - 2, 3), torch.arange(2, width - 2, 3) % (height - 4) + 2
        rays = cameras.rays(torch.full_like(column, view), column, row)
        points = rays.origins + rays.directions * 2.0
        pixels, inside = sources.project(points, torch.arange(3).expand(len(points), 3))
        for x, y in zip(sources.project_into_all(points), (pixels, inside), strict=True):
            torch.testing.assert_close(x, y, atol=1e-3, rtol=0)
        assert inside[:, view].all()
        assert (pixels[:, view] - torch.stack([column, row], -1) - 0.5).abs().max() < 0.02
        found = look_up(sources, maps, Rays(rays.origins, rays.directions), points, torch.ones(3), 1)
        assert (found.view == view).all(), "the image that the ray is of is the nearest"
        wanted = torch.stack([column, row], -1) * 4 / 255
        assert (found.color[:, 0, :2] - wanted).abs().max() < 0.1 / 255 * 4
        assert found.direction.abs().max() < 1e-3 and (found.agreement > 0.99).all()


@pytest.mark.parametrize("own", (True, False))
def test_a_point_is_projected_into_the_images_that_look_its_way(images_config, monkeypatch, own: bool):
    """Half of twelve images suffice for three: where all of them have the point, the look-ups are the same."""
    trainer = make_trainer(images_config)
    sources, maps, cameras = trainer.model.sources, trainer.model.depth_maps, trainer.cameras
    maps.depths.fill_(torch.inf)
    rays = cameras.rays(*(torch.tensor(x) for x in ([3, 3, 3, 8, 8, 8], [5, 9, 13, 5, 9, 13], [8, 4, 6, 8, 4, 6])))
    rays = rays if own else rays._replace(view=None)
    points = rays.origins + rays.directions * rays.origins.norm(dim=-1, keepdim=True)  # about the middle
    every = look_up(sources, maps, rays, points, torch.ones(3), 3)
    pixels, inside = sources.project_into_all(points)
    again = sources.project(points, torch.arange(12).expand(len(points), 12))
    assert torch.equal(again[1], inside) and (again[0] - pixels).abs().max() < 1e-3
    monkeypatch.setattr(lookup, "CANDIDATES", 2)
    monkeypatch.setattr(lookup, "LEAST", 6)
    counts = []
    project = sources.project
    monkeypatch.setattr(
        sources, "project", lambda points, view: (counts.append(view.shape[1]), project(points, view))[1]
    )
    few = look_up(sources, maps, rays, points, torch.ones(3), 3)
    assert counts == [6] and every.valid.all()
    for name, x in every._asdict().items():
        torch.testing.assert_close(getattr(few, name), x, rtol=0, atol=1e-5, msg=name)  # exact for views
    assert own == (every.view != torch.tensor([3, 3, 3, 8, 8, 8])[:, None]).all()


def test_masked_pixels_weigh_nothing():
    sources, maps, cameras, pool = mixed_sources(masked=True)
    maps.depths.fill_(torch.inf)
    maps.agreement = lambda view, pixels, distance: torch.ones_like(distance)
    sources.ignored[pool.rows(1)] = True
    rays = cameras.image_rays(0)._replace(view=None)
    found = look_up(sources, maps, rays, rays.origins + 2 * rays.directions, torch.ones(3), 3)
    assert (found.agreement == found.valid).all()
    assert not found.valid[found.view == 1].any() and found.valid[found.view == 0].any()
    blender = Blender(6)
    disturb(_holder(blender))
    color = torch.full((len(rays.origins), 3), 0.5)
    residual = blender(found, color)
    other = blender(found._replace(color=torch.where(found.valid[..., None], found.color, 0.9)), color)
    assert torch.equal(residual, other)
    nothing = found._replace(valid=torch.zeros_like(found.valid), agreement=torch.zeros_like(found.agreement))
    assert (blender(nothing, color) == 0).all()


@pytest.mark.parametrize("corner", range(4))
def test_one_masked_pixel_of_the_four_around_suffices(corner: int):
    """Each of them gives a share of the color."""
    sources, _, _, pool = mixed_sources(masked=True)
    (width, _), row, column = pool.sizes[1], 7 + corner // 2, 5 + corner % 2
    sources.ignored[pool.first[1] + row * width + column] = True
    pixels = torch.tensor([[[6.1, 8.1], [4.1, 8.1], [6.1, 10.1]]])  # between columns 5 and 6, rows 7 and 8; others
    _, counts = sources.colors(torch.ones(1, 3, dtype=torch.int64), pixels, torch.ones(3))
    assert counts.tolist() == [[False, True, True]]


def _holder(blender: Blender):
    return type("Holder", (), {"blender": blender})


def test_what_no_image_has_is_not_valid():
    sources, maps, _, _ = mixed_sources()
    behind = torch.tensor([[50.0, 60.0, 70.0]])
    rays = Rays(torch.zeros(1, 3), torch.nn.functional.normalize(behind, dim=-1))
    found = look_up(sources, maps, rays, behind, torch.ones(3), 2)
    assert not found.valid.any() and (found.color == 0).all() and found.direction.isfinite().all()


def test_a_fisheye_of_more_than_180_degrees_sees_beside_and_behind_itself():
    """Points at 100 degrees from its axis have pixels; a pinhole that stands there has none of them."""
    lens = Lens("FISHEYE", (10.0, 10.0, 20.0, 20.0), 40, 40)
    pose = torch.tensor(look_at(torch.tensor([[1.0, 0.0, 0.0]]).double().numpy(), torch.zeros(1, 3).double().numpy()))
    cameras = Cameras.of_lenses(pose.float().repeat(2, 1, 1), [lens, Lens("PINHOLE", (20.0, 20.0, 20.0, 20.0), 40, 40)])
    pixels = torch.zeros(2 * 40 * 40, 3, dtype=torch.uint8)
    sources = Sources(cameras, ImagePool(pixels, torch.tensor([0, 40 * 40]), tuple(cameras.sizes()), None))
    angle = math.radians(100)
    places = torch.tensor([[20.0, 20 + 10 * angle], [20 - 10 * angle, 20.0]])
    towards = torch.tensor([[0.0, -math.sin(angle)], [-math.sin(angle), 0.0]])  # right and up of the camera
    local = torch.cat([towards, torch.full((2, 1), -math.cos(angle))], dim=1)
    points = cameras.positions[0] + 3 * local @ cameras.camera_to_world[0, :, :3].T
    for found, inside in (
        sources.project(points, torch.arange(2).expand(2, 2)),
        sources.project_into_all(points),
    ):
        assert inside.tolist() == [[True, False]] * 2
        torch.testing.assert_close(found[:, 0], places, atol=1e-3, rtol=0)


def test_a_point_behind_a_surface_is_not_seen():
    """Agreement is 1 at the depth that a camera sees, falls to nothing on both sides, and is 0 where it sees none."""
    _, maps, cameras, _ = mixed_sources()
    view = torch.tensor([0, 1, 2])[:, None]
    middle = torch.tensor(cameras.sizes())[:, None] / 2  # [3, 1, 2]
    seen = [maps.agreement(view, middle, torch.full((3, 1), distance)) for distance in (2.0, 2.05, 1.95, 3.0, 1.0)]
    assert (seen[0] > 0.999).all() and (seen[1] < 0.9).all() and (seen[2] < 0.9).all()
    assert (seen[3] < 1e-3).all() and (seen[4] < 1e-3).all()
    maps.depths[1, :, :32] = 0
    assert maps.agreement(view, middle - torch.tensor([3.0, 0]), torch.full((3, 1), 2.0))[1] == 0


def test_in_unbounded_space_depths_are_as_uncertain_as_intervals_are_long():
    """Far away they grow with the distance; near the cameras, and in a box, they have one length."""
    _, _, cameras, _ = mixed_sources()
    view, middle = torch.tensor([[0]]), torch.tensor([[cameras.sizes()[0]]]) / 2  # [1, 1], [1, 1, 2]
    for kind, distance, interval in (("contracted", 40.0, 2.0), ("contracted", 0.1, 0.01), ("box", 40.0, 0.01)):
        maps = DepthMaps(cameras, SamplingConfig(kind=kind, cone=0.05, step=0.01))
        maps.depths.fill_(distance + interval)
        found = maps.agreement(view, middle, torch.tensor([[distance]])).item()
        texel = distance * maps.angle[0].item()
        assert found == pytest.approx(math.exp(-interval / (texel + interval)), rel=1e-3), (kind, distance)


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
    disturb(model)
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
    disturb(model)
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
    disturb(model)
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
    disturb(trainer.model)
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
    assert "3 of 12" in few.notes[-1] and few.views["test"] is scene.views["test"]
    assert scene.with_fewer(0) is scene and scene.with_fewer(12) is scene and scene.with_fewer(99) is scene


@pytest.mark.parametrize("option, value", [("appearance", "affine"), ("poses", "refine")])
def test_light_and_poses_that_are_learned_are_refused(images_config, option: str, value: str):
    setattr(images_config.data, option, value)
    with raises_naming(ConfigError, f"data.{option}", value, "field"):
        build_model(images_config)
