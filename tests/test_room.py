# SPDX-License-Identifier: Apache-2.0
"""The shipped capture: its files, and that cameras, lens, ranges, points and sky are the generator's. Mitsuba is not
needed, but for making a view again."""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.commands import inspect
from nerfkit.data.frame import Frame
from nerfkit.data.load import load_scene
from nerfkit.data.ply import read_points
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import SceneError

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data" / "room"
N_VIEWS, MAX_BYTES = 72, 5_000_000

sys.path.insert(0, str(ROOT / "scripts"))

from orrery import room, room_render, room_textures, room_views  # noqa: E402

from scripts import measure_depth  # noqa: E402
from tests.naming import assert_names  # noqa: E402
from tests.processes import run_main  # noqa: E402
from tests.shipped_scene import needs_images_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("images")


@pytest.fixture(scope="module")
def images():
    needs_images_of(DATA / "images")


@cache
def scene() -> Scene:
    return load_scene(str(DATA))


@cache
def held_out_views() -> Views:
    return scene().split("test")


@cache
def ranges(view: int) -> np.ndarray:
    """True ranges [H, W] of a test view in the files' units."""
    return np.load(DATA / "depth" / f"{held_out_views().names[view]}.npz")["depth_ray"].astype(np.float64)


def world_rays(view: int, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Origin [3] and unit directions [R, 3] in the generator's world, of pixels [R] of a view as nerfkit has it."""
    rays, frame = held_out_views().cameras.image_rays(view), scene().frame
    origins = room_views.points_to_world(frame.to_input(rays.origins.double().numpy()[:1]))
    directions = frame.directions_to_input(rays.directions.double().numpy()[pixels]) @ room_views.FILE_ROTATION
    return origins[0], directions


def first_hits(origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Distances [R] along rays to the first of all triangles of the room; written apart from the generator's tracer."""
    nearest = np.full(len(directions), np.inf)
    meshes = [part.mesh for part in room.build()] + [room.lamps()]
    for mesh in meshes:
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slabs = np.stack([(low - 1e-6 - origin) / directions, (high + 1e-6 - origin) / directions])  # [2, R, 3]
        meets = (slabs.min(0).max(-1) <= slabs.max(0).min(-1)) & (slabs.max(0).min(-1) > 0)
        a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))  # [F, 3] each
        for ray in np.flatnonzero(meets):
            nearest[ray] = min(nearest[ray], distance_to(origin, directions[ray], a, b - a, c - a))
    return nearest


def distance_to(origin, direction, corner, side, other) -> float:
    """Distance along a ray to the nearest of triangles [F, 3]; infinite if it meets none."""
    across = np.cross(direction, other)
    facing = (side * across).sum(-1)
    offset = origin - corner
    turned = np.cross(offset, side)
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = (offset * across).sum(-1) / facing, turned @ direction / facing
        distance = (other * turned).sum(-1) / facing
        hit = (distance > 1e-6) & (u >= 0) & (v >= 0) & (u + v <= 1)  # never where it is NaN
    return float(distance[hit].min(initial=np.inf))


def test_files_of_the_capture():
    names = [f"frame_{index + 1:05d}" for index in range(N_VIEWS)]
    content = json.loads((DATA / "transforms.json").read_text())
    assert [frame["file_path"] for frame in content["frames"]] == [f"images/{name}.jpg" for name in names]
    assert sorted(file.stem for file in (DATA / "images").iterdir()) == names
    assert sorted(file.stem for file in (DATA / "depth").iterdir()) == names[:: room_views.TEST_EVERY]
    assert sum(file.stat().st_size for file in DATA.rglob("*") if file.is_file()) < MAX_BYTES
    for name in names:
        with Image.open(DATA / "images" / f"{name}.jpg") as image:
            assert (image.mode, image.size) == ("RGB", (room_views.WIDTH, room_views.HEIGHT))
            assert np.asarray(image).std() > 20  # a truncated file raises


def test_cameras_are_the_generators():
    frames = json.loads((DATA / "transforms.json").read_text())["frames"]
    shipped = np.array([frame["transform_matrix"] for frame in frames])
    made = np.array([room_views.to_files(view.camera_to_world) for view in room_views.views()])
    np.testing.assert_allclose(shipped, made, rtol=0, atol=1e-12)
    assert {lens for views in scene().views.values() for lens in views.cameras.lenses} == {room_views.lens()}


