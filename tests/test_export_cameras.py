# SPDX-License-Identifier: Apache-2.0
"""Cameras of a run as COLMAP and transforms.json, read again."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from nerfkit.config import Config
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.load import load_capture, load_scene
from nerfkit.data.readers.colmap import read_model
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.readers.transforms import read
from nerfkit.errors import UserError
from nerfkit.export import cameras as export_cameras
from nerfkit.export.writing import OutputFolder
from nerfkit.rendering.camera_path import read_path
from nerfkit.training.trainer import Trainer
from tests.naming import raises_mentioning
from tests.posed_captures import LEFT, PINHOLE, capture_in, masks_in
from tests.sphere_field import call, cameras, frame, write_run
from tests.toy_scene import write_scene


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


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


FOCAL, MIDDLE, BENT = (50.0, 51.0), (20.0, 15.0), (0.02, -0.01, 0.001, 0.002)
LENSES = {  # parameters of a model, and the formats that hold it
    "SIMPLE_PINHOLE": ((50.0, *MIDDLE), "transforms colmap path"),
    "PINHOLE": ((*FOCAL, *MIDDLE), "transforms colmap path"),
    "SIMPLE_RADIAL": ((50.0, *MIDDLE, 0.02), "transforms colmap"),
    "RADIAL": ((50.0, *MIDDLE, 0.02, -0.01), "transforms colmap"),
    "OPENCV": ((*FOCAL, *MIDDLE, *BENT), "transforms colmap"),
    "OPENCV_FISHEYE": ((*FOCAL, *MIDDLE, *BENT), "transforms colmap"),
    "FULL_OPENCV": ((*FOCAL, *MIDDLE, *BENT, 0.003, 0.01, 0.0, 0.0), "colmap"),
    "SIMPLE_RADIAL_FISHEYE": ((50.0, *MIDDLE, 0.02), "colmap"),
    "RADIAL_FISHEYE": ((50.0, *MIDDLE, 0.02, 0.01), "colmap"),
    "SIMPLE_FISHEYE": ((50.0, *MIDDLE), "colmap"),
    "FISHEYE": ((*FOCAL, *MIDDLE), "colmap"),
    "EQUIRECTANGULAR": ((40.0, 30.0), "transforms colmap"),
    "EUCM": ((*FOCAL, *MIDDLE, 0.6, 1.1), "colmap"),
    "RADIAL4_TANGENTIAL": ((*FOCAL, *MIDDLE, *BENT, 0.001, 0.002), "transforms"),
}


def capture_with(lens: Lens, folder: Path) -> Capture:
    poses = frame().to_input(cameras(4).camera_to_world.double().numpy())
    images, mask = [], folder / "mask.png"
    Image.new("L", (40, 30)).save(mask)
    for index, pose in enumerate(poses):
        images.append(PosedImage(f"p{index}.png", folder / f"p{index}.png", pose, lens, mask))
        Image.new("RGB", (40, 30)).save(images[-1].file)
    points = Points(np.eye(3), np.uint8([[1, 2, 3]] * 3), np.array([2, 1, 1]), np.array([0, 1, 2, 3]))
    return Capture("some", "run", images, points)


def write(capture: Capture, format: str, folder: Path) -> Path:
    output = OutputFolder(folder, str(folder / format), "x", False, {})
    export_cameras.write(capture, (format,), output)
    return folder / format


@pytest.mark.parametrize("model", LENSES)
def test_every_lens_is_read_back_or_refused_by_name(model, tmp_path):
    params, formats = LENSES[model]
    lens = Lens(model, params, 40, 30)
    capture = capture_with(lens, tmp_path)
    refused = export_cameras.refusals(capture)
    assert {*refused} == {*export_cameras.FORMATS} - {*formats.split()}
    for format, why in refused.items():
        assert model in why and "--formats" not in why
        with raises_mentioning(UserError, model):
            write(capture, format, tmp_path)
    if "transforms" in formats:
        again = read(write(capture, "transforms", tmp_path))
        assert {image.lens for image in again.images} == {lens} and len(again.points.positions) == 3
        assert {image.mask.resolve() for image in again.images} == {tmp_path / "mask.png"}
        assert np.allclose([i.camera_to_world for i in again.images], [i.camera_to_world for i in capture.images])
    if "colmap" in formats:
        again = load_capture(str(write(capture, "colmap", tmp_path) / "colmap"))
        assert {image.lens for image in again.images} == {lens} and len(again.points.positions) == 3
    if "path" in formats:
        path = read_path(write(capture, "path", tmp_path) / "camera_path.json", (8, 8))  # as `render --cameras` does
        assert path.focal[0, 1] == pytest.approx(lens.focal[1], rel=1e-5) and path.size() == (40, 30)


def test_images_and_points_of_the_scene_at_hand(tmp_path, small_config):
    """Names with folders and endings, so that others find the images."""
    toy_scene = write_scene(tmp_path / "toy")
    small_config.data.path = str(toy_scene)
    scene = load_scene(str(toy_scene), downscale=2)
    Trainer(small_config, scene=scene).save(tmp_path / "run")
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
    assert {(image.lens.width, image.lens.height) for image in model.images} == {whole.size()}
    about = json.loads((tmp_path / "c" / "export.json").read_text())
    assert (tmp_path / "c" / about["images"]).resolve() == toy_scene.resolve()
    assert all((tmp_path / "c" / about["images"] / image.name).is_file() for image in model.images), "with endings"
    path = json.loads((tmp_path / "c" / "camera_path.json").read_text())
    assert (path["render_width"], path["render_height"]) == scene.split("train").cameras.size()


def scene_with_points(folder: Path, lengths: list[int], views: list[int]) -> tuple[Capture, SimpleNamespace]:
    """A COLMAP scene of four images and three points, and a run of it."""
    scene = capture_in(folder, [PINHOLE] * 4)
    points = Points(np.eye(3), np.full((3, 3), 9, dtype=np.uint8), np.array(lengths), np.array(views))
    write_model(folder / "sparse" / "0", replace(scene, points=points))
    masks_in(folder, ~LEFT)
    config = Config()
    config.data.path = str(folder)
    return scene, SimpleNamespace(config=config)


def from_run(images: list[PosedImage]) -> Capture:
    """What a run has of images: names without folders."""
    images = [replace(image, name=image.file.stem) for image in images]
    return Capture("toy", "run", images, splits={"train": [image.name for image in images]})


def test_sparse_points_are_seen_by_the_images_that_are_exported(tmp_path):
    """Those of one split of a scene: what its other images see of a point is left out."""
    scene, run = scene_with_points(tmp_path / "scene", [3, 1, 2], [0, 1, 3, 1, 2, 3])
    kept = [image for image in scene.images if image.file.stem != "r_01"]
    found, _, note = export_cameras.with_files(from_run(kept), run, True)
    assert [image.mask for image in found.images] == [tmp_path / "scene" / "masks" / image.name for image in kept]
    written = read_model(write(found, "colmap", tmp_path) / "colmap")
    assert [image.name for image in written.images] == ["r_00.png", "r_02.png", "r_03.png"]
    assert written.points.track_lengths.tolist() == [2, 0, 2] and written.points.views.tolist() == [0, 2, 1, 2]
    assert "3 sparse points" in note


def test_no_points_where_the_scene_has_other_cameras_now(tmp_path):
    scene, run = scene_with_points(tmp_path / "scene", [1, 1, 1], [0, 1, 2])
    for factor, alike in ((1.0, True), (1 + 1e-5, True), (10.0, False)):
        scales = np.where(np.arange(4) == 3, factor, 1.0)  # of the last column, where the camera stands
        images = [replace(image, camera_to_world=image.camera_to_world * scales) for image in scene.images]
        found, _, note = export_cameras.with_files(from_run(images), run, True)
        assert (found.points is not None) == alike == ("3 sparse points" in note), note


def test_an_export_is_not_replaced_unasked_or_by_what_a_format_cannot_hold(run, tmp_path, monkeypatch):
    file = tmp_path / "c" / "transforms.json"
    call(run, "cameras", "--out", tmp_path / "c", "--split", "test")
    before = file.read_bytes()
    with raises_mentioning(UserError, tmp_path / "c", "--overwrite"):
        call(run, "cameras", "--out", tmp_path / "c")
    with monkeypatch.context() as patched:
        patched.setattr(export_cameras, "refusals", lambda capture: {"path": "a camera path has no such lens"})
        with raises_mentioning(UserError, "--formats path", "no such lens"):
            call(run, "cameras", "--out", tmp_path / "c", "--formats", "path", "--overwrite")
    assert file.read_bytes() == before
    call(run, "cameras", "--out", tmp_path / "c", "--overwrite")
    assert file.read_bytes() != before
    with raises_mentioning(UserError, "val", "train", "test"):
        call(run, "cameras", "--split", "val", "--out", tmp_path / "d")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    with raises_mentioning(UserError, tmp_path / "mine"):
        call(run, "cameras", "--out", tmp_path / "mine", "--overwrite")


def test_colmap_has_no_names_with_spaces(tmp_path):
    capture = capture_with(Lens("PINHOLE", (*FOCAL, *MIDDLE), 40, 30), tmp_path)
    spaced = replace(capture, images=[replace(image, name=f"p {image.name}") for image in capture.images])
    assert "colmap" in export_cameras.refusals(spaced), "its text form cuts names at spaces"
