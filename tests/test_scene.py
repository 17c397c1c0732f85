# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.load import load_scene
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


def test_images_that_are_no_squares(tmp_path):
    folder = write_scene(tmp_path, size=(30, 18), counts={"train": 2})
    views = load_scene(str(folder)).split("train")
    assert (views.cameras.width, views.cameras.height) == (30, 18)
    assert views.load().shape == (2, 18, 30, 4) and views.cameras.center[0].tolist() == [15, 9]
    assert views.cameras.focal[0, 0] == views.cameras.focal[0, 1]
    half = load_scene(str(folder), downscale=2).split("train")
    assert half.load().shape == (2, 9, 15, 4) and half.cameras.center[0].tolist() == [7.5, 4.5]


def test_downscale_averages_areas_weighted_by_alpha(scene_folder):
    picture = np.zeros((24, 24, 4), dtype=np.uint8)
    picture[0, 0], picture[0, 1] = (200, 100, 0, 255), (0, 0, 255, 0)  # the second is transparent
    Image.fromarray(picture).save(scene_folder / "train" / "r_0.png")
    views = load_scene(str(scene_folder), downscale=2).split("train")
    red, green, blue, alpha = views.load()[0, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx((200, 100, 0), abs=3) and alpha == pytest.approx(64, abs=1)
    full = load_scene(str(scene_folder)).split("train").cameras
    torch.testing.assert_close(views.cameras.focal * 2, full.focal)


FAMILIES = [  # the file's values, a frame's own, and what they mean for images of 24x24: focal length, principal point
    ({}, {"fl_x": 50.0, "fl_y": 40.0, "cx": 10.0, "cy": 11.0}, (50, 40), (10, 11)),
    ({"fl_x": 30.0, "fl_y": 31.0}, {"fl_x": 50.0}, (50, 50), (12, 12)),
    ({"fl_x": 30.0, "fl_y": 31.0}, {"camera_angle_x": 2 * np.arctan(0.5)}, (24, 24), (12, 12)),
    ({"camera_angle_x": 0.9, "camera_angle_y": 0.5}, {"camera_angle_x": 2 * np.arctan(0.5)}, (24, 24), (12, 12)),
    ({"cx": 10.0, "cy": 9.0, "fl_x": 30.0}, {"cx": 11.0}, (30, 30), (11, 9)),
    ({"w": 48, "h": 48, "fl_x": 30.0}, {}, (15, 15), (12, 12)),
    ({"w": 48, "h": 48, "fl_x": 30.0}, {"w": 24, "h": 24}, (30, 30), (12, 12)),
    ({"w": 48.0, "h": 47, "fl_x": 48.0, "cy": 47.0}, {}, (24, 48 * 24 / 47), (12, 24)),
]


@pytest.mark.parametrize("of_file, of_frame, focal, center", FAMILIES)
def test_a_frames_intrinsics_beat_the_files(scene_folder, of_file, of_frame, focal, center):
    change(scene_folder, lambda c: (c.update(of_file), c["frames"][1].update(of_frame)))
    cameras = load_scene(str(scene_folder)).split("train").cameras
    assert cameras.focal[1].tolist() == pytest.approx(focal) and cameras.center[1].tolist() == pytest.approx(center)


@pytest.mark.parametrize(
    "model", [{"camera_model": "OPENCV", "k1": 0.0, "p2": 0}, {"camera_model": "PINHOLE", "is_fisheye": False}]
)
def test_keys_that_change_nothing(scene_folder, model):
    others = {"aabb_scale": 16, "scale": 0.3, "offset": [0, 0, 0], "applied_transform": np.eye(4).tolist(), "fps": 3}
    plain = load_scene(str(scene_folder)).split("train").cameras
    change(scene_folder, lambda c: (c.update(model | others), c["frames"][0].update(sharpness=3.0, colmap_im_id=3)))
    with warnings.catch_warnings(action="error"):
        cameras = load_scene(str(scene_folder)).split("train").cameras
    assert torch.equal(cameras.focal, plain.focal) and torch.equal(cameras.camera_to_world, plain.camera_to_world)


def test_unknown_keys_are_named_once(scene_folder):
    change(scene_folder, lambda c: (c.update(exposure=2, note="x"), [f.update(time=0.1) for f in c["frames"]]))
    with pytest.warns(UserWarning, match="_train.json: keys that are not used: exposure, note, time$") as seen:
        load_scene(str(scene_folder))
    assert len(seen) == 1


def test_names_are_unique(scene_folder):
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:2] == ["r_0", "r_1"]
    (scene_folder / "other").mkdir()
    shutil.copy(scene_folder / "train" / "r_0.png", scene_folder / "other" / "R_3.png")
    change(scene_folder, lambda c: c["frames"][0].update(file_path="other/R_3"))
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:4] == ["0000_R_3", "0001_r_1", "0002_r_2", "0003_r_3"]


