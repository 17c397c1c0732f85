# SPDX-License-Identifier: Apache-2.0
"""Scenes that cannot be read: an error names the file, the frame, the key and the value; nothing else comes of them."""

import json
import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.data.load import load_scene
from nerfkit.errors import SceneError
from tests.captures import check_refused, mutated, with_another_value
from tests.naming import raises_naming
from tests.toy_scene import change, write_scene


def frame(**values):
    """An edit that gives frame 0 other values."""
    return lambda content: content["frames"][0].update(values)


def everywhere(**values):
    """An edit that gives the file other values; of two that give a focal length, the angle goes."""
    return lambda content: ("fl_x" in values and content.pop("camera_angle_x"), content.update(values))


def matrix(row: int, column: int, value):
    """An edit that changes one value of the matrix of frame 0."""
    return lambda content: content["frames"][0]["transform_matrix"][row].__setitem__(column, value)


EYE = np.eye(4)
TRANSPOSED = EYE.copy()
TRANSPOSED[3, :3] = 1, 2, 3
FILE = "transforms_train.json"
FRAME = (FILE, "frame 0")


def load(folder: str | Path, **options) -> None:
    """Load a scene and its images."""
    load_scene(str(folder), **options).split("train").load()


EDITS = {  # a change of the file, and what the error has to name
    "no_frames_key": (lambda c: c.pop("frames"), FILE, "frames", "missing"),
    "frame_null": (lambda c: c["frames"].__setitem__(1, None), FILE, "frame 1", "None"),
    "no_file_path": (lambda c: c["frames"][0].pop("file_path"), *FRAME, "file_path", "missing"),
    "file_path_number": (frame(file_path=5), *FRAME, "file_path", "5"),
    "file_path_device": (frame(file_path="/dev/zero"), "/dev/zero", "device"),
    "no_matrix": (lambda c: c["frames"][0].pop("transform_matrix"), *FRAME, "transform_matrix", "missing"),
    "matrix_empty": (frame(transform_matrix=[]), *FRAME, "transform_matrix", "0 rows"),
    "matrix_ragged": (lambda c: c["frames"][0]["transform_matrix"][1].pop(), *FRAME, "transform_matrix", "4, 3, 4, 4"),
    "value_text": (matrix(0, 3, "1.5"), *FRAME, "transform_matrix", "'1.5'"),
    "value_nan": (matrix(0, 3, float("nan")), *FRAME, "transform_matrix", "nan"),
    "transposed": (frame(transform_matrix=TRANSPOSED.tolist()), *FRAME, "1.0, 2.0, 3.0", "transposed"),
    "mirrored": (frame(transform_matrix=np.diag([1.0, 1, -1, 1]).tolist()), *FRAME, "determinant -1", "mirrored"),
    "scaled": (frame(transform_matrix=np.diag([2.0, 2, 2, 1]).tolist()), *FRAME, "determinant 8", "scaled"),
    "no_intrinsics": (lambda c: c.pop("camera_angle_x"), *FRAME, "intrinsics", "missing", "camera_angle_x"),
    "focal_negative": (everywhere(fl_x=-5.0), *FRAME, "fl_x", "-5.0"),
    "angle_zero": (everywhere(camera_angle_x=0), *FRAME, "camera_angle_x", "0"),
    "center_outside": (everywhere(fl_x=1111.0, cx=400.0, cy=400.0), *FRAME, "principal point", "(400, 400)", "26x22"),
    "width_zero": (everywhere(w=0, h=22), *FRAME, "'w'", "0"),
    "another_shape": (everywhere(w=100, h=22), "r_0.png", "100x22", "26x22"),
    "distorted_too_much": (everywhere(k1=-3.0), "OPENCV", "-3"),
    "model_unknown": (everywhere(camera_model="SPHERE"), *FRAME, "camera_model", "'SPHERE'"),
    "mask": (frame(mask_path="m.png"), *FRAME, "mask_path", "alpha"),
    "one_image_twice": (frame(file_path="train/../train/r_1.png"), *FRAME, "frame 1", "r_1.png"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_transforms(scene_folder, name: str):
    edit, *named = EDITS[name]
    change(scene_folder, edit)
    check_refused(load, scene_folder, *named)


def test_bad_json(scene_folder):
    for content, named in (
        (b"{", "JSON"),
        (b'{"frames": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested"),
        ('{"frames": []}'.encode("utf-16"), "UTF-8"),
    ):
        (scene_folder / FILE).write_bytes(content)
        check_refused(load, scene_folder, FILE, named)


def test_a_pipe_instead_of_a_file(scene_folder):
    for name in ("transforms_train.json", "train/r_4.png"):
        kept = (scene_folder / name).rename(scene_folder / "kept")
        os.mkfifo(scene_folder / name)
        check_refused(load, scene_folder, name, "pipe")
        kept.replace(scene_folder / name)
    (scene_folder / "transforms_val.json").symlink_to("nowhere")  # a split that is meant to be there
    check_refused(load, scene_folder, "transforms_val.json")


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
    """Each has a camera of its own size, unless the file says another."""
    Image.new("RGBA", (30, 22)).save(scene_folder / "train" / "r_4.png")
    cameras = load_scene(str(scene_folder)).split("train").cameras
    assert cameras.sizes()[3:6] == [(26, 22), (30, 22), (26, 22)]
    assert (cameras.focal[4] / cameras.focal[3]).tolist() == pytest.approx([30 / 26] * 2), "of one angle of view"
    change(scene_folder, everywhere(w=26, h=22))
    check_refused(load, scene_folder, "r_4.png", "30x22", "26x22")


@pytest.mark.parametrize("name", ["n" * 5000, "a\nb", "./train/r_99"])
def test_a_missing_image_is_left_out_and_said(scene_folder, name: str):
    change(scene_folder, frame(file_path=name))
    scene = load_scene(str(scene_folder))
    assert len(scene.split("train").cameras) == 11 and len(scene.split("train").load()) == 11
    (note,) = [note.text for note in scene.notes if "missing" in note.text]
    assert "13 of 14" in note and name.encode("unicode_escape").decode()[:20] in note
    assert note.isprintable() and len(note) < 600


def test_most_images_are_missing(scene_folder):
    for index in range(8):
        (scene_folder / "train" / f"r_{index}.png").unlink()
    check_refused(load, scene_folder, "data.path", "6 of 14", "8", "train/r_0")
    change(scene_folder, lambda c: c["frames"].__delitem__(slice(0, 2)))  # 6 of 12 are half
    assert len(load_scene(str(scene_folder)).split("train").cameras) == 4
    for file in (scene_folder / "train").iterdir():
        file.unlink()
    change(scene_folder, lambda c: c["frames"].__delitem__(slice(2, None)))
    check_refused(load, scene_folder, "no training views")


@pytest.mark.parametrize("downscale", [float("nan"), 0, -2, 1e-4, 100])
def test_bad_downscale(toy_scene, downscale: float):
    check_refused(partial(load, downscale=downscale), toy_scene, "data.downscale", f"{downscale:g}")


def test_bad_paths(tmp_path, toy_scene):
    for path, named in {
        "": "data.path",
        "nowhere": "nowhere",
        str(toy_scene / FILE): FILE,
        "~nosuchuser/scene": "~nosuchuser/scene",
        "n" * 5000: "nnn",
        "a\0b": "a\\x00b",
        "\ud800": "\\ud800",
        str(tmp_path): "transforms_train.json",
    }.items():
        check_refused(load, path, named)
    check_refused(partial(load, format="ply"), toy_scene, "'ply'", "nerf_synthetic")
    with raises_naming(SceneError, "'val'", "train", "test"):
        load_scene(str(toy_scene)).split("val")


def is_loaded(folder: Path) -> bool:
    """Whether the scene loads; only a SceneError of one line may come of it else."""
    with warnings.catch_warnings(action="ignore"):
        try:
            load(folder)
        except SceneError as error:
            assert str(error).isprintable(), repr(str(error))
            return False
        return True


def test_mutated_transforms_and_images(tmp_path):
    folder, generator = write_scene(tmp_path, size=(6, 5), counts={"train": 2}), np.random.default_rng(0)
    file, picture, loaded = folder / FILE, folder / "train" / "r_1.png", set()
    text = json.dumps(json.loads(file.read_text()) | {"w": 6, "h": 5, "cx": 3, "cy": 2, "k1": 0}).encode()
    for trial in range(150):
        content = json.loads(text)
        with_another_value(content, generator)
        file.write_bytes(mutated(text, generator) if trial % 2 else json.dumps(content).encode())
        loaded.add(is_loaded(folder))
    assert loaded == {True, False}, "both happen among them"
    file.write_bytes(text)
    image, tags, files, loaded = Image.open(picture).copy(), Image.Exif(), [], set()
    tags[274] = 1
    for format in ("PNG", "JPEG", "WEBP"):
        (image.convert("RGB") if format == "JPEG" else image).save(tmp_path / "saved", format, exif=tags)
        files.append((tmp_path / "saved").read_bytes())
    for trial in range(150):
        picture.write_bytes(mutated(files[trial % 3], generator))
        loaded.add(is_loaded(folder))
    assert loaded == {True, False}, "both happen among them"


def test_a_folder_of_no_format_says_what_each_needs(tmp_path):
    message = check_refused(load, tmp_path, "transforms_train.json")
    for name in ("nerf_synthetic", "transforms.json", "colmap", "sparse/0", "llff", "poses_bounds.npy"):
        assert name in message
