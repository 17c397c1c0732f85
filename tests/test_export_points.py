# SPDX-License-Identifier: Apache-2.0
"""Points, splats and depths of a field whose surface is known, read again by others where these are."""

import json
import sys

import numpy as np
import pytest
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.ply import read_points
from nerfkit.errors import UserError
from nerfkit.export import images
from nerfkit.export.points import FLAT, PointCloud, points_of_view, rotations, splat_bytes, thinned
from nerfkit.export.views import View, Views
from nerfkit.export.writing import Work
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.run.load import load_run
from tests.balls import CENTER, RADIUS, SPECK, SPECK_RADIUS, call, cameras, frame, write_run
from tests.naming import raises_naming
from tests.ply_files import read_ply
from tests.test_crop import UTM


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def cloud(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("points") / "p.ply"
    call(run, "points", "--out", file, "--count", 3000)
    return read_ply(file) | {"file": file}


def test_points_lie_on_the_surfaces_with_their_normals(cloud):
    points = frame().to_model(cloud["vertices"])
    large, small = (np.linalg.norm(points - center, axis=1) for center in (CENTER, SPECK))
    off = np.minimum(np.abs(large - RADIUS), np.abs(small - SPECK_RADIUS))
    assert off.max() < 0.05 and np.quantile(off, 0.99) < 0.02 and off.mean() < 0.006, (
        "the hollow is not seen, and nothing floats"
    )
    on_ball = np.abs(large - RADIUS) < 0.02
    outwards = frame().directions_to_input((points - CENTER) / large[:, None])
    assert ((cloud["normals"] * outwards).sum(1)[on_ball] > 0.97).mean() > 0.98
    wanted = 0.5 + 0.5 * (points - CENTER) / large[:, None]
    assert np.abs(cloud["colors"] / 255 - wanted)[on_ball].mean() < 0.02


def test_points_are_as_many_as_wanted_and_everywhere(cloud, run):
    assert 2500 < len(cloud["vertices"]) <= 3000
    offset = frame().to_model(cloud["vertices"]) - CENTER
    assert all(abs(offset[:, axis].min() + RADIUS) < 0.05 or axis == 0 for axis in range(3))
    assert np.allclose(read_points(cloud["file"]).positions, cloud["vertices"])
    about = json.loads(cloud["file"].with_name("p.export.json").read_text())
    assert about["counts"]["points"] == len(cloud["vertices"]) < about["counts"]["pixels"]


def test_points_of_a_crop(run, tmp_path):
    call(run, "points", "--out", tmp_path / "p.ply", "--frame", "model", "--crop", -1, -1, -1, 1, 1, CENTER[2])
    assert read_ply(tmp_path / "p.ply")["vertices"][:, 2].max() <= CENTER[2] + 1e-6


def test_what_other_views_see_through_is_left_out(run):
    """A depth that is wrong in one view floats before the surface of the others."""
    loaded = load_run(run, "cpu")
    with Work(run.parent / "some", {}) as work:
        image_of = ImageRenderer(loaded.model, loaded.background)
        views = Views(image_of, cameras()[[0, 1, 2]], work, 0.0, torch.device("cpu"))
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
    camera = Cameras.of_lenses(cameras().camera_to_world[:1], [lens])
    unknown = ~camera.known_image(0)
    assert 20 < unknown.sum() < 200
    rgb = (unknown * 255).to(torch.uint8)[..., None].expand(100, 100, 3)
    cloud = points_of_view(View(camera, rgb, torch.ones(100, 100), torch.full((100, 100), 2.0)), [])
    assert len(cloud) > 9000 and cloud.colors.max() == 0


def test_thinning_keeps_means():
    generator = np.random.default_rng(0)
    position = np.repeat(generator.uniform(size=(50, 3)), 20, axis=0) + 1e-7 * generator.normal(size=(1000, 3))
    normals = np.tile(np.float32([0, 0, 1]), (1000, 1))
    counts = np.ones(1000, np.float32)
    cloud = PointCloud(position, normals, position.astype(np.float32), counts, counts)
    few = thinned(cloud, 60)
    assert 50 <= len(few) <= 60, "a cell's border may run through a heap"
    assert np.abs(few.positions - few.colors).max() < 1e-5 and np.allclose(few.normals, [0, 0, 1])
    for means in few, thinned(few, 10):  # once, and of means, which weigh as much as they are of
        mean = (means.counts[:, None] * means.positions).sum(0) / 1000
        assert means.counts.sum() == 1000 and np.allclose(mean, position.mean(axis=0), atol=1e-6)


# ---- splats


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
    with raises_naming(UserError, "float32", "--frame model"):
        splat_bytes(cloud, 0)
    run = write_run(tmp_path / "run")
    content = json.loads((run / "scene.json").read_text())
    content["frame"]["center"] = UTM.tolist()
    (run / "scene.json").write_text(json.dumps(content))
    with raises_naming(UserError, "float32", "--frame model"):
        call(run, "splats", "--out", tmp_path / "s.ply")
    assert not list(tmp_path.glob("s.ply*"))


def test_rotations_of_any_normal():
    normals = np.float32([[0, 0, 1], [0, 0, -1], [1, 0, 0], [0.6, 0, -0.8]])
    assert np.allclose(np.linalg.norm(rotations(normals), axis=1), 1)
    w, x, y, z = rotations(normals).T
    turned = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)
    assert np.allclose(turned, normals, atol=1e-6)


