# SPDX-License-Identifier: Apache-2.0
"""Points, splats, cameras and images of a field whose surface is known, read again by others where these are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nerfkit.commands import export, inspect
from nerfkit.config import Config
from nerfkit.data.cameras import Cameras
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.colmap import read_model, write_model
from nerfkit.data.lens import Lens
from nerfkit.data.ply import read_points
from nerfkit.data.readers.transforms_capture import read
from nerfkit.errors import UserError
from nerfkit.export import cameras as export_cameras
from nerfkit.export.output import OutputFolder
from nerfkit.export.points import PointCloud, points_of_view, thinned
from nerfkit.export.splats import FLAT, rotations, splat_bytes
from nerfkit.export.views import View, Views
from nerfkit.export.work import Work
from nerfkit.rendering.path_files import read_path
from tests.balls import CENTER, RADIUS, SPECK, SPECK_RADIUS, cameras, frame, write_run
from tests.naming import assert_names, raises_naming
from tests.ply_files import read_ply
from tests.posed_captures import PINHOLE, capture_in
from tests.toy_scene import write_scene


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


def call(run, kind, *arguments) -> None:
    assert export.main([str(run), kind, "--device", "cpu", *map(str, arguments)]) == 0


# ---- points


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


def test_what_other_views_see_through_is_left_out(run, monkeypatch):
    """A depth that is wrong in one view floats before the surface of the others."""
    from nerfkit.rendering.image_renderer import ImageRenderer
    from nerfkit.training.run import load_run

    loaded = load_run(run, "cpu")
    with Work(run.parent / "some", {}) as work:
        image_of = ImageRenderer(loaded.model, loaded.background)
        views = Views(image_of, cameras()[[0, 1, 2]], work, 0.0, torch.device("cpu"))
        one, two, three = views
        work.remove()
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
    from nerfkit.export.points import PointCloud

    generator = np.random.default_rng(0)
    position = np.repeat(generator.uniform(size=(50, 3)), 20, axis=0) + 1e-7 * generator.normal(size=(1000, 3))
    normals = np.tile(np.float32([0, 0, 1]), (1000, 1))
    counts = np.ones(1000, np.float32)
    cloud = PointCloud(position, normals, position.astype(np.float32), counts, counts)
    few = thinned(cloud, 60)
    assert 50 <= len(few) <= 60 and few.counts.sum() == 1000, "a cell's border may run through a heap"
    assert np.abs(few.positions - few.colors).max() < 1e-5 and np.allclose(few.normals, [0, 0, 1])
    mean = (few.counts[:, None] * few.positions).sum(0) / 1000
    assert np.allclose(mean, position.mean(axis=0), atol=1e-6)


# ---- splats


def test_splats_are_flat_discs_on_the_surface(run, tmp_path):
    call(run, "splats", "--out", tmp_path / "s.ply", "--count", 2000)
    splats = read_ply(tmp_path / "s.ply")
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


def test_splats_too_far_away_for_float32_are_refused():
    spread = np.random.default_rng(0).random((100, 3))
    up, ones = np.tile(np.float32([0, 0, 1]), (100, 1)), np.ones(100)
    cloud = PointCloud(spread + [0, 5e6, 0], up, np.full((100, 3), 0.5), ones, ones)
    with raises_naming(UserError, "float32", "--frame model"):
        splat_bytes(cloud, 0)
    assert splat_bytes(replace(cloud, positions=spread), 0)


def test_rotations_of_any_normal():
    normals = np.float32([[0, 0, 1], [0, 0, -1], [1, 0, 0], [0.6, 0, -0.8]])
    assert np.allclose(np.linalg.norm(rotations(normals), axis=1), 1)
    w, x, y, z = rotations(normals).T
    turned = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)
    assert np.allclose(turned, normals, atol=1e-6)


def test_plyfile_reads_splats(run, tmp_path):
    plyfile = pytest.importorskip("plyfile")
    call(run, "splats", "--out", tmp_path / "s.ply", "--count", 500, "--sh_degree", 0)
    vertex = plyfile.PlyData.read(tmp_path / "s.ply")["vertex"]
    assert len(vertex) <= 500 and "f_rest_0" not in vertex and np.isfinite(vertex["scale_0"]).all()


# ---- cameras


def test_cameras_are_read_back_in_the_frame_of_the_files(run, tmp_path):
    call(run, "cameras", "--out", tmp_path / "c", "--split", "train")
    poses = frame().to_input(cameras().camera_to_world.double().numpy())
    model = read_model(tmp_path / "c" / "colmap")
    path = read_path(tmp_path / "c" / "camera_path.json", (8, 8))
    named = {image.name: image.camera_to_world for image in model.images}
    assert np.allclose([named[f"photo_{index}"] for index in range(14)], poses, atol=1e-5)
    assert np.allclose(path.camera_to_world.numpy(), poses, atol=1e-4) and path.size() == (44, 40)
    assert path.focal.numpy() == pytest.approx(62.0, rel=1e-5)
    transforms = json.loads((tmp_path / "c" / "transforms.json").read_text())
    assert (transforms["w"], transforms["fl_x"], transforms["cy"]) == (44, 60.0, pytest.approx(20.3))
    assert np.allclose([f["transform_matrix"][:3] for f in transforms["frames"]], poses, atol=1e-5)


LENSES = [
    Lens("SIMPLE_PINHOLE", (50.0, 20.0, 15.0), 40, 30),
    Lens("PINHOLE", (50.0, 51.0, 20.0, 15.0), 40, 30),
    Lens("SIMPLE_RADIAL", (50.0, 20.0, 15.0, 0.02), 40, 30),
    Lens("RADIAL", (50.0, 20.0, 15.0, 0.02, -0.01), 40, 30),
    Lens("OPENCV", (50.0, 51.0, 20.0, 15.0, 0.02, -0.01, 0.001, 0.002), 40, 30),
    Lens("OPENCV_FISHEYE", (50.0, 51.0, 20.0, 15.0, 0.02, -0.01, 0.001, 0.002), 40, 30),
    Lens("FULL_OPENCV", (50.0, 51.0, 20.0, 15.0, 0.02, -0.01, 0.001, 0.002, 0.003, 0.01, 0.0, 0.0), 40, 30),
    Lens("SIMPLE_RADIAL_FISHEYE", (50.0, 20.0, 15.0, 0.02), 40, 30),
    Lens("RADIAL_FISHEYE", (50.0, 20.0, 15.0, 0.02, 0.01), 40, 30),
    Lens("SIMPLE_FISHEYE", (50.0, 20.0, 15.0), 40, 30),
    Lens("FISHEYE", (50.0, 51.0, 20.0, 15.0), 40, 30),
    Lens("RADIAL4_TANGENTIAL", (50.0, 51.0, 20.0, 15.0, 0.02, -0.01, 0.001, 0.002, 0.001, 0.002), 40, 30),
]
NOT_OF_COLMAP = ("RADIAL4_TANGENTIAL",)
OF_TRANSFORMS = (
    "SIMPLE_PINHOLE",
    "PINHOLE",
    "SIMPLE_RADIAL",
    "RADIAL",
    "OPENCV",
    "OPENCV_FISHEYE",
    "RADIAL4_TANGENTIAL",
)


def capture_with(lens: Lens) -> Capture:
    poses = frame().to_input(cameras(4).camera_to_world.double().numpy())
    images = [
        PosedImage(f"images/p{index}.png", Path(f"images/p{index}.png"), pose, lens) for index, pose in enumerate(poses)
    ]
    points = Points(np.eye(3), np.uint8([[1, 2, 3]] * 3), np.array([2, 1, 1]), np.array([0, 1, 2, 3]))
    return Capture("some", "run", images, points)


def write(capture: Capture, format: str, folder: Path) -> Path:
    output = OutputFolder(folder, str(folder / format), "x", False, {})
    export_cameras.write(capture, (format,), output)
    return folder / format


@pytest.mark.parametrize("lens", LENSES, ids=lambda lens: lens.model)
def test_every_lens_is_read_back_or_refused_by_name(lens, tmp_path):
    capture = capture_with(lens)
    if lens.model in NOT_OF_COLMAP:
        with raises_naming(UserError, lens.model):
            write(capture, "colmap", tmp_path)
    else:
        model = read_model(write(capture, "colmap", tmp_path) / "colmap")
        assert {model.cameras[image.camera_id] for image in model.images} == {lens} and len(model.points.positions) == 3
    refused = {"colmap": lens.model in NOT_OF_COLMAP, "transforms": lens.model not in OF_TRANSFORMS}
    refused["path"] = not lens.is_pinhole
    found = export_cameras.refusals(capture)
    assert set(found) == {format for format, is_refused in refused.items() if is_refused}
    assert all(lens.model in why and "--formats" not in why for why in found.values())
    spaced = replace(capture, images=[replace(image, name=f"p {image.file.name}") for image in capture.images])
    assert "colmap" in export_cameras.refusals(spaced), "its text form cuts names at spaces"
    if lens.model in OF_TRANSFORMS:
        again = read_transforms(capture, tmp_path)
        assert {image.lens for image in again.images} == {lens} and len(again.points.positions) == 3
        assert np.allclose([i.camera_to_world for i in again.images], [i.camera_to_world for i in capture.images])
    else:
        with raises_naming(UserError, lens.model):
            write(capture, "transforms", tmp_path)
    if lens.is_pinhole:
        path = read_path(write(capture, "path", tmp_path) / "camera_path.json", (8, 8))  # as `render --path` does
        assert path.focal[0, 1] == pytest.approx(lens.focal[1], rel=1e-5) and path.size() == (40, 30)
    else:
        with raises_naming(UserError, lens.model):
            write(capture, "path", tmp_path)


def read_transforms(capture: Capture, tmp_path: Path) -> Capture:
    from PIL import Image

    folder = tmp_path / "transforms"
    (folder / "images").mkdir(parents=True)
    images = []
    for image in capture.images:
        file = folder / image.name
        Image.new("RGB", (40, 30)).save(file)
        images.append(replace(image, file=file))
    import shutil

    kept = tmp_path / "kept"
    shutil.move(folder / "images", kept)
    written = write(replace(capture, images=images), "transforms", tmp_path)
    shutil.move(kept, folder / "images")
    return read(written)


@pytest.mark.parametrize(
    "lens", [lens for lens in LENSES if lens.model not in NOT_OF_COLMAP], ids=lambda lens: lens.model
)
def test_pycolmap_reads_the_model(lens, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    capture = capture_with(lens)
    model = pycolmap.Reconstruction(str(write(capture, "colmap", tmp_path) / "colmap"))
    (camera,) = model.cameras.values()
    assert camera.model.name == lens.model and tuple(camera.params) == lens.params
    axes = np.diag([1.0, -1, -1])
    for image in model.images.values():
        wanted = capture.images[int(image.name[8:-4])].camera_to_world
        world_to_camera = image.cam_from_world().matrix()
        assert np.allclose(world_to_camera[:, :3].T @ axes, wanted[:, :3], atol=1e-9)
        assert np.allclose(image.projection_center(), wanted[:, 3], atol=1e-9)


def test_images_and_points_of_the_scene_at_hand(tmp_path, small_config, monkeypatch, capsys):
    """Names with folders and endings, so that others find the images."""
    from nerfkit.data.load import load_scene
    from nerfkit.model.registry import build_model
    from nerfkit.training import checkpoint
    from nerfkit.training.run_folder import RunFolder, describe

    toy_scene = write_scene(tmp_path / "toy")
    small_config.data.path = str(toy_scene)
    scene, folder = load_scene(str(toy_scene), downscale=2), RunFolder.for_new_run(tmp_path / "run")
    folder.start(small_config, describe(scene))
    tensors = {f"model.{name}": value for name, value in build_model(small_config).state_dict().items()}
    checkpoint.save(folder, tensors, {"step": 1, "seconds": 1.0, "n_rays": 1, "random": {}})
    folder.unlock()
    call(tmp_path / "run", "cameras", "--formats", "transforms,colmap,path", "--out", tmp_path / "c")
    content = json.loads((tmp_path / "c" / "transforms.json").read_text())
    files = [tmp_path / "c" / entry["file_path"] for entry in content["frames"]]
    assert len(files) == 14 and all(file.is_file() for file in files)
    assert len(content["test_filenames"]) == 2
    whole = load_scene(str(toy_scene)).split("train").cameras
    sizes = {(entry.get("w", content.get("w")), entry.get("h", content.get("h"))) for entry in content["frames"]}
    assert sizes == {whole.size()}, "of the files, not of the run's smaller images"
    assert content.get("fl_x", content["frames"][0].get("fl_x")) == pytest.approx(whole.focal[0, 0].item(), rel=1e-5)
    model = read_model(tmp_path / "c" / "colmap")
    assert {(lens.width, lens.height) for lens in model.cameras.values()} == {whole.size()}
    about = json.loads((tmp_path / "c" / "export.json").read_text())
    assert (tmp_path / "c" / about["images"]).resolve() == toy_scene.resolve()
    assert all((tmp_path / "c" / about["images"] / image.name).is_file() for image in model.images), "with endings"
    assert f"images of the COLMAP model: {toy_scene}" in capsys.readouterr().out
    assert inspect.main([str(tmp_path / "c" / "colmap")]) == 1
    said = capsys.readouterr().out
    assert_names(said, "14 of 14 images are missing", "train/r_0.png", "no image of the model", "there, as images")
    (tmp_path / "c" / "colmap" / "images").symlink_to(tmp_path / "c" / about["images"])
    inspect.main([str(tmp_path / "c" / "colmap")])
    assert "14 exist, 0 missing" in capsys.readouterr().out
    path = json.loads((tmp_path / "c" / "camera_path.json").read_text())
    assert (path["render_width"], path["render_height"]) == scene.split("train").cameras.size()
    black = tmp_path / "black.png"
    read_scene = export_cameras.load_capture

    def masked(*arguments, **more):
        found = read_scene(*arguments, **more)
        return replace(found, images=[replace(image, mask=black) for image in found.images])

    monkeypatch.setattr(export_cameras, "load_capture", masked)
    call(tmp_path / "run", "cameras", "--formats", "transforms", "--out", tmp_path / "m")
    content = json.loads((tmp_path / "m" / "transforms.json").read_text())
    assert {(tmp_path / "m" / entry["mask_path"]).resolve() for entry in content["frames"]} == {black.resolve()}
    assert "masks are named" in capsys.readouterr().out
    scene.split("train").files[0].write_bytes(b"no image")
    call(tmp_path / "run", "cameras", "--formats", "transforms", "--out", tmp_path / "d")
    content = json.loads((tmp_path / "d" / "transforms.json").read_text())
    assert content.get("w", content["frames"][0].get("w")) == scene.split("train").cameras.size()[0], (
        "as the run has it"
    )


def test_sparse_points_are_seen_by_the_images_that_are_exported(tmp_path):
    """Those of one split of a scene: what its other images see of a point is left out."""
    scene = capture_in(tmp_path / "scene", [PINHOLE] * 4)
    views = np.array([0, 1, 3, 1, 2, 3])
    points = Points(np.eye(3), np.full((3, 3), 9, dtype=np.uint8), np.array([3, 1, 2]), views)
    write_model(tmp_path / "scene" / "sparse" / "0", replace(scene, points=points))
    config = Config()
    config.data.path = str(tmp_path / "scene")
    kept = [replace(image, name=image.file.stem) for image in scene.images if image.file.stem != "r_01"]
    exported = Capture("toy", "run", kept, splits={"train": [image.name for image in kept]})
    found, _, note = export_cameras.with_files(exported, SimpleNamespace(config=config), True)
    read = read_model(write(found, "colmap", tmp_path) / "colmap")
    assert [image.name for image in read.images] == ["r_00.png", "r_02.png", "r_03.png"]
    assert read.points.track_lengths.tolist() == [2, 0, 2] and read.points.views.tolist() == [0, 2, 1, 2]
    assert "3 sparse points" in note


def test_no_points_where_the_scene_has_other_cameras_now(tmp_path):
    scene = capture_in(tmp_path / "scene", [PINHOLE] * 4)
    points = Points(np.eye(3), np.full((3, 3), 9, dtype=np.uint8), np.array([1, 1, 1]), np.array([0, 1, 2]))
    write_model(tmp_path / "scene" / "sparse" / "0", replace(scene, points=points))
    config = Config()
    config.data.path = str(tmp_path / "scene")
    for factor, alike in ((1.0, True), (1 + 1e-5, True), (10.0, False)):
        scales = np.where(np.arange(4) == 3, factor, 1.0)  # of the last column, where the camera stands
        images = [
            replace(image, name=image.file.stem, camera_to_world=image.camera_to_world * scales)
            for image in scene.images
        ]
        of_run = Capture("toy", "run", images, splits={"train": [image.name for image in images]})
        found, _, note = export_cameras.with_files(of_run, SimpleNamespace(config=config), True)
        assert (found.points is not None) == alike == ("3 sparse points" in note), note


def test_what_a_format_cannot_hold_replaces_no_export(run, tmp_path, monkeypatch):
    call(run, "cameras", "--out", tmp_path / "c")
    before = (tmp_path / "c" / "transforms.json").read_bytes()
    monkeypatch.setattr(export_cameras, "refusals", lambda capture: {"path": "a camera path has no such lens"})
    with raises_naming(UserError, "--formats path", "no such lens"):
        call(run, "cameras", "--out", tmp_path / "c", "--formats", "path", "--overwrite")
    assert (tmp_path / "c" / "transforms.json").read_bytes() == before


def test_a_format_that_is_not_written_is_refused_by_name(run, tmp_path):
    with raises_naming(UserError, "scene.obj", ".obj", "ply", "glb"):
        call(run, "mesh", "--out", tmp_path / "scene.obj")


def test_an_export_is_not_replaced_unasked(run, tmp_path):
    call(run, "cameras", "--out", tmp_path / "c", "--split", "test")
    before = (tmp_path / "c" / "transforms.json").read_bytes()
    with raises_naming(UserError, tmp_path / "c", "--overwrite"):
        call(run, "cameras", "--out", tmp_path / "c")
    assert (tmp_path / "c" / "transforms.json").read_bytes() == before
    call(run, "cameras", "--out", tmp_path / "c", "--overwrite")
    with raises_naming(UserError, "val", "train", "test"):
        call(run, "cameras", "--split", "val", "--out", tmp_path / "d")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    with raises_naming(UserError, tmp_path / "mine"):
        call(run, "cameras", "--out", tmp_path / "mine", "--overwrite")


# ---- images


def test_depths_in_the_units_of_the_files(run, tmp_path):
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz")
    values = dict(np.load(tmp_path / "d" / "0000.npz"))
    row, column = 20, 21  # the ray to the centre of the ball
    assert values["depth_median_ray"][row, column] == pytest.approx((2.5 - RADIUS) / 0.25, rel=0.01)
    eye = frame().to_input(cameras().positions[0].double().numpy())
    towards = (eye - frame().to_input(CENTER)) / np.linalg.norm(eye - frame().to_input(CENTER))
    assert values["normal"][row, column] @ towards > 0.99 and values["opacity"][0, 0] == 0
    assert json.loads((tmp_path / "d" / "export.json").read_text())["views"] == ["held_out_0", "held_out_1"]


def test_exr_holds_the_same_as_float32(run, tmp_path):
    exr = pytest.importorskip("OpenEXR")
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz,exr", "--depth", "median")
    values = dict(np.load(tmp_path / "d" / "0001.npz"))
    with exr.File(str(tmp_path / "d" / "0001.exr"), separate_channels=True) as file:
        channels = {name: channel.pixels for name, channel in file.channels().items()}
    assert set(channels) == {"R", "G", "B", "A", "Z", "N.X", "N.Y", "N.Z"}
    assert all(channel.dtype == np.float32 for channel in channels.values())
    assert (channels["Z"] == values["depth_median_z"]).all() and (channels["A"] == values["opacity"]).all()
    assert (channels["N.Y"] == values["normal"][..., 1]).all()
    assert channels["G"] == pytest.approx(values["rgb"][..., 1] ** 2.2, abs=0.02)


def test_a_killed_export_of_images_goes_on(run, tmp_path, monkeypatch):
    from nerfkit.export import images

    made, whole = [], images.image_bytes

    def until_two(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return whole(*arguments)

    monkeypatch.setattr(images, "image_bytes", until_two)
    arguments = ("depth", "--out", tmp_path / "d", "--split", "train", "--formats", "npz")
    with pytest.raises(KeyboardInterrupt):
        call(run, *arguments)
    first = (tmp_path / "d" / "0000.npz").stat().st_mtime_ns
    monkeypatch.setattr(images, "image_bytes", whole)
    call(run, *arguments)
    assert (tmp_path / "d" / "0000.npz").stat().st_mtime_ns == first and (tmp_path / "d" / "0013.npz").exists()
    with raises_naming(UserError, "--overwrite"):
        call(run, *arguments)


def test_what_is_missing_says_what_to_install(run, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with raises_naming(UserError, "OpenEXR", 'pip install "nerfkit[export]"'):
        call(run, "depth", "--out", tmp_path / "d", "--split", "test")
