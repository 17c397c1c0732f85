# SPDX-License-Identifier: Apache-2.0
"""Points, splats, depths and pages of a field whose surface is known, read again by others where these are."""

import json

import numpy as np
import pytest
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images.pixels import blend
from nerfkit.data.load import load_scene
from nerfkit.data.ply import read_points
from nerfkit.errors import UserError
from nerfkit.export import writing
from nerfkit.export.distil import taught
from nerfkit.export.points import FLAT, PointCloud, points_of_view, rotations, splat_bytes, thinned
from nerfkit.export.views import View, Views
from nerfkit.export.writing import Work
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.run.load import load_run
from nerfkit.training.trainer import Trainer
from tests.naming import assert_names, raises_mentioning
from tests.sphere_field import CENTER, RADIUS, SPECK, SPECK_RADIUS, call, cameras, frame, read_ply, write_run
from tests.test_crop import UTM
from tests.toy_scene import small_options


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


def test_points_lie_on_the_surfaces_with_their_normals(run, tmp_path):
    """As many as wanted, on all sides."""
    call(run, "points", "--out", tmp_path / "p.ply", "--count", 3000)
    cloud = read_ply(tmp_path / "p.ply")
    points = frame().to_model(cloud["vertices"])
    large, small = (np.linalg.norm(points - center, axis=1) for center in (CENTER, SPECK))
    off = np.minimum(np.abs(large - RADIUS), np.abs(small - SPECK_RADIUS))
    assert off.max() < 0.05, "the hollow is not seen, and nothing floats"
    assert np.quantile(off, 0.99) < 0.02 and off.mean() < 0.006
    on_ball = np.abs(large - RADIUS) < 0.02
    outwards = frame().directions_to_input((points - CENTER) / large[:, None])
    assert ((cloud["normals"] * outwards).sum(1)[on_ball] > 0.97).mean() > 0.98
    wanted = 0.5 + 0.5 * (points - CENTER) / large[:, None]
    assert np.abs(cloud["colors"] / 255 - wanted)[on_ball].mean() < 0.02
    assert 2500 < len(points) <= 3000 and np.allclose((points - CENTER)[:, 1:].min(0), -RADIUS, atol=0.05)
    assert np.allclose(read_points(tmp_path / "p.ply").positions, cloud["vertices"])
    about = json.loads((tmp_path / "p.export.json").read_text())
    assert about["counts"]["points"] == len(cloud["vertices"]) < about["counts"]["pixels_averaged"]


def test_points_of_a_crop(run, tmp_path):
    call(run, "points", "--out", tmp_path / "p.ply", "--frame", "model", "--crop", -1, -1, -1, 1, 1, CENTER[2])
    assert read_ply(tmp_path / "p.ply")["vertices"][:, 2].max() <= CENTER[2] + 1e-6


def test_what_other_views_see_through_is_left_out(run):
    """A depth that is wrong in one view floats before the surface of the others."""
    loaded = load_run(run, "cpu")
    with Work(run.parent / "some", {}) as work:
        image_of = ImageRenderer(loaded.model, loaded.background)
        views = Views(image_of, cameras()[[0, 1, 2]], work, None, torch.device("cpu"))
        one, two, three = views
    assert len(points_of_view(one, [two, three])) > 100
    one.depth[one.depth > 0] -= 0.4
    assert len(points_of_view(one, [])) > 100 and len(points_of_view(one, [two, three])) < 20


def test_a_view_sees_nothing_behind_its_camera():
    """Where a pinhole's equations give points a pixel, too."""
    camera = cameras()[[0]]
    width, height = camera.size(0)
    view = View(camera, torch.zeros(height, width, 3, dtype=torch.uint8), *torch.zeros(2, height, width))
    rays = camera.image_rays(0)
    ahead, behind = (view.see(rays.origins + distance * rays.directions) for distance in (2.0, -2.0))
    assert ahead.inside.all() and not behind.inside.any()
    assert (ahead.distance - 2).abs().max() < 1e-5


def test_pixels_without_a_direction_are_no_points():
    """Those of corners that a lens does not reach; what is there has no place."""
    lens = Lens("SIMPLE_RADIAL", (50.0, 50.0, 50.0, -0.084), 100, 100)
    camera = Cameras.from_lenses(cameras().camera_to_world[:1], [lens])
    unknown = ~camera.known_image(0)
    assert 20 < unknown.sum() < 200
    rgb = (unknown * 255).to(torch.uint8)[..., None].expand(100, 100, 3)
    cloud = points_of_view(View(camera, rgb, torch.ones(100, 100), torch.full((100, 100), 2.0)), [])
    assert len(cloud) > 9000 and cloud.colors.max() == 0