def test_the_split_is_the_one_that_nerfkit_makes():
    tests = [room_views.file_stem(view) for view in room_views.views() if view.split == "test"]
    assert held_out_views().names == tests and len(tests) == 9
    assert len(scene().split("train").files) == N_VIEWS - 9


def test_inspect_knows_an_unbounded_place(capsys):
    assert run_main(inspect, str(DATA)) == 0
    said = capsys.readouterr().out
    assert_names(said, "nerfstudio", "OPENCV", "train: 63", "test: 9", "ready to train")
    frame = scene().frame
    assert frame.kind == "inward" and not frame.warnings() and "warning" not in said
    assert any("near" in line and "quantile of depths" in line for _, line in frame.notes), "near is from the points"
    assert 0.02 < frame.near < 0.5 and frame.far > 100


def test_the_rendered_lens_is_opencvs():
    """Directions of the generator, distorted by the formula as OpenCV's manual has it, are pixel centers."""
    pixels = room_render.centers(room_views.lens())
    x, y, z = np.moveaxis(room_render.directions_of(room_views.lens(), pixels).astype(np.float64), -1, 0)
    x, y = x / -z, y / z
    k1, k2, p1, p2 = room_views.DISTORTION.values()
    r2 = x * x + y * y
    radial = 1 + k1 * r2 + k2 * r2 * r2
    u = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    v = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    fx, fy, cx, cy = room_views.INTRINSICS.values()
    np.testing.assert_allclose(np.stack([fx * u + cx, fy * v + cy], -1), pixels, rtol=0, atol=1e-4)
    corner = np.hypot(fx * (x - u), fy * (y - v))[0, 0]
    assert corner > 3, "the distortion is no trifle"


@pytest.mark.parametrize("view", [0, 3, 6, 8])
def test_ranges_are_those_of_the_geometry(view):
    """Rays as nerfkit reads them out of the files, traced by another tracer, end where the shipped ranges say."""
    pixels = np.random.default_rng(view).choice(room_views.WIDTH * room_views.HEIGHT, 40, replace=False)
    traced = first_hits(*world_rays(view, pixels)) * room_views.FILE_SCALE
    shipped = ranges(view).ravel()[pixels]
    assert (np.isinf(traced) == np.isinf(shipped)).all()
    seen = np.isfinite(traced)
    off = np.abs(traced[seen] / shipped[seen] - 1)
    assert np.median(off) < 5e-4, "float16 has 11 bits"
    assert (off < 2e-3).mean() > 0.94, "but for pixels on an edge"


def test_the_sky_has_its_color_where_no_range_is():
    compared = 0
    for view in range(len(held_out_views().names)):
        sky = np.isinf(ranges(view))
        inner = sky & np.roll(sky, 1, 0) & np.roll(sky, -1, 0) & np.roll(sky, 1, 1) & np.roll(sky, -1, 1)
        if inner.sum() < 50:
            continue
        photo = np.asarray(Image.open(held_out_views().files[view]))[inner]  # [S, 3]
        _, directions = world_rays(view, np.flatnonzero(inner))
        expected = np.asarray(room_render.to_photo(room_textures.sky_radiance(directions)[:, None]))[:, 0]
        off = np.abs(photo.astype(int) - expected)
        assert np.median(off) < 4 and (off < 20).mean() > 0.97, held_out_views().names[view]
        compared += 1
    assert compared >= 2


def test_sparse_points_lie_on_what_the_views_see():
    points = torch.from_numpy(scene().frame.to_model(read_points(DATA / "points.ply").positions)).float()
    cameras, scale = held_out_views().cameras, scene().frame.scale
    assert 2000 < len(points) <= 3000
    ratios = []
    for view in range(len(cameras)):
        pixels, depth = cameras.project(points, view)
        column, row = pixels.nan_to_num(-1).floor().long().unbind(-1)
        seen = (depth > 0) & (column >= 0) & (column < room_views.WIDTH) & (row >= 0) & (row < room_views.HEIGHT)
        distance = (points - cameras.positions[view]).norm(dim=-1)[seen]
        true = torch.from_numpy(ranges(view))[None] * scale
        true = torch.stack([true, -torch.nn.functional.max_pool2d(-true, 3, 1, 1)])[:, 0, row[seen], column[seen]]
        ratios.append(distance / true)  # [2, K]: to what the pixel sees, to the nearest of what is around it
    ratio, to_nearest = torch.cat(ratios, dim=1)
    on_surface = (ratio - 1).abs() < 0.02
    assert on_surface.float().mean() > 0.5, "the others are hidden"
    assert (to_nearest < 0.95).float().mean() < 0.04, "few float in the air: those of small angles"
    assert (ratio[on_surface] - 1).abs().median() > 1e-4, "they are noisy, as those of structure from motion"


