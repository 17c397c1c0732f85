# SPDX-License-Identifier: Apache-2.0
"""Scenes of NeRF-synthetic files: read right, or an error names the file, the frame, the key and the value."""

import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.load import load_scene
from nerfkit.errors import RunError, SceneError, UserError
from nerfkit.safe_io import native_name, printable, read_json, read_regular
from tests.captures import check_refused
from tests.naming import assert_names, raises_mentioning
from tests.toy_scene import HEIGHT, WIDTH, change, write_scene


@pytest.mark.parametrize("extension, channels", [("webp", 4), ("jpg", 3)])
def test_images_of_any_kind_that_are_no_squares(tmp_path, extension: str, channels: int):
    folder = write_scene(tmp_path, size=(30, 18), counts={"train": 2}, one_camera=True, extension=extension)
    views = load_scene(str(folder)).split("train")
    assert views.load().stack().shape == (2, 18, 30, channels) and views.cameras.center[0].tolist() == [15, 9]
    assert views.cameras.focal[0, 0] == views.cameras.focal[0, 1]
    half = load_scene(str(folder), downscale=2).split("train")
    assert half.load().stack().shape == (2, 9, 15, channels) and half.cameras.center[0].tolist() == [7.5, 4.5]


def test_downscale_averages_areas_weighted_by_alpha(scene_folder):
    image = np.zeros((HEIGHT, WIDTH, 4), dtype=np.uint8)
    image[0, 0], image[0, 1] = (200, 100, 0, 255), (0, 0, 255, 0)  # the second is transparent
    Image.fromarray(image).save(scene_folder / "train" / "r_0.png")
    views = load_scene(str(scene_folder), downscale=2).split("train")
    red, green, blue, alpha = views.load().stack()[0, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx((200, 100, 0), abs=3) and alpha == pytest.approx(64, abs=1)
    full = load_scene(str(scene_folder)).split("train").cameras
    torch.testing.assert_close(views.cameras.focal * 2, full.focal)


def test_names_are_unique(scene_folder):
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:2] == ["r_0", "r_1"]
    (scene_folder / "other").mkdir()
    shutil.copy(scene_folder / "train" / "r_0.png", scene_folder / "other" / "R_3.png")
    change(scene_folder, lambda c: c["frames"][0].update(file_path="other/R_3"))
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:4] == ["0000_R_3", "0001_r_1", "0002_r_2", "0003_r_3"]


def test_decoding_takes_no_more_memory_than_is_free(tmp_path, monkeypatch):
    """A thread needs 17 bytes a pixel: 5 for decoding a PNG, 12 for resizing it."""
    views = load_scene(str(write_scene(tmp_path, counts={"train": 12})), downscale=2).split("train")
    one = 17 * WIDTH * HEIGHT
    monkeypatch.setattr("nerfkit.data.scene.cores", lambda: 8)
    counts, pool = [], ThreadPoolExecutor
    monkeypatch.setattr("nerfkit.data.scene.ThreadPoolExecutor", lambda count: counts.append(count) or pool(count))
    for room, n_threads in ((100 * one, 8), (3.5 * one, 3), (one, 1)):
        monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda room=room: views.bytes() + int(room))
        assert views.load().stack().shape == (12, HEIGHT // 2, WIDTH // 2, 4)
        assert counts.pop() == n_threads
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: views.bytes() + one - 1)
    with raises_mentioning(SceneError, "images", "decode", "data.downscale"):
        views.load()


# ---- scenes that cannot be read


def frame(**values):
    return lambda content: content["frames"][0].update(values)


def everywhere(**values):
    """An edit that gives the file other values; of two that give a focal length, the angle goes."""
    return lambda content: ("fl_x" in values and content.pop("camera_angle_x"), content.update(values))


EYE = np.eye(4)
TRANSPOSED = [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 2, 3, 1]]
FILE = "transforms_train.json"
FRAME = (FILE, "frame 0")


def load(folder: str | Path, **options) -> None:
    load_scene(str(folder), **options).split("train").load()


