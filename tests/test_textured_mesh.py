# SPDX-License-Identifier: Apache-2.0
"""A painted ball of whose pattern the field knows the mean alone: what photographs show is on its mesh, in meters."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.readers.transforms.writer import write_transforms
from nerfkit.errors import UserError
from nerfkit.export import mesh
from nerfkit.files import MARKER
from tests.camera_layouts import look_at
from tests.naming import assert_names, raises_mentioning
from tests.sphere_field import CENTER, HOLLOW, RADIUS, call, cameras, frame, read_ply, write_run

for package in ("skimage", "xatlas", "fast_simplification"):
    pytest.importorskip(package)
trimesh = pytest.importorskip("trimesh")
FINER = 6  # of a photograph, in pixels of the run's views
MESH = ("--resolution", 40, "--from", "depth", "--min_part", 0.1)
FACES = 1000


def pattern(outwards):
    return 0.5 + 0.35 * np.sign(np.sin(14 * outwards + [0.3, 1.0, 2.0]))


def looked_at(views, view):
    """What a camera sees of the painted ball before white, [H, W, 3]; one within it sees the wall of the hollow."""
    rays, size = views.image_rays(view), views.size(view)[::-1]
    origins, directions = (x.double().numpy() for x in rays[:2])
    along = ((CENTER - origins) * directions).sum(1)
    nearest = np.linalg.norm(origins + along[:, None] * directions - CENTER, axis=1)
    radius, sign = (-HOLLOW, 1) if np.linalg.norm(origins[0] - CENTER) < HOLLOW else (RADIUS, -1)
    inside = np.sqrt((radius**2 - nearest**2).clip(min=0))
    outwards = (origins + (along + sign * inside)[:, None] * directions - CENTER) / abs(radius)
    image = np.where((nearest < abs(radius))[:, None], pattern(outwards), 1.0)
    return image.reshape(*size, 3)


def write_photos(folder, changed=None, small=None):
    """Photographs of the ball in a scene; `changed` makes another one, and a mask of what counts, of each."""
    small = small or cameras()
    views = small.resized(*(FINER * side for side in small.size(0)))
    images = []
    for number in range(len(views)):
        image = looked_at(views, number)
        image, mask = changed(number, image) if changed else (image, np.ones(image.shape[:2], dtype=bool))
        file, lens = folder / f"photo_{number}.png", (*views.focal[number].tolist(), *views.center[number].tolist())
        Image.fromarray((image * 255 + 0.5).astype(np.uint8)).save(file)
        Image.fromarray(mask).save(file.with_suffix(".mask.png"))
        pose = frame().to_input(views.camera_to_world[number].double().numpy())
        lens = Lens("PINHOLE", lens, *views.size(number))
        images.append(PosedImage(file.name, file, pose, lens, file.with_suffix(".mask.png")))
    write_transforms(
        folder / "transforms.json", Capture("ball", "", images, splits={"train": [image.name for image in images]})
    )
    return folder


def loaded(file):
    """The mesh of a file and its texture, a PIL image."""
    shape = trimesh.load(file, process=False)
    shape = shape.to_geometry() if isinstance(shape, trimesh.Scene) else shape
    material = shape.visual.material
    return shape, material.image if file.suffix == ".obj" else material.baseColorTexture


def painted(file):
    """Points all over a mesh: directions [P, 3] from the middle of the ball, and colors [P, 3] of the texture there."""
    shape, texture = loaded(file)
    points, face, share = trimesh.sample.sample_surface(shape, 20_000, return_barycentric=True, seed=0)
    uv = (shape.visual.uv[shape.faces[face]] * share[..., None]).sum(1)
    outwards = frame().to_model(points) - CENTER
    colors = trimesh.visual.color.uv_to_interpolated_color(uv, texture)[:, :3] / 255
    return outwards / np.linalg.norm(outwards, axis=1, keepdims=True), colors


def score(file):
    """How well the texture shows what is painted on the ball [dB]."""
    outwards, colors = painted(file)
    return -10 * np.log10(np.mean((colors - pattern(outwards)) ** 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("painted")
    (folder / "photos").mkdir()
    return write_run(folder / "run", kind="gray", scene=str(write_photos(folder / "photos")), downscale=FINER)


@pytest.fixture(scope="module")
def textured(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("textured")
    call(run, "mesh", *MESH, "--faces", FACES, "--texture", 512, "--formats", "glb,obj", "--out", folder / "ball")
    return folder


@pytest.mark.parametrize("ending", ["glb", "obj"])
def test_a_texture_shows_what_photographs_do(textured, ending):
    """As large as they are, though the run was trained on smaller ones."""
    shape, texture = loaded(textured / f"ball.{ending}")
    assert texture.size == (512, 512) and 0.9 * FACES < len(shape.faces) <= FACES
    outwards = (frame().to_model(shape.vertices) - CENTER) / RADIUS
    assert np.linalg.norm(outwards, axis=1) == pytest.approx(1, abs=0.06)
    assert score(textured / f"ball.{ending}") > 20, "the field itself, one gray, has 9 dB"
    assert (shape.vertex_normals * (outwards @ frame().rotation)).sum(1).min() > 0.5


def test_what_is_beside_it(textured):
    assert sorted(file.suffix for file in textured.iterdir()) == [".glb", ".json", ".mtl", ".obj", ".png"]
    about = json.loads((textured / "ball.export.json").read_text())
    assert about["share_of_texture_from_images"] > 0.99 and about["scale"] is None
    assert about["files"] == ["ball.glb", "ball.obj", "ball.png", "ball.mtl"]


def test_light_is_evened_and_what_is_masked_is_not_painted(textured, tmp_path):
    """Every other photograph is darker, and a third of each is red where its mask is black."""

    def changed(number, image):
        mask, third = np.ones(image.shape[:2], dtype=bool), image.shape[1] // 3
        image, mask[:, third * (number % 3) :][:, :third] = image * (0.6 if number % 2 else 1), False
        return np.where(mask[..., None], image, (1, 0, 0)), mask

    run = write_run(tmp_path / "run", kind="gray", scene=str(write_photos(tmp_path, changed)))
    call(run, "mesh", *MESH, "--faces", FACES, "--texture", 512, "--out", tmp_path / "ball.glb")
    assert score(tmp_path / "ball.glb") > score(textured / "ball.glb") - 3


def test_cameras_amid_what_they_see_paint_it_sharply(tmp_path):
    """They stand in the middle of the box, which is the model's origin, in the hollow of the ball, and look around."""
    ways = np.concatenate([np.eye(3), -np.eye(3)]) + 0.01  # none of them is straight up
    poses = torch.tensor(look_at(0.002 * ways, 1.002 * ways), dtype=torch.float32)
    views = Cameras(poses, torch.full((6, 2), 24.0), torch.full((6, 2), 30.0), 60, 60)
    scene = str(write_photos(tmp_path, small=views))
    run = write_run(tmp_path / "run", kind="gray", views=views, scene=scene, box=(-0.9, -0.9, -0.9, 0.9, 0.9, 0.9))
    call(run, "mesh", "--resolution", 100, "--from", "depth", "--texture", 512, "--out", tmp_path / "hollow.glb")
    outwards, colors = painted(tmp_path / "hollow.glb")
    assert np.median(np.abs(colors - pattern(outwards)).mean(axis=1)) < 0.08, "of blurred stripes it is 0.35"