def test_thinning_keeps_means():
    """Once, and of means, which weigh as much as they are of."""
    places, ones = np.random.default_rng(0).uniform(size=(1000, 3)), np.ones(1000, np.float32)
    few = thinned(PointCloud(places, places, places, ones, ones), 60)
    for means, most in (few, 60), (thinned(few, 10), 10):
        assert most / 2 < len(means) <= most and np.abs(means.positions - means.colors).max() < 1e-5
        mean = (means.counts[:, None] * means.positions).sum(0) / 1000
        assert means.counts.sum() == 1000 and np.allclose(mean, places.mean(axis=0), atol=1e-6)


def test_splats_are_flat_discs_on_the_surface(run, tmp_path):
    call(run, "splats", "--out", tmp_path / "new" / "s.ply", "--count", 2000)
    splats = read_ply(tmp_path / "new" / "s.ply")
    assert len(splats["x"]) <= 2000
    names = [f"f_rest_{index}" for index in range(45)]
    assert {*names, "f_dc_0", "opacity", "scale_2", "rot_3"} < set(splats) and "f_rest_45" not in splats
    scale = np.exp(np.stack([splats[f"scale_{axis}"] for axis in range(3)], axis=1))
    assert np.allclose(scale[:, 2], FLAT * scale[:, 0], rtol=1e-4) and (scale[:, 0] == scale[:, 1]).all()
    apart = np.sqrt(4 * np.pi * (RADIUS / 0.25) ** 2 / 2000)
    assert 0.3 * apart < np.median(scale[:, 0]) < 0.7 * apart, "half of the distance of neighbours, in the files' units"
    w, x, y, z = (splats[f"rot_{index}"].astype(float) for index in range(4))
    thin = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)  # where z is turned to
    assert np.allclose(thin, splats["normals"], atol=1e-4)
    color = 0.5 + 0.28209479 * np.stack([splats[f"f_dc_{index}"] for index in range(3)], axis=1)
    points = frame().to_model(splats["vertices"]) - CENTER
    assert np.abs(color - (0.5 + 0.5 * points / np.linalg.norm(points, axis=1, keepdims=True))).mean() < 0.02
    assert (1 / (1 + np.exp(-splats["opacity"])) > 0.9).all()


def test_far_from_the_origin_points_are_double_and_splats_are_refused_before_any_work(tmp_path):
    spread = np.random.default_rng(0).random((100, 3))
    up, ones = np.tile(np.float32([0, 0, 1]), (100, 1)), np.ones(100)
    for origin, kind in ((0, "<f4"), (1e6, "<f8"), (UTM, "<f8")):
        cloud = PointCloud(spread + origin, up, np.full((100, 3), 0.5), ones, ones)
        (tmp_path / "p.ply").write_bytes(cloud.ply())
        written = read_ply(tmp_path / "p.ply")
        assert written["x"].dtype == kind and (written["vertices"] == cloud.positions.astype(kind)).all()
    with raises_mentioning(UserError, "float32", "--frame model"):
        splat_bytes(cloud, 0)
    run = write_run(tmp_path / "run")
    content = json.loads((run / "scene.json").read_text())
    content["transform"]["center"] = UTM.tolist()
    (run / "scene.json").write_text(json.dumps(content))
    with raises_mentioning(UserError, "float32", "--frame model"):
        call(run, "splats", "--out", tmp_path / "s.ply")
    with raises_mentioning(UserError, "583954.937", "4512350.995", "--crop"):  # where the run is
        call(run, "points", "--out", tmp_path / "s.ply", "--crop", 0, 0, 0, 1, 1, 1)
    assert not list(tmp_path.glob("s.ply*"))


def test_rotations_of_any_normal():
    normals = np.float32([[0, 0, 1], [0, 0, -1], [1, 0, 0], [0.6, 0, -0.8]])
    assert np.allclose(np.linalg.norm(rotations(normals), axis=1), 1)
    w, x, y, z = rotations(normals).T
    turned = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)
    assert np.allclose(turned, normals, atol=1e-6)


