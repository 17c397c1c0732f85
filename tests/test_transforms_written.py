# SPDX-License-Identifier: Apache-2.0
"""Captures written as transforms.json, and read back."""

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
from tests.test_bad_scenes import EYE
from tests.test_transforms_capture import MAIN, picture, poses
from tests.test_transforms_lenses import F

LENSES = [
    Lens("PINHOLE", F, 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 80, 60),
    Lens("OPENCV", (50.0, 52.0, 19.5, 15.5, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("RADIAL4_TANGENTIAL", (*F, 0.1, 0.02, 1 / 3, 0, 0.003, -0.004), 40, 30),
    Lens("OPENCV_FISHEYE", (*F, 0, 0, 0, 0), 40, 30),
    Lens("SIMPLE_PINHOLE", (50.0, 19.5, 15.5), 40, 30),
    Lens("SIMPLE_RADIAL", (50.0, 19.5, 15.5, -0.1), 40, 30),
    Lens("RADIAL", (50.0, 19.5, 15.5, -0.1, 0.01), 40, 30),
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


@pytest.mark.parametrize("lenses", [*([lens] * 3 for lens in LENSES), LENSES[:2], LENSES[1:4], LENSES])
def test_written_and_read_back(tmp_path, lenses: list[Lens]):
    splits = {"train": ["images/0.png"], "test": ["images/1.png"]}
    capture = capture_of(tmp_path, lenses, splits=splits, up=(0.0, 0.6, 0.8))
    write_transforms(tmp_path / MAIN, capture)
    assert_equal(read(tmp_path), capture)
    content = json.loads((tmp_path / MAIN).read_text())
    assert ("fl_x" in content["frames"][0]) == (len({lens.params[:2] for lens in lenses}) > 1)
    assert "capture of nerfstudio" in read(tmp_path).notes[0].text


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
    again = read(tmp_path / "out")
    assert [image.name for image in again.images] == ["../images/0.png", "../images/1.png"]
    assert [image.mask.resolve() for image in again.images] == [image.mask for image in capture.images]


def test_what_cannot_be_written_is_named(tmp_path):
    file = tmp_path / MAIN
    images = [PosedImage(f"{i}", tmp_path / f"{i}", EYE[:3], LENSES[0]) for i in range(2)]
    masked = [images[0], replace(images[1], mask=tmp_path / "m")]
    for capture, named in (
        (capture_of(tmp_path, [Lens("SIMPLE_RADIAL_FISHEYE", (30.0, 20, 15, 0.1), 40, 30)]), "SIMPLE_RADIAL_FISHEYE"),
        (Capture("it", "x", masked), "image 0"),
        (Capture("it", "x", masked[1:], white_ignores=True), "white"),
        (Capture("it", "x", []), "it"),
        (capture_of(tmp_path, LENSES[:1], splits={"holdout": []}), "holdout"),
    ):
        with pytest.raises(SceneError, match=named):
            write_transforms(file, capture)
        assert not file.exists()