def test_without_photographs_a_texture_is_what_the_field_shows(tmp_path, capsys):
    run = write_run(tmp_path / "run", kind="gray", scene=str(tmp_path / "nowhere"))
    call(run, "mesh", *MESH, "--texture", 64, "--out", tmp_path / "ball.glb")
    assert_names(capsys.readouterr().out, tmp_path / "nowhere", "not at hand")
    assert np.abs(painted(tmp_path / "ball.glb")[1] - 0.5).max() < 0.03
    assert len(loaded(tmp_path / "ball.glb")[0].faces) <= 64**2 / 32, "no more faces than the texture can tell apart"


def test_meters_by_a_factor_or_two_points_are_kept(tmp_path, capsys):
    run, mesh_of = write_run(tmp_path / "run"), ("mesh", "--resolution", 24, "--from", "density")
    call(run, *mesh_of, "--out", tmp_path / "units.ply")
    assert_names(capsys.readouterr().out, "--scale", "--measure", "meters")
    units = read_ply(tmp_path / "units.ply")["vertices"]
    center = frame().to_input(CENTER)
    measured = (*center, *(center + [0, 3, 4]), 20)
    for number, option in enumerate((("--scale", 0.25), (), ("--measure", *measured), ())):
        call(run, *mesh_of, "--out", tmp_path / f"{number}.ply", *option)
        factor, about = 0.25 if number < 2 else 4.0, json.loads((tmp_path / f"{number}.export.json").read_text())
        assert np.allclose(read_ply(tmp_path / f"{number}.ply")["vertices"], factor * units, atol=1e-4)
        assert about["scale"] == {
            "meters_per_unit": pytest.approx(factor),
            "measured": None if number < 2 else pytest.approx(measured),
        }
        assert_names(capsys.readouterr().out, "meters", "scale.json")
    call(run, "points", "--count", 500, "--out", tmp_path / "points.ply")
    points = read_ply(tmp_path / "points.ply")["vertices"] / 4
    assert (np.linalg.norm(frame().to_model(points) - CENTER, axis=1) < 1.05 * RADIUS).mean() > 0.8
    call(run, *mesh_of, "--out", tmp_path / "model.ply", "--frame", "model")
    assert np.allclose(frame().to_input(read_ply(tmp_path / "model.ply")["vertices"]), units, atol=1e-4)