def test_depths_in_the_units_of_the_files(run, tmp_path):
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz")
    values, views = dict(np.load(tmp_path / "d" / "held_out_1.npz")), cameras()
    row, column = 20, 21  # the ray to the centre of the ball
    assert values["depth_median_ray"][row, column] == pytest.approx((2.5 - RADIUS) / 0.25, rel=0.01)
    seen = values["depth_median_ray"] > 0
    along_axis = (values["depth_z"] / values["depth_ray"].clip(1e-9))[seen]
    wanted = views.z_per_distance(1, views.image_rays(1).directions).view(seen.shape)[seen]
    assert along_axis == pytest.approx(wanted.numpy(), rel=1e-4)
    assert values["depth_median_z"][seen] == pytest.approx(values["depth_median_ray"][seen] * along_axis, rel=1e-5)
    assert np.ptp(along_axis) > 0.01 and (values["depth_median_z"] != values["depth_z"])[seen].any()
    eye = frame().to_input(views.positions[1].double().numpy())
    towards = (eye - frame().to_input(CENTER)) / np.linalg.norm(eye - frame().to_input(CENTER))
    assert values["normal"][row, column] @ towards > 0.99 and values["opacity"][0, 0] == 0
    assert json.loads((tmp_path / "d" / "export.json").read_text())["views"] == ["held_out_0", "held_out_1"]


@pytest.mark.parametrize("asked, depth", [((), "depth_z"), (("--depth", "median"), "depth_median_z")])
def test_exr_holds_the_same_as_float32(run, tmp_path, asked: tuple, depth: str):
    exr = pytest.importorskip("OpenEXR")
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz,exr", *asked)
    values = dict(np.load(tmp_path / "d" / "held_out_1.npz"))
    with exr.File(str(tmp_path / "d" / "held_out_1.exr"), separate_channels=True) as file:
        channels = {name: channel.pixels for name, channel in file.channels().items()}
    assert set(channels) == {"R", "G", "B", "A", "Z", "N.X", "N.Y", "N.Z"}
    assert all(channel.dtype == np.float32 for channel in channels.values())
    assert (channels["Z"] == values[depth]).all() and (channels["A"] == values["opacity"]).all()
    assert (channels["N.Y"] == values["normal"][..., 1]).all()
    assert channels["G"] == pytest.approx(values["rgb"][..., 1] ** 2.2, abs=0.02)


def test_a_killed_export_of_images_goes_on(run, tmp_path, monkeypatch, capsys):
    made, whole = [], writing.image_bytes

    def until_two(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return whole(*arguments)

    arguments = ("depth", "--out", tmp_path / "d", "--split", "train", "--formats", "npz")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(writing, "image_bytes", until_two)
        call(run, *arguments)
    assert_names(capsys.readouterr().out, "kept", tmp_path / "d", "same command goes on")
    first, last = (tmp_path / "d" / f"photo_{view}.npz" for view in (0, 13))
    began = first.stat().st_mtime_ns
    call(run, *arguments)
    assert first.stat().st_mtime_ns == began and last.exists()


def test_images_that_teach_are_over_the_runs_background_what_it_renders(tmp_path):
    run, views = load_run(write_run(tmp_path / "run", amount=1.0), "cpu"), cameras(2)
    rendered = run.render(views, 0, ("rgb", "opacity"))
    assert ((rendered["opacity"] > 0.2) & (rendered["opacity"] < 0.8)).any()
    shown = blend(taught(run, views).image(0), run.background)
    torch.testing.assert_close(shown, rendered["rgb"], rtol=0, atol=0.01)


@pytest.mark.slow
def test_a_model_that_is_too_large_for_a_page_teaches_a_smaller_run_and_stays_as_it_is(toy_scene, tmp_path, capsys):
    config = small_options(toy_scene)
    config.model.mlp_width, config.trainer.steps = 64, 30
    Trainer(config, scene=load_scene(str(toy_scene))).train(tmp_path / "run")
    was = {file: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    call(tmp_path / "run", "web", "--out", tmp_path / "page.html", "--size", 0.8, "--seconds", 2)
    assert "model.mlp_width is 64" in (said := capsys.readouterr().out) and "the page costs" in said
    assert was == {file: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    assert (tmp_path / "page.html").stat().st_size < 0.8e6
    smaller, teacher = load_run(tmp_path / "run_web", "cpu"), load_run(tmp_path / "run", "cpu")
    assert smaller.config.model.mlp_width == 32 and smaller.scene == teacher.scene
