# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.load import load_scene
from nerfkit.data.pixels import blend
from nerfkit.errors import SceneError
from tests.toy_scene import write_scene


@pytest.fixture
def scene_folder(toy_scene, tmp_path):
    return shutil.copytree(toy_scene, tmp_path / "scene")


def change(folder, edit) -> None:
    """Apply edit(content) to transforms_train.json."""
    file = folder / "transforms_train.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_reads_all_splits(toy_scene):
    scene = load_scene(str(toy_scene))
    assert {name: len(views.cameras) for name, views in scene.views.items()} == {"train": 12, "test": 2}
    images = scene.split("train").load()
    assert images.dtype == torch.uint8 and images.shape == (12, 24, 24, 4)


@pytest.mark.parametrize("extension, channels", [("png", 4), ("webp", 4), ("jpg", 3)])
def test_extensions_are_found(tmp_path, extension: str, channels: int):
    folder = write_scene(tmp_path, counts={"train": 2}, extension=extension)
    assert load_scene(str(folder)).split("train").load().shape == (2, 24, 24, channels)


def test_downscale_averages_areas_weighted_by_alpha(scene_folder):
    picture = np.zeros((24, 24, 4), dtype=np.uint8)
    picture[0, 0], picture[0, 1] = (200, 100, 0, 255), (0, 0, 255, 0)  # the second is transparent
    Image.fromarray(picture).save(scene_folder / "train" / "r_0.png")
    views = load_scene(str(scene_folder), downscale=2).split("train")
    red, green, blue, alpha = views.load()[0, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx((200, 100, 0), abs=3) and alpha == pytest.approx(64, abs=1)
    full = load_scene(str(scene_folder)).split("train").cameras
    torch.testing.assert_close(views.cameras.focal * 2, full.focal)


def test_frame_intrinsics_beat_the_files(scene_folder):
    change(scene_folder, lambda c: c["frames"][1].update(fl_x=50.0, fl_y=40.0, cx=10.0, cy=11.0))
    cameras = load_scene(str(scene_folder)).split("train").cameras
    assert cameras.focal[1].tolist() == [50, 40] and cameras.center[1].tolist() == [10, 11]
    assert cameras.center[0].tolist() == [12, 12]


def test_blend():
    pixels = torch.tensor([[255, 0, 0, 255], [255, 0, 0, 0]], dtype=torch.uint8)
    assert blend(pixels, torch.ones(3)).tolist() == [[1, 0, 0], [1, 1, 1]]


EDITS = {
    "mirrored": (
        lambda c: c["frames"][2].update(transform_matrix=np.diag([1.0, 1, -1, 1]).tolist()),
        "frame 2: the rotation has determinant -1 instead of 1: the axes are mirrored",
    ),
    "scaled": (
        lambda c: c["frames"][0].update(transform_matrix=np.diag([2.0, 2, 2, 1]).tolist()),
        "determinant 8 instead of 1: the matrix is scaled",
    ),
    "skewed": (
        lambda c: c["frames"][0].update(transform_matrix=(np.eye(4) + np.eye(4, k=1)).tolist()),
        "axes are not orthogonal",
    ),
    "not_finite": (
        lambda c: c["frames"][0]["transform_matrix"][0].__setitem__(3, float("nan")),
        "holds a value that is not finite",
    ),
    "wrong_shape": (
        lambda c: c["frames"][0].update(transform_matrix=[[1.0, 0], [0, 1]]),
        "must be 4x4 or 3x4, got 2x2",
    ),
    "no_matrix": (lambda c: c["frames"][3].pop("transform_matrix"), "frame 3: key 'transform_matrix' is missing"),
    "no_file_path": (lambda c: c["frames"][1].pop("file_path"), "frame 1: key 'file_path' is missing"),
    "no_intrinsics": (lambda c: c.pop("camera_angle_x"), "intrinsics are missing; give 'camera_angle_x' or 'fl_x'"),
    "bad_focal": (lambda c: c.update(fl_x=-5.0), "frame 0: 'fl_x' must be a number and be above 0 .*, got -5.0"),
    "text_focal": (
        lambda c: c.update(fl_x="50"),
        "transforms_train.json: frame 0: 'fl_x' must be a number .*, got '50'",
    ),
    "no_width": (lambda c: c.update(w=0), "transforms_train.json: frame 0: 'w' must be a number and be above 0"),
    "no_angle": (
        lambda c: c.update(camera_angle_x=0),
        "'camera_angle_x' must be a number and be above 0 and below 3.142, got 0",
    ),
    "straight_angle": (lambda c: c.update(camera_angle_y=3.2), "'camera_angle_y' must be .* below 3.142, got 3.2"),
    "infinite_center": (lambda c: c["frames"][1].update(cx=float("inf")), "frame 1: 'cx' must be .* finite, got inf"),
    "distorted": (lambda c: c.update(k1=0.1), r"lens distortion \(k1\) is not supported; undistort"),
    "no_frames_key": (lambda c: c.pop("frames"), "key 'frames' is missing"),
    "zero_views": (lambda c: c.update(frames=[]), "'frames' holds no views"),
    "missing_picture": (
        lambda c: c["frames"][0].update(file_path="./train/r_99"),
        r"picture .*r_99 is missing \(looked",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_transforms(scene_folder, name: str):
    edit, message = EDITS[name]
    change(scene_folder, edit)
    with pytest.raises(SceneError, match=message):
        load_scene(str(scene_folder))


def test_bad_json(scene_folder):
    (scene_folder / "transforms_train.json").write_text("{")
    with pytest.raises(SceneError, match="transforms_train.json is not valid JSON"):
        load_scene(str(scene_folder))


def test_truncated_picture(scene_folder):
    file = scene_folder / "train" / "r_5.png"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(SceneError, match="r_5.png cannot be read, is it truncated"):
        load_scene(str(scene_folder)).split("train").load()


def test_picture_of_another_size(scene_folder):
    Image.new("RGBA", (30, 24)).save(scene_folder / "train" / "r_4.png")
    with pytest.raises(SceneError, match="r_4.png is 30x24, but r_0.png is 24x24"):
        load_scene(str(scene_folder))


def test_not_a_picture(scene_folder):
    (scene_folder / "train" / "r_4.png").write_text("text")
    with pytest.raises(SceneError, match="r_4.png cannot be read"):
        load_scene(str(scene_folder))


def test_bad_paths(tmp_path, toy_scene):
    with pytest.raises(SceneError, match="no scene given: set data.path"):
        load_scene("")
    with pytest.raises(SceneError, match="nowhere is not a folder"):
        load_scene("nowhere")
    with pytest.raises(SceneError, match="no known scene format in .*nerf_synthetic needs transforms_train.json"):
        load_scene(str(tmp_path))
    with pytest.raises(SceneError, match="unknown format 'ply'; known: auto, nerf_synthetic"):
        load_scene(str(toy_scene), format="ply")
    with pytest.raises(SceneError, match="has no split 'val'; it has train, test"):
        load_scene(str(toy_scene)).split("val")


def test_more_pictures_than_memory(toy_scene, monkeypatch):
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: 100)
    with pytest.raises(SceneError, match="raise data.downscale"):
        load_scene(str(toy_scene)).split("train").load()