EDITS = {  # a change of the file, and what the error has to name
    "no_frames_key": (lambda c: c.pop("frames"), FILE, "frames", "missing"),
    "frame_null": (lambda c: c["frames"].__setitem__(1, None), FILE, "frame 1", "None"),
    "file_path_device": (frame(file_path="/dev/zero"), "/dev/zero", "device"),
    "no_matrix": (lambda c: c["frames"][0].pop("transform_matrix"), *FRAME, "transform_matrix", "4x4 or 3x4"),
    "matrix_ragged": (lambda c: c["frames"][0]["transform_matrix"][1].pop(), *FRAME, "transform_matrix", "[4, 4]"),
    "value_nan": (frame(transform_matrix=[[float("nan")] * 4] * 4), *FRAME, "transform_matrix", "nan"),
    "transposed": (frame(transform_matrix=TRANSPOSED), *FRAME, "1.0, 2.0, 3.0", "transposed"),
    "mirrored": (frame(transform_matrix=np.diag([1.0, 1, -1, 1]).tolist()), *FRAME, "determinant -1", "mirrored"),
    "no_intrinsics": (lambda c: c.pop("camera_angle_x"), *FRAME, "intrinsics", "missing", "camera_angle_x"),
    "center_outside": (everywhere(fl_x=1111.0, cx=400.0, cy=400.0), *FRAME, "principal point", "(400, 400)", "26x22"),
    "width_zero": (everywhere(w=0, h=22), *FRAME, "'w'", "0"),
    "another_shape": (everywhere(w=100, h=22), "r_0.png", "100x22", "26x22"),
    "mask": (frame(mask_path="m.png"), *FRAME, "mask_path", "alpha"),
    "one_image_twice": (frame(file_path="train/../train/r_1.png"), *FRAME, "frame 1", "r_1.png"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_transforms(scene_folder, name: str):
    edit, *named = EDITS[name]
    change(scene_folder, edit)
    check_refused(load, scene_folder, *named)


def test_images_elsewhere(scene_folder, tmp_path):
    (scene_folder / "train" / "r_0.png").rename(tmp_path / "r_0.png")
    (scene_folder / "train" / "r_1.png").rename(tmp_path / "r_1.png")
    change(scene_folder, frame(file_path="../r_0.png"))
    change(scene_folder, lambda c: c["frames"][1].update(file_path=str(tmp_path / "r_1")))
    assert load_scene(str(scene_folder)).split("train").load().stack().shape == (12, 22, 26, 4)
    (scene_folder / "train" / "r_2.png").unlink()
    (scene_folder / "train" / "r_2.png").symlink_to("/etc/passwd")
    check_refused(load, scene_folder, "r_2.png")


def test_image_of_another_size(scene_folder):
    Image.new("RGBA", (30, 22)).save(scene_folder / "train" / "r_4.png")
    cameras = load_scene(str(scene_folder)).split("train").cameras
    assert cameras.sizes()[3:6] == [(26, 22), (30, 22), (26, 22)]
    assert (cameras.focal[4] / cameras.focal[3]).tolist() == pytest.approx([30 / 26] * 2), "of one angle of view"
    change(scene_folder, everywhere(w=26, h=22))
    check_refused(load, scene_folder, "r_4.png", "30x22", "26x22")


def test_bad_paths_and_options(toy_scene, tmp_path):
    for path, named in {
        "": "train FOLDER", str(toy_scene / FILE): FILE, "~nosuchuser/scene": "~nosuchuser/scene", "n" * 5000: "nnn",
        "a\0b": "a\\x00b", "\ud800": "\\ud800",
    }.items():  # fmt: skip
        check_refused(load, path, named, error=UserError)
    for downscale in (float("nan"), 0, 1e-4, 100):
        check_refused(
            partial(load, downscale=downscale), toy_scene, "data.downscale", f"{downscale:g}", error=UserError
        )
    check_refused(partial(load, format="ply"), toy_scene, "'ply'", "nerf_synthetic")
    with raises_mentioning(SceneError, "'val'", "train", "test"):
        load_scene(str(toy_scene)).split("val")
    (tmp_path / "notes.txt").touch()
    message = check_refused(load, tmp_path, "transforms_train.json")
    assert_names(message, "nerf_synthetic", "transforms.json", "colmap", "sparse/0", "llff", "poses_bounds.npy")


def test_a_json_file_is_read_or_refused_in_a_line(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"\xc3\xbc": [1, 2.5, NaN, "\xe2\x82\xac"]}')
    (tmp_path / "link.json").symlink_to(file)
    content = read_json(tmp_path / "link.json", RunError)
    assert content["ü"][:2] == [1, 2.5] and content["ü"][3] == "€"
    for damaged, *named in (
        (b'{"a": [1, 2', "JSON"),
        ('{"ü": 1}'.encode("latin-1"), "UTF-8", "0xfc", "2"),
        (b"[" * 50_000 + b"]" * 50_000, "nested"),
        (b"[-1" + b"0" * 5000 + b"]", "5002"),
        (b"[" + b"1," * 90_000 + b"1]", "180003", "150000"),
    ):
        file.write_bytes(damaged)
        with raises_mentioning(SceneError, "camera path", file, *named) as caught:
            read_json(file, SceneError, "camera path", 150_000)
        assert "\n" not in str(caught.value)


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        kinds = {"pipe": tmp_path / "pipe", "socket": tmp_path / "socket", "folder": tmp_path, "device": "/dev/zero"}
        for kind, path in kinds.items():
            with raises_mentioning(SceneError, path, kind):
                read_regular(Path(path), 1000, "image", SceneError)
    with raises_mentioning(RunError, "/proc/self/maps"):
        read_regular(Path("/proc/self/maps"), 10**6, "file", RunError)


def test_names_are_shown_as_one_short_line():
    assert native_name("Bäume/ü.png") == "Bäume/ü.png"
    assert printable(Path("a/b.png")) == "a/b.png" and printable("a\nb\x1b[31m\udcff") == r"a\nb\x1b[31m\udcff"
    assert len(printable("x" * 10**5)) < 250 and "(100000 characters)" in printable("x" * 10**5)