def test_inside_and_outside_of_the_inner_cube():
    """Some cameras are in the unit cube of the model's frame, some are not; the land is far beyond."""
    cameras = scene().split("train").cameras
    reach = cameras.positions.abs().max(-1).values
    assert (reach < 0.7).sum() > 5 and (reach > 1).sum() >= 3
    finite = np.concatenate([ranges(view).ravel() for view in range(9)])
    finite = finite[np.isfinite(finite)] * scene().frame.scale
    assert finite.max() > 80 and (finite > 10).mean() > 0.02 and finite.min() < 0.5


class Plane:
    """Stands in for a model: all it sees is `factor` times as far as the sphere of radius 1 around the camera."""

    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, rays, background):
        n = len(rays.directions)
        return SimpleNamespace(
            color=torch.zeros(n, 3), opacity=torch.full((n,), 0.25), depth=torch.full((n,), self.factor)
        )


def a_run(factor: float, frame: Frame) -> SimpleNamespace:
    box = [-100.0, -100, -100, 100, 100, 100]
    config = SimpleNamespace(data=SimpleNamespace(box=box))
    return SimpleNamespace(
        model=Plane(factor), background=torch.ones(3), device=torch.device("cpu"), frame=frame, config=config
    )


def test_depth_errors_are_relative_and_in_the_files_units():
    views, frame = held_out_views(), replace(scene().frame, scale=20.0)
    height, width = room_views.HEIGHT, room_views.WIDTH
    truth = [torch.full((height, width), 1 / frame.scale) for _ in range(9)]
    truth[0][:10] = torch.inf
    exact = measure_depth.compare(a_run(1.0, frame), views, truth)
    assert exact["quantile_90"] < 1e-6 and exact["pixels"] == (9 * height - 10) * width
    assert exact["without_surface"] == {"pixels": 10 * width, "mean_opacity": 0.25}
    truth[1][:] *= 1000  # far out of the box
    far = measure_depth.compare(a_run(1.1, frame), views, truth)
    assert far["median"] == pytest.approx(0.1, abs=1e-4) and far["quantile_90"] == pytest.approx(0.9989, abs=1e-3)
    assert far["inside_box"]["quantile_90"] == pytest.approx(0.1, abs=1e-4)
    assert far["views"][1]["median"] == pytest.approx(0.9989, abs=1e-3)


def test_depth_without_truth_is_an_error(tmp_path):
    with pytest.raises(SceneError) as caught:
        measure_depth.true_ranges(tmp_path, held_out_views())
    assert_names(str(caught.value), tmp_path, "frame_00001")
    (tmp_path / "depth").mkdir()
    np.savez(tmp_path / "depth" / "frame_00001.npz", depth_ray=np.ones((3, 4)))
    with pytest.raises(SceneError) as caught:
        measure_depth.true_ranges(tmp_path, held_out_views())
    assert_names(str(caught.value), "frame_00001", "240", "160", "depth_ray")


@pytest.mark.long
def test_a_view_comes_again(tmp_path):
    """With Mitsuba and fewer samples: the same picture but for noise, the same ranges."""
    pytest.importorskip("mitsuba")
    import make_orrery

    made = tmp_path / "room"
    make_orrery.main(["--scene", "room", "--only", "test/24", "--spp_eval", "64", "--out", str(made)])
    name = "frame_00025"
    images = [np.asarray(Image.open(folder / "images" / f"{name}.jpg"), float) for folder in (DATA, made)]
    assert 10 * np.log10(255**2 / np.mean((images[0] - images[1]) ** 2)) > 28
    blocks = [image.reshape(20, 8, 30, 8, 3).mean((1, 3)) for image in images]
    assert np.abs(blocks[0] - blocks[1]).max() < 12
    depths = [np.load(folder / "depth" / f"{name}.npz")["depth_ray"] for folder in (DATA, made)]
    assert (depths[0] == depths[1]).mean() > 0.999
