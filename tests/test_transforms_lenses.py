# SPDX-License-Identifier: Apache-2.0
"""Lenses of a transforms.json, of the file or of a frame; and captures written as transforms.json and read back."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.readers.transforms.reader import read
from nerfkit.data.readers.transforms.writer import write_transforms
from nerfkit.errors import SceneError
from tests.captures import check_refused
from tests.test_bad_scenes import EYE
from tests.test_transforms_capture import MAIN, SIZE, content_of, frame_of, picture, poses, put

K = {"k1": 0.1, "k2": 0.02}
P = {"p1": 0.003, "p2": -0.004}
F = (50.0, 51.0, 19.5, 15.5)
RADIAL4 = "RADIAL4_TANGENTIAL"


@pytest.mark.parametrize(
    "values, model, params",
    [
        ({}, "PINHOLE", F),
        ({"k1": 0, "k2": 0.0, "p1": 0, "k4": 0, "k6": 0}, "PINHOLE", F),
        ({"camera_model": "SIMPLE_PINHOLE", "fl_y": 50}, "SIMPLE_PINHOLE", (50.0, 19.5, 15.5)),
        ({**K, **P}, "OPENCV", (*F, 0.1, 0.02, 0.003, -0.004)),
        ({"camera_model": "SIMPLE_RADIAL", "k1": 0.1, "fl_y": 50}, "SIMPLE_RADIAL", (50.0, 19.5, 15.5, 0.1)),
        ({"camera_model": "RADIAL", **K, "fl_y": 50}, "RADIAL", (50.0, 19.5, 15.5, 0.1, 0.02)),
        ({"camera_model": "OPENCV", **K, **P, "k3": 0.5, "k4": 0}, RADIAL4, (*F, 0.1, 0.02, 0.5, 0, 0.003, -0.004)),
        ({"applied_scale": 1, "k4": 0.5}, RADIAL4, (*F, 0, 0, 0, 0.5, 0, 0)),
        ({"distortion_params": [1e-3, 2e-3, 5e-3, 6e-3, 0, 0]}, RADIAL4, (*F, 1e-3, 2e-3, 5e-3, 6e-3, 0, 0)),
        ({"camera_model": "OPENCV_FISHEYE", **K, "k3": 0.3, "k4": 0.4}, "OPENCV_FISHEYE", (*F, 0.1, 0.02, 0.3, 0.4)),
        ({"is_fisheye": True, "aabb_scale": 1, "k3": 0.3}, "OPENCV_FISHEYE", (*F, 0, 0, 0.3, 0)),
        ({"is_fisheye": 1, "distortion_params": [0.1, 0, 0, 0.2, 0, 0]}, "OPENCV_FISHEYE", (*F, 0.1, 0, 0, 0.2)),
    ],
)
def test_lenses(tmp_path, values: dict, model: str, params: tuple):
    assert read(put(tmp_path, content_of(**values))).images[0].lens == Lens(model, params, 40, 30)


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


def test_sizes_of_files_where_none_are_stated(tmp_path):
    content = {"fl_x": 50.0, "frames": content_of()["frames"]}
    check_refused(read, put(tmp_path, content), "'w'", "images/0.png", "frame 0")
    picture(tmp_path / "images/1.png", (40, 32))
    picture(tmp_path / "images/2.png", (24, 20))
    lenses = [image.lens for image in read(tmp_path).images]
    assert [(lens.width, lens.height) for lens in lenses] == [(40, 32), (40, 32), (24, 20)]
    assert lenses[2].params == (50, 50, 12, 10)


LENSES = [
    Lens("PINHOLE", F, 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 80, 60),
    Lens("RADIAL4_TANGENTIAL", (*F, 0.1, 0.02, 1 / 3, 0, 0.003, -0.004), 40, 30),
    Lens("OPENCV_FISHEYE", (*F, 0, 0, 0, 0), 40, 30),
    Lens("SIMPLE_RADIAL", (50.0, 19.5, 15.5, -0.1), 40, 30),
]


def capture_of(folder: Path, lenses: list[Lens], **values) -> Capture:
    images = [
        PosedImage(f"images/{index}.png", folder / f"images/{index}.png", pose[:3], lens)
        for index, (lens, pose) in enumerate(zip(lenses, poses(len(lenses)), strict=True))
    ]
    return Capture(**({"name": folder.name, "format": "colmap", "images": images} | values))


def assert_equal(a: Capture, b: Capture) -> None:
    assert [image.name for image in a.images] == [image.name for image in b.images]
    for one, other in zip(a.images, b.images, strict=True):
        assert np.abs(one.camera_to_world - other.camera_to_world).max() <= 1e-12
        assert one.lens == other.lens and one.mask == other.mask and one.file == other.file
    assert (a.splits, a.white_ignores) == (b.splits, b.white_ignores) and a.up == (b.up and pytest.approx(b.up))


@pytest.mark.parametrize("lenses", [LENSES[1:2] * 2, LENSES[:2], LENSES[1:4], LENSES])
def test_written_and_read_back(tmp_path, lenses: list[Lens]):
    splits = {"train": ["images/0.png"], "test": ["images/1.png"]}
    capture = capture_of(tmp_path, lenses, splits=splits, up=(0.0, 0.6, 0.8))
    write_transforms(tmp_path / MAIN, capture)
    assert_equal(read(tmp_path), capture)
    content = json.loads((tmp_path / MAIN).read_text())
    assert ("fl_x" in content["frames"][0]) == (len({lens.params[:2] for lens in lenses}) > 1)
    if lenses == LENSES[:2]:
        assert {frame["camera_model"] for frame in content["frames"]} == {"OPENCV"}, "nerfstudio has one for all"


def test_written_masks_points_and_names(tmp_path):
    capture = capture_of(tmp_path, LENSES[:2])
    images = [replace(image, mask=tmp_path / f"m/{index}.png") for index, image in enumerate(capture.images)]
    for image in images:
        picture(image.mask)
    generator, nothing = np.random.default_rng(0), np.zeros(9, dtype=np.int64)
    colors = generator.integers(0, 256, (9, 3)).astype(np.uint8)
    points = Points(generator.normal(size=(9, 3)), colors, nothing, nothing)
    capture = Capture("c", "colmap", images, points)
    write_transforms(tmp_path / MAIN, capture)
    again = read(tmp_path)
    assert_equal(again, capture)
    assert np.array_equal(again.points.positions, points.positions) and np.array_equal(again.points.colors, colors)
    (tmp_path / "out").mkdir()
    write_transforms(tmp_path / "out" / MAIN, capture)
    masks = [image.mask.resolve() for image in read(tmp_path / "out").images]
    assert masks == [image.mask for image in capture.images]


def test_what_cannot_be_written_is_named(tmp_path):
    file = tmp_path / MAIN
    images = [PosedImage(f"{i}", tmp_path / f"{i}", EYE[:3], LENSES[0]) for i in range(2)]
    masked = [images[0], replace(images[1], mask=tmp_path / "m")]
    for capture, named in (
        (Capture("it", "x", masked), "image 0"),
        (Capture("it", "x", masked[1:], white_ignores=True), "white"),
        (Capture("it", "x", []), "it"),
        (capture_of(tmp_path, LENSES[:1], splits={"holdout": []}), "holdout"),
    ):
        with pytest.raises(SceneError, match=named):
            write_transforms(file, capture)
        assert not file.exists()
