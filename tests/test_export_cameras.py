# SPDX-License-Identifier: Apache-2.0
"""Cameras that are exported, read again by others where these are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nerfkit.commands import export, inspect
from nerfkit.config import Config
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.readers.colmap.reader import read_model
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.readers.transforms.reader import read
from nerfkit.errors import UserError
from nerfkit.export import cameras as export_cameras
from nerfkit.export.output import OutputFolder
from nerfkit.rendering.path_files import read_path
from tests.balls import cameras, frame, write_run
from tests.naming import assert_names, raises_naming
from tests.posed_captures import PINHOLE, capture_in
from tests.processes import run_main
from tests.toy_scene import write_scene


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


def call(run, kind, *arguments) -> None:
    assert run_main(export, str(run), kind, "--device", "cpu", *map(str, arguments)) == 0


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
    from nerfkit.training.run import checkpoint
    from nerfkit.training.run.folder import RunFolder, describe

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
    assert run_main(inspect, str(tmp_path / "c" / "colmap")) == 1
    said = capsys.readouterr().out
    assert_names(said, "14 of 14 images are missing", "train/r_0.png", "no image of the model", "there, as images")
    (tmp_path / "c" / "colmap" / "images").symlink_to(tmp_path / "c" / about["images"])
    run_main(inspect, str(tmp_path / "c" / "colmap"))
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