def test_lengths_that_say_nothing_are_refused(run, tmp_path):
    for options, named in (
        (("--scale", 0), ("--scale", "0.0")),
        (("--measure", 1, 2, 3, 1, 2, 3, 5), ("--measure", "0 units", "5 m")),
        (("--measure", 1, 2, 3, 1, 2, 4, -5), ("--measure", "-5 m")),
        (("--measure", 1, 2, 3, 1, 2, 4, 1, "--scale", 1), ("--measure", "--scale")),
        (("--scale", 2, "--frame", "model"), ("--scale", "--frame model")),
    ):
        with raises_mentioning(UserError, *named):
            call(run, "mesh", "--out", tmp_path / "m.ply", *options)
    with raises_mentioning(UserError, "--measure", "1e-09", "1e+09"):
        call(run, "mesh", "--out", tmp_path / "m.ply", "--measure", 0, 0, 0, 1e-6, 0, 0, 1e6)
    broken = write_run(tmp_path / "run")
    (broken / "scale.json").write_text('{"meters_per_unit": -1}')
    with raises_mentioning(UserError, broken / "scale.json", "meters_per_unit"):
        call(broken, "mesh", "--out", tmp_path / "m.ply")


def test_a_scale_is_kept_once_an_export_is_written(tmp_path, capsys):
    run, options = write_run(tmp_path / "run"), ("mesh", "--resolution", 24, "--scale", 2, "--out", tmp_path / "m.ply")
    with raises_mentioning(UserError, "--faces 1"):
        call(run, *options, "--faces", 1)
    assert not (run / "scale.json").exists()
    (run / MARKER).unlink()  # a copy without hidden files
    call(run, *options)
    assert json.loads((tmp_path / "m.export.json").read_text())["scale"]["meters_per_unit"] == 2
    assert_names(capsys.readouterr().out, "note", "scale", MARKER)


def test_all_formats_that_are_asked_for_are_written_or_refused(run, tmp_path):
    call(run, "mesh", "--resolution", 24, "--formats", "ply,glb", "--out", tmp_path / "m.ply")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.export.json", "m.glb", "m.ply"]
    for options, named in (
        (("--formats", "glb", "--out", tmp_path / "n.ply"), ("n.ply", "--formats glb")),
        (("--formats", "obj", "--out", tmp_path / "n"), ("obj", "--texture", "ply,glb")),
        (("--formats", "ply,glb", "--texture", 64, "--out", tmp_path / "n"), ("ply", "glb,obj")),
        (("--texture", 64, "--out", tmp_path / "n.ply"), ("n.ply", "glb, obj")),
    ):
        with raises_mentioning(UserError, *named):
            call(run, "mesh", *options)
    (tmp_path / "n.png").write_text("a picture of mine")
    with raises_mentioning(UserError, tmp_path / "n.png", "--overwrite"):
        call(run, "mesh", "--texture", 64, "--out", tmp_path / "n.obj")


def test_a_texture_that_does_not_fit_is_refused_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr("nerfkit.export.views.Views.render", None)
    with raises_mentioning(UserError, "--texture", "16 to 16384", 15):
        call(run, "mesh", "--texture", 15, "--out", tmp_path / "m")
    monkeypatch.setattr("nerfkit.device.free_memory", lambda: 2**28)
    with raises_mentioning(UserError, "--texture", "16384"):
        call(run, "mesh", "--texture", 16384, "--out", tmp_path / "m")
    assert not list(tmp_path.iterdir())


def ball_of_triangles(n=40):
    """A closed mesh of a unit ball, turned outwards, with colors."""
    ball = trimesh.creation.uv_sphere(count=[n, n])
    vertices, faces = np.array(ball.vertices), np.array(ball.faces)
    colors = (255 * (0.5 + 0.5 * vertices)).astype(np.uint8)
    return mesh.Mesh(vertices, faces, mesh.vertex_normals(vertices, faces), colors)


def volume(shape):
    a, b, c = (shape.vertices[shape.faces[:, k]] for k in range(3))
    return np.einsum("ij,ij->", a, np.cross(b, c)) / 6


def test_small_holes_are_closed_and_wide_ones_stay():
    ball = ball_of_triangles()
    middles = ball.vertices[ball.faces].mean(1)
    small, wide = (np.linalg.norm(middles - place, axis=1) < r for place, r in (([1, 0, 0], 0.15), ([0, 1, 0], 0.5)))
    assert small.any() and wide.any()
    pierced = ball.keep(~small & ~wide)
    closed, n = mesh.filled(pierced, 0.5)
    assert 2 < n == len(closed.faces) - len(pierced.faces)
    assert (np.linalg.norm(closed.vertices[closed.faces[-n:]] - [1, 0, 0], axis=2) < 0.25).all()
    both, _ = mesh.filled(pierced, 2.0)
    assert volume(both) == pytest.approx(volume(ball), rel=0.1), "what was added is turned outwards"


def test_fewer_faces_keep_shape_and_colors():
    ball = ball_of_triangles()
    coarse = mesh.simplified(ball, 400)
    assert 350 < len(coarse.faces) <= 400 and volume(coarse) == pytest.approx(volume(ball), rel=0.05)
    assert np.abs(coarse.colors / 255 - (0.5 + 0.5 * coarse.vertices)).max() < 0.1
    assert mesh.simplified(ball, 10**6) is ball