def frame(**values):
    """An edit that gives frame 0 other values."""
    return lambda content: content["frames"][0].update(values)


def everywhere(**values):
    """An edit that gives the file other values."""
    return lambda content: content.update(values)


def matrix(row: int, column: int, value):
    """An edit that changes one value of the matrix of frame 0."""
    return lambda content: content["frames"][0]["transform_matrix"][row].__setitem__(column, value)


def frames_with(value):
    """An edit that puts a value in the place of frame 1."""
    return lambda content: content["frames"].__setitem__(1, value)


EYE = np.eye(4)
TRANSPOSED = EYE.copy()
TRANSPOSED[3, :3] = 1, 2, 3
FILE, FRAME = "transforms_train.json: ", "transforms_train.json: frame 0: "
EDITS = {
    "no_frames_key": (lambda c: c.pop("frames"), FILE + "key 'frames' is missing"),
    "zero_views": (everywhere(frames=[]), FILE + "'frames' holds no views"),
    "frames_null": (everywhere(frames=None), FILE + "'frames' holds no views"),
    "frames_object": (everywhere(frames={"0": {}}), FILE + "'frames' holds no views"),
    "frames_text": (everywhere(frames="frames"), FILE + "'frames' holds no views"),
    "frame_null": (frames_with(None), FILE + "frame 1 must be an object with keys, got None"),
    "frame_number": (frames_with(3), FILE + "frame 1 must be an object .* got 3"),
    "frame_list": (frames_with([{}]), FILE + "frame 1 must be an object"),
    "frame_text": (frames_with("file_path"), FILE + "frame 1 must be an object .* got 'file_path'"),
    "no_file_path": (lambda c: c["frames"][0].pop("file_path"), FRAME + "key 'file_path' is missing"),
    "file_path_number": (frame(file_path=5), FRAME + "'file_path' must be the name of an image, got 5"),
    "file_path_null": (frame(file_path=None), FRAME + "'file_path' must be .* got None"),
    "file_path_list": (frame(file_path=["a", "b"]), FRAME + "'file_path' must be .* got .'a', 'b'"),
    "file_path_empty": (frame(file_path=""), FRAME + "'file_path' must be .* got ''"),
    "file_path_root": (frame(file_path="/"), "image / is a folder"),
    "file_path_folder": (frame(file_path="train"), "image .*train is a folder"),
    "file_path_above": (frame(file_path=".."), "image .* is a folder"),
    "file_path_long": (frame(file_path="n" * 5000), FRAME + r"image .*nnn\.\.\.nnn.* is missing"),
    "file_path_nul": (frame(file_path="train/r_0\0"), FRAME + r"image .*r_0.x00 is missing"),
    "file_path_newline": (frame(file_path="a\nb"), FRAME + r"image .*a.nb is missing"),
    "file_path_surrogate": (frame(file_path="a\ud800"), FRAME + "'file_path' .* cannot be the name of a file"),
    "file_path_missing": (frame(file_path="./train/r_99"), FRAME + r"image .*r_99 is missing \(looked for .png"),
    "file_path_json": (frame(file_path="transforms_test.json"), "transforms_test.json is no PNG, JPEG or WebP"),
    "file_path_device": (frame(file_path="/dev/zero"), "image /dev/zero is a device, not a regular file"),
    "file_path_passwords": (frame(file_path="/etc/passwd"), "image /etc/passwd is no PNG, JPEG or WebP file"),
    "no_matrix": (lambda c: c["frames"][0].pop("transform_matrix"), FRAME + "key 'transform_matrix' is missing"),
    "matrix_null": (frame(transform_matrix=None), FRAME + "transform_matrix must be 4x4 or 3x4, got None"),
    "matrix_number": (frame(transform_matrix=1.0), FRAME + "transform_matrix must be .* got 1.0"),
    "matrix_text": (frame(transform_matrix="eye"), FRAME + "transform_matrix must be .* got 'eye'"),
    "matrix_object": (frame(transform_matrix={"0": 1}), FRAME + "transform_matrix must be 4x4"),
    "matrix_empty": (frame(transform_matrix=[]), FRAME + "transform_matrix must be 4x4 or 3x4, got 0 rows"),
    "matrix_flat": (frame(transform_matrix=[1.0] * 16), FRAME + "transform_matrix must be 4x4"),
    "matrix_deep": (frame(transform_matrix=[[[1.0]] * 4] * 4), FRAME + r"transform_matrix must hold numbers, got .1"),
    "matrix_2x2": (frame(transform_matrix=[[1, 0], [0, 1]]), FRAME + r"transform_matrix .* got 2 rows of .2, 2"),
    "matrix_4x3": (frame(transform_matrix=EYE[:, :3].tolist()), FRAME + "transform_matrix .* got 4 rows of .3, 3"),
    "matrix_ragged": (lambda c: c["frames"][0]["transform_matrix"][1].pop(), FRAME + "transform_matrix .* .4, 3, 4, 4"),
    "matrix_row_null": (lambda c: c["frames"][0]["transform_matrix"].__setitem__(2, None), FRAME + "transform_matrix"),
    "value_text": (matrix(0, 3, "1.5"), FRAME + "transform_matrix must hold numbers, got '1.5'"),
    "value_null": (matrix(1, 1, None), FRAME + "transform_matrix must hold numbers, got None"),
    "value_true": (matrix(3, 3, True), FRAME + "transform_matrix must hold numbers, got True"),
    "value_nan": (matrix(0, 3, float("nan")), FRAME + "the values of transform_matrix must be finite .* got nan"),
    "value_infinite": (matrix(2, 3, float("-inf")), FRAME + "the values of transform_matrix .* got -inf"),
    "value_1e300": (matrix(1, 3, 1e300), FRAME + r"the values of transform_matrix .* at most 1e.06, got 1e.300"),
    "value_1e30": (matrix(1, 3, -1e30), FRAME + r"the values of transform_matrix .* at most 1e.06, got -1e.30"),
    "value_10_to_290": (matrix(1, 3, 10**290), FRAME + r"the values of transform_matrix .* got 10000000.*0"),
    "value_10_to_400": (matrix(1, 3, 10**400), "transforms_train.json is not valid JSON: an integer of 401 digits"),
    "transposed": (frame(transform_matrix=TRANSPOSED.tolist()), FRAME + "the last row .*1.0, 2.0, 3.0, .* transposed"),
    "w_of_2": (frame(transform_matrix=np.diag([1.0, 1, 1, 2]).tolist()), FRAME + "the last row .* 0.0, 2.0.* instead"),
    "mirrored": (
        frame(transform_matrix=np.diag([1.0, 1, -1, 1]).tolist()),
        FRAME + "the rotation has determinant -1 instead of 1: the axes are mirrored",
    ),
    "scaled": (frame(transform_matrix=np.diag([2.0, 2, 2, 1]).tolist()), FRAME + ".* determinant 8 .* is scaled"),
    "all_zeros": (frame(transform_matrix=np.diag([0.0, 0, 0, 1]).tolist()), FRAME + "the rotation has determinant 0"),
    "skewed": (frame(transform_matrix=(EYE + np.eye(4, k=1) * [1, 1, 1, 0]).tolist()), FRAME + ".* not orthogonal"),
    "no_intrinsics": (lambda c: c.pop("camera_angle_x"), FRAME + "intrinsics are missing; give 'camera_angle_x' or"),
    "only_fl_y": (frame(fl_y=30.0), FRAME + "intrinsics are missing"),
    "focal_negative": (everywhere(fl_x=-5.0), FRAME + "'fl_x' must be a number above 0 .*, got -5.0"),
    "focal_zero": (frame(fl_x=30, fl_y=0), FRAME + "'fl_y' must be a number above 0 .*, got 0"),
    "focal_text": (everywhere(fl_x="50"), FRAME + "'fl_x' must be a number .*, got '50'"),
    "focal_null": (everywhere(fl_x=None), FRAME + "'fl_x' must be a number .*, got None"),
    "focal_true": (everywhere(fl_x=True), FRAME + "'fl_x' must be a number .*, got True"),
    "focal_list": (everywhere(fl_x=[50]), FRAME + r"'fl_x' must be a number .*, got .50"),
    "focal_nan": (everywhere(fl_x=float("nan")), FRAME + "'fl_x' must be a number .*, got nan"),
    "focal_1e300": (everywhere(fl_x=1e300), FRAME + r"'fl_x' must be a number .* below 1e.09, got 1e.300"),
    "focal_10_to_400": (everywhere(fl_x=10**400), "transforms_train.json is not valid JSON: an integer of 401 digits"),
    "focal_1e8": (everywhere(fl_x=1e8), FRAME + r"the focal length must lie between .* 1e.07 pixels, got 1e.08"),
    "focal_tiny": (everywhere(fl_x=1e-9), FRAME + "the focal length must lie between 0.001 and .* got 1e-09"),
    "angle_zero": (everywhere(camera_angle_x=0), FRAME + "'camera_angle_x' .* below 3.142, got 0"),
    "angle_tiny": (everywhere(camera_angle_x=1e-300), FRAME + "'camera_angle_x' must be .*, got 1e-300"),
    "angle_straight": (everywhere(camera_angle_y=3.2), FRAME + "'camera_angle_y' must be .* below 3.142, got 3.2"),
    "center_infinite": (frame(cx=float("inf")), FRAME + "'cx' must be a number .*, got inf"),
    "center_text": (frame(cy="12"), FRAME + "'cy' must be a number .*, got '12'"),
    "center_outside": (
        everywhere(fl_x=1111.0, cx=400.0, cy=400.0),
        FRAME + r"the principal point \(400, 400\) lies outside of 24x24 images; .* 'w' and 'h'",
    ),
    "center_negative": (frame(cx=-1.0), FRAME + r"the principal point \(-1, 12\)"),
    "center_far": (frame(w=24, h=24, cy=1e6), FRAME + "the principal point"),
    "width_zero": (everywhere(w=0, h=24), FRAME + "'w' must be a whole number .*, got 0"),
    "width_tiny": (everywhere(w=1e-9, h=1e-9), FRAME + "'w' must be a whole number .*, got 1e-09"),
    "width_huge": (everywhere(w=24, h=1e300), FRAME + r"'h' must be a whole number .* 100000, got 1e.300"),
    "width_nan": (frame(w=float("nan"), h=24), FRAME + "'w' must be a whole number .*, got nan"),
    "width_text": (frame(w="24", h=24), FRAME + "'w' must be a whole number .*, got '24'"),
    "width_alone": (everywhere(w=24), FRAME + "'h' must be a whole number .*, got None"),
    "width_of_a_frame_alone": (lambda c: (c.update(w=24, h=24), frame(w=24)(c)), FRAME + "'h' .* got None"),
    "another_shape": (everywhere(w=100, h=24), FRAME + "'w' and 'h' say 100x24, but the images are 24x24"),
    "another_shape_slightly": (everywhere(w=800, h=866), FRAME + "'w' and 'h' say 800x866, but the images are 24x24"),
    "distorted": (everywhere(k1=0.1), FRAME + r"lens distortion \(k1\) is not supported; undistort"),
    "distorted_high": (frame(k6=1e-4, p2=-0.1), FRAME + r"lens distortion \(k6, p2\)"),
    "distorted_text": (frame(p1="0.1"), FRAME + r"lens distortion \(p1\)"),
    "fisheye_model": (everywhere(camera_model="OPENCV_FISHEYE"), FRAME + "camera_model 'OPENCV_FISHEYE' is not"),
    "model_number": (everywhere(camera_model=5), FRAME + "camera_model 5 is not supported"),
    "model_list": (frame(camera_model=["PINHOLE"]), FRAME + "camera_model .'PINHOLE'. is not supported"),
    "is_fisheye": (everywhere(is_fisheye=True), FRAME + "'is_fisheye' is not supported; undistort"),
    "equirectangular": (frame(equirectangular=True), FRAME + "'equirectangular' is not supported"),
    "mask": (frame(mask_path="m.png"), FRAME + "'mask_path' is not supported; put the mask into the images' alpha"),
    "ortho": (everywhere(ortho=True), FRAME + "'ortho' is not supported; give images of a perspective camera"),
    "rolling_shutter": (everywhere(rolling_shutter=[0, 0, 0.1, 0]), FRAME + "'rolling_shutter' is not supported"),
    "other_axes": (everywhere(from_na=True), FRAME + "'from_na' is not supported; convert the poses"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_transforms(scene_folder, name: str):
    edit, message = EDITS[name]
    change(scene_folder, edit)
    with pytest.raises(SceneError, match=message) as caught:
        load_scene(str(scene_folder))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


TEXTS = {
    "cut_short": (b"{", "transforms_train.json is not valid JSON"),
    "null": (b"null", FILE + "key 'frames' is missing"),
    "number": (b"5", FILE + "key 'frames' is missing"),
    "list": (b"[{}]", FILE + "key 'frames' is missing"),
    "text": (b'"frames"', FILE + "key 'frames' is missing"),
    "nested": (b'{"frames": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "transforms_train.json .* nested too deeply"),
    "nested_so_that_it_loads": (b'{"frames": [' + b"[" * 900 + b"]" * 900 + b"]}", FILE + "frame 0 must be an object"),
    "utf_16": ('{"frames": []}'.encode("utf-16"), "transforms_train.json is not UTF-8 text"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_bad_json(scene_folder, name: str):
    content, message = TEXTS[name]
    (scene_folder / "transforms_train.json").write_bytes(content)
    with pytest.raises(SceneError, match=message):
        load_scene(str(scene_folder))


def test_a_pipe_instead_of_a_file(scene_folder):
    for name in ("transforms_train.json", "train/r_4.png"):
        kept = (scene_folder / name).rename(scene_folder / "kept")
        os.mkfifo(scene_folder / name)
        with pytest.raises(SceneError, match=f"{name} is a pipe, not a regular file"):
            load_scene(str(scene_folder))
        kept.replace(scene_folder / name)
    (scene_folder / "transforms_val.json").symlink_to("nowhere")  # a split that is meant to be there
    with pytest.raises(SceneError, match="transforms_val.json: No such file"):
        load_scene(str(scene_folder))


def test_images_elsewhere(scene_folder, tmp_path):
    (scene_folder / "train" / "r_0.png").rename(tmp_path / "r_0.png")
    (scene_folder / "train" / "r_1.png").rename(tmp_path / "r_1.png")
    change(scene_folder, frame(file_path="../r_0.png"))
    change(scene_folder, lambda c: c["frames"][1].update(file_path=str(tmp_path / "r_1")))
    assert load_scene(str(scene_folder)).split("train").load().shape == (12, 24, 24, 4)
    (scene_folder / "train" / "r_2.png").unlink()
    (scene_folder / "train" / "r_2.png").symlink_to("/etc/passwd")
    with pytest.raises(SceneError, match="r_2.png is no PNG, JPEG or WebP file"):
        load_scene(str(scene_folder))


def test_truncated_image(scene_folder):
    file = scene_folder / "train" / "r_5.png"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(SceneError, match="r_5.png cannot be read, is it truncated"):
        load_scene(str(scene_folder)).split("train").load()


def test_image_of_another_size(scene_folder):
    Image.new("RGBA", (30, 24)).save(scene_folder / "train" / "r_4.png")
    with pytest.raises(SceneError, match="r_4.png is 30x24, but r_0.png is 24x24"):
        load_scene(str(scene_folder))


@pytest.mark.parametrize("downscale", [float("nan"), 0, -2, 1e-300, 5e-324, 1e-4, 1e300, float("inf"), 100])
def test_bad_downscale(toy_scene, downscale: float):
    with pytest.raises(SceneError, match="data.downscale (must be a number|.* leaves nothing of 24x24)"):
        load_scene(str(toy_scene), downscale=downscale)


def test_bad_paths(tmp_path, toy_scene):
    for path, message in {
        "": "no scene given: set data.path",
        "nowhere": "data.path: nowhere is not a folder",
        str(toy_scene / "transforms_train.json"): "transforms_train.json is not a folder",
        "~nosuchuser/scene": "data.path: ~nosuchuser/scene cannot be a folder",
        "n" * 5000: r"data.path: nnn.*n\.\.\.n.* is not a folder",
        "a\0b": r"data.path: a.x00b is not a folder",
        "\ud800": "data.path: .ud800 cannot be a folder",
        str(tmp_path): "no known scene format in .*nerf_synthetic needs transforms_train.json",
    }.items():
        with pytest.raises(SceneError, match=message):
            load_scene(path)
    with pytest.raises(SceneError, match="unknown format 'ply'; known: auto, nerf_synthetic"):
        load_scene(str(toy_scene), format="ply")
    with pytest.raises(SceneError, match="has no split 'val'; it has train, test"):
        load_scene(str(toy_scene)).split("val")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
def test_names_with_umlauts_in_any_locale(scene_folder, locale):
    (scene_folder / "train").rename(scene_folder / "Übung")
    change(scene_folder, lambda c: [f.update(file_path=f["file_path"].replace("train", "Übung")) for f in c["frames"]])
    content = json.loads((scene_folder / "transforms_train.json").read_text())
    (scene_folder / "transforms_train.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    folder = scene_folder.rename(scene_folder.with_name("Szene ä"))
    code = "import sys; from nerfkit.data.load import load_scene; load_scene(sys.argv[1]).split('train').load()"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | locale
    subprocess.run([sys.executable, "-c", code, folder], env=environment, check=True, timeout=120)


def test_more_images_than_memory(toy_scene, monkeypatch):
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: 100)
    with pytest.raises(SceneError, match="raise data.downscale"):
        load_scene(str(toy_scene)).split("train").load()


def test_decoding_takes_no_more_memory_than_is_free(tmp_path, monkeypatch):
    """A thread needs 17 bytes a pixel: 5 for decoding a PNG, 12 for resizing it."""
    views = load_scene(str(write_scene(tmp_path, counts={"train": 12})), downscale=2).split("train")
    one = 17 * 24 * 24
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for room, n_threads in ((100 * one, 8), (3.5 * one, 3), (one, 1)):
        monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda room=room: views.bytes() + int(room))
        reports = []
        assert views.load(reports.append).shape == (12, 12, 12, 4)
        assert len(reports) == 1 and f"while {n_threads} at a time are decoded" in reports[0]
    large = load_scene(str(tmp_path), downscale=0.5).split("train")  # resizing makes more than it reads
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: large.bytes() + 12 * 48 * 48)
    with pytest.raises(SceneError, match="more to decode one"):
        large.load()
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: views.bytes() + one - 1)
    with pytest.raises(SceneError, match="more to decode one"):
        views.load()


def outcome(folder: Path) -> bool:
    """Whether the scene loads; only a SceneError of one line may come of it else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scene = load_scene(str(folder))
            assert scene.split("train").load(lambda text: None).dtype == torch.uint8
            assert scene.split("train").cameras.camera_to_world.isfinite().all()
        except SceneError as error:
            assert str(error).isprintable(), repr(str(error))
            return False
        return True


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """A few bytes changed, cut out or doubled."""
    for _ in range(generator.integers(1, 4)):
        start, length = int(generator.integers(len(content))), int(generator.integers(1, 12))
        part = content[start : start + length]
        flipped = bytes([part[0] ^ 1 << int(generator.integers(8))]) + part[1:]
        part = [generator.bytes(length), b"", part + part, flipped][generator.integers(4)]
        content = content[:start] + part + content[start + length :] or b"0"
    return content


VALUES = [None, True, -1, 0, 1e300, 10**400, float("nan"), "", "text", "1.5", [], [[]], {}, "/", "\0", "\ud800"]


def with_another_value(content, generator: np.random.Generator) -> None:
    """Put something else in a random place of what was JSON."""
    place = content
    while True:
        key = generator.choice(list(place)) if isinstance(place, dict) else int(generator.integers(len(place)))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or generator.random() < 0.2:
            place[key] = VALUES[generator.integers(len(VALUES))]
            return
        place = inner


def test_mutated_transforms(tmp_path):
    folder = write_scene(tmp_path, size=6, counts={"train": 2})
    file, generator = folder / "transforms_train.json", np.random.default_rng(0)
    text = json.dumps(json.loads(file.read_text()) | {"w": 6, "h": 6, "cx": 3, "cy": 3, "k1": 0}).encode()
    loaded = set()
    for trial in range(300):
        content = json.loads(text)
        with_another_value(content, generator)
        file.write_bytes(mutated(text, generator) if trial % 2 else json.dumps(content).encode())
        loaded.add(outcome(folder))
    assert loaded == {True, False}, "both happen among them"


def test_mutated_images(tmp_path):
    folder = write_scene(tmp_path, size=6, counts={"train": 2})
    file, generator = folder / "train" / "r_1.png", np.random.default_rng(0)
    image = Image.open(file).copy()
    files = []
    for format in ("PNG", "JPEG", "WEBP"):
        tags = Image.Exif()
        tags[274] = 1
        (image.convert("RGB") if format == "JPEG" else image).save(tmp_path / "saved", format, exif=tags)
        files.append((tmp_path / "saved").read_bytes())
    loaded = set()
    for trial in range(300):
        file.write_bytes(mutated(files[trial % 3], generator))
        loaded.add(outcome(folder))
    assert loaded == {True, False}, "both happen among them"


@pytest.mark.parametrize(
    "name, kind", [("transforms.json", "instant-ngp"), ("poses_bounds.npy", "LLFF"), ("sparse", "COLMAP")]
)
def test_formats_that_are_not_supported_yet_are_named(tmp_path, name: str, kind: str):
    (tmp_path / name).mkdir()
    with pytest.raises(SceneError, match=f"{kind}.*not supported yet"):
        load_scene(str(tmp_path))
