# SPDX-License-Identifier: Apache-2.0
"""Lenses of a transforms.json: models, coefficients, angles of view, sizes; of the file or of a frame."""

import json
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.transforms.reader import read
from tests.captures import check_refused
from tests.test_transforms_capture import FOCAL, SIZE, content_of, frame_of, picture, put

K = {"k1": 0.1, "k2": 0.02}
P = {"p1": 0.003, "p2": -0.004}
F = (50.0, 51.0, 19.5, 15.5)
RADIAL4 = "RADIAL4_TANGENTIAL"


def lens_of(folder: Path, **values) -> Lens:
    return read(put(folder, content_of(**values))).images[0].lens


@pytest.mark.parametrize(
    "values, model, params",
    [
        ({}, "PINHOLE", F),
        ({"k1": 0, "k2": 0.0, "p1": 0, "k4": 0, "k6": 0}, "PINHOLE", F),
        ({"camera_model": "SIMPLE_PINHOLE", "fl_y": 50}, "SIMPLE_PINHOLE", (50.0, 19.5, 15.5)),
        ({**K, **P}, "OPENCV", (*F, 0.1, 0.02, 0.003, -0.004)),
        ({"camera_model": "SIMPLE_RADIAL", "k1": 0.1, "fl_y": 50}, "SIMPLE_RADIAL", (50.0, 19.5, 15.5, 0.1)),
        ({"camera_model": "SIMPLE_RADIAL", "k1": 0.1}, "OPENCV", (*F, 0.1, 0, 0, 0)),
        ({"camera_model": "RADIAL", **K, "fl_y": 50}, "RADIAL", (50.0, 19.5, 15.5, 0.1, 0.02)),
        ({"camera_model": "OPENCV", **K, **P, "k3": 0.5, "k4": 0}, RADIAL4, (*F, 0.1, 0.02, 0.5, 0, 0.003, -0.004)),
        ({"applied_scale": 1, "k4": 0.5}, RADIAL4, (*F, 0, 0, 0, 0.5, 0, 0)),
        ({"distortion_params": [1e-3, 2e-3, 0, 0, 3e-3, 4e-3]}, "OPENCV", (*F, 1e-3, 2e-3, 3e-3, 4e-3)),
        ({"distortion_params": [1e-3, 2e-3, 5e-3, 6e-3, 0, 0]}, RADIAL4, (*F, 1e-3, 2e-3, 5e-3, 6e-3, 0, 0)),
        ({"camera_model": "OPENCV_FISHEYE", **K, "k3": 0.3, "k4": 0.4}, "OPENCV_FISHEYE", (*F, 0.1, 0.02, 0.3, 0.4)),
        ({"is_fisheye": True, "aabb_scale": 1, "k3": 0.3}, "OPENCV_FISHEYE", (*F, 0, 0, 0.3, 0)),
        ({"is_fisheye": True, "camera_model": "OPENCV", "k1": 0.1}, "OPENCV", (*F, 0.1, 0, 0, 0)),
        ({"is_fisheye": 1, "distortion_params": [0.1, 0, 0, 0.2, 0, 0]}, "OPENCV_FISHEYE", (*F, 0.1, 0, 0, 0.2)),
    ],
)
def test_lenses(tmp_path, values: dict, model: str, params: tuple):
    assert lens_of(tmp_path, **values) == Lens(model, params, 40, 30)


def test_camera_model_beats_is_fisheye_and_says_so(tmp_path):
    notes = read(put(tmp_path, content_of(is_fisheye=True, camera_model="PINHOLE"))).notes
    assert any("is_fisheye" in note.text and "3 of 3" in note.text for note in notes)


@pytest.mark.parametrize("by", [{"x_fov": 60.0}, {"camera_angle_x": np.pi / 3}, {"x_fov": 60, "camera_angle_x": 1.05}])
def test_angles_of_view(tmp_path, by: dict):
    content = {**SIZE, **by, "frames": content_of()["frames"]}
    focal, other, *center = read(put(tmp_path, content)).images[0].lens.params
    assert focal == other == pytest.approx(20 / np.tan(np.pi / 6), rel=0.01) and center == [20, 15]
    focal, other, *_ = read(put(tmp_path, content | {"y_fov": 90})).images[0].lens.params
    assert focal == pytest.approx(20 / np.tan(np.pi / 6), rel=0.01) and other == pytest.approx(15)


def test_intrinsics_of_frames_beat_those_of_the_file(tmp_path):
    content = content_of(4, k1=0.1)
    frame_of(content, 1, fl_x=70.0, k1=0.2, w=80, h=60)
    frame_of(content, 2, camera_model="OPENCV_FISHEYE", k1=0.3, cx=3.0)
    lenses = [image.lens for image in read(put(tmp_path, content)).images]
    assert lenses[0] is lenses[3] and lenses[0].params == (*F, 0.1, 0, 0, 0)
    assert lenses[1] == Lens("OPENCV", (70, 70, 19.5, 15.5, 0.2, 0, 0, 0), 80, 60)
    assert lenses[2] == Lens("OPENCV_FISHEYE", (50, 51, 3, 15.5, 0.3, 0, 0, 0), 40, 30)


def test_intrinsics_in_every_frame(tmp_path):
    content = {"camera_model": "OPENCV", "frames": content_of()["frames"]}
    for index in range(3):
        frame_of(content, index, **SIZE, **FOCAL, k1=0.1 * index)
    assert [image.lens.model for image in read(put(tmp_path, content)).images] == ["PINHOLE", "OPENCV", "OPENCV"]
    for key in ("fl_x", "w"):
        broken = json.loads(json.dumps(content))
        del broken["frames"][1][key]
        check_refused(read, put(tmp_path, broken), "frame 1", key)


def test_sizes_of_files_where_none_are_stated(tmp_path):
    content = {"fl_x": 50.0, "frames": content_of()["frames"]}
    check_refused(read, put(tmp_path, content), "'w'", "images/0.png", "frame 0")
    picture(tmp_path / "images/1.png", (40, 32))
    picture(tmp_path / "images/2.png", (24, 20))
    lenses = [image.lens for image in read(tmp_path).images]
    assert [(lens.width, lens.height) for lens in lenses] == [(40, 32), (40, 32), (24, 20)]
    assert lenses[2].params == (50, 50, 12, 10)