# ---- depths


def test_depths_in_the_units_of_the_files(run, tmp_path):
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz")
    values = dict(np.load(tmp_path / "d" / "held_out_0.npz"))
    row, column = 20, 21  # the ray to the centre of the ball
    assert values["depth_median_ray"][row, column] == pytest.approx((2.5 - RADIUS) / 0.25, rel=0.01)
    seen = values["depth_median_ray"] > 0
    along_axis = (values["depth_z"] / values["depth_ray"].clip(1e-9))[seen]
    assert values["depth_median_z"][seen] == pytest.approx(values["depth_median_ray"][seen] * along_axis, rel=1e-5)
    assert np.ptp(along_axis) > 0.01 and (values["depth_median_z"] != values["depth_z"])[seen].any()
    eye = frame().to_input(cameras().positions[0].double().numpy())
    towards = (eye - frame().to_input(CENTER)) / np.linalg.norm(eye - frame().to_input(CENTER))
    assert values["normal"][row, column] @ towards > 0.99 and values["opacity"][0, 0] == 0
    assert json.loads((tmp_path / "d" / "export.json").read_text())["views"] == ["held_out_0", "held_out_1"]


def test_exr_holds_the_same_as_float32(run, tmp_path):
    exr = pytest.importorskip("OpenEXR")
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz,exr", "--depth", "median")
    values = dict(np.load(tmp_path / "d" / "held_out_1.npz"))
    with exr.File(str(tmp_path / "d" / "held_out_1.exr"), separate_channels=True) as file:
        channels = {name: channel.pixels for name, channel in file.channels().items()}
    assert set(channels) == {"R", "G", "B", "A", "Z", "N.X", "N.Y", "N.Z"}
    assert all(channel.dtype == np.float32 for channel in channels.values())
    assert (channels["Z"] == values["depth_median_z"]).all() and (channels["A"] == values["opacity"]).all()
    assert (channels["N.Y"] == values["normal"][..., 1]).all()
    assert channels["G"] == pytest.approx(values["rgb"][..., 1] ** 2.2, abs=0.02)


def test_a_killed_export_of_images_goes_on(run, tmp_path, monkeypatch):
    made, whole = [], images.image_bytes

    def until_two(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return whole(*arguments)

    arguments = ("depth", "--out", tmp_path / "d", "--split", "train", "--formats", "npz")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(images, "image_bytes", until_two)
        call(run, *arguments)
    first, last = (tmp_path / "d" / f"photo_{view}.npz" for view in (0, 13))
    began = first.stat().st_mtime_ns
    call(run, *arguments)
    assert first.stat().st_mtime_ns == began and last.exists()
    with raises_naming(UserError, "--overwrite"):
        call(run, *arguments)


def test_what_is_missing_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with raises_naming(UserError, "OpenEXR", 'pip install "nerfkit[export]"'):
        call(run, "depth", "--out", tmp_path / "d", "--split", "test")
