# SPDX-License-Identifier: Apache-2.0
"""LLFF captures, and points as PLY: axes, lenses, bounds, colors; damaged files are errors that name the place."""

import struct
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.ply import read_points
from nerfkit.data.readers import READERS
from tests.captures import check_refused, random_poses, touch
from tests.naming import assert_names

NAMES = ["b.JPG", "a 1.png", "a 10.png"]
LLFF = READERS["llff"]


def table_of(count: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    size = np.broadcast_to(np.array([48.0, 64.0, 50.0])[:, None], (count, 3, 1))
    matrices = np.concatenate([random_poses(count, generator), size], axis=2).reshape(count, 15)
    return np.concatenate([matrices, np.array([[1.5, 9.0]]) + np.arange(count)[:, None]], axis=1)


def capture_of(folder: Path, table: np.ndarray | None = None, names=tuple(NAMES), images: str = "images") -> Path:
    touch(folder, *(f"{images}/{name}" for name in names))
    np.save(folder / "poses_bounds.npy", table_of(len(names)) if table is None else table)
    return folder


def test_images_poses_lenses_and_bounds(tmp_path):
    """Of any layout of the array."""
    table = table_of(3)
    table[1, [4, 9, 14]] = 30, 40, 35.5
    capture = LLFF.read(capture_of(tmp_path, np.asfortranarray(table.astype(">f8"))))
    assert LLFF.recognises(tmp_path)
    assert (capture.name, capture.format, capture.notes, capture.points) == (tmp_path.name, "llff", (), None)
    assert [image.name for image in capture.images] == ["a 1.png", "a 10.png", "b.JPG"]
    assert [image.bounds for image in capture.images] == [(1.5, 9), (2.5, 10), (3.5, 11)]
    own = Lens("SIMPLE_PINHOLE", (50, 32, 24), 64, 48)
    assert [image.lens for image in capture.images] == [own, Lens("SIMPLE_PINHOLE", (35.5, 20, 15), 40, 30), own]


def test_the_least_reduced_images_are_taken(tmp_path):
    """Masks are matched by stem; images elsewhere, and what is no image, are not counted."""
    for images in ("images_8", "images_4"):
        capture_of(tmp_path, images=images)
    touch(tmp_path, "images_4/Thumbs.db", "images_4/._b.JPG", "images_4/more/c.png", "masks/a 1.jpg", "masks/b.png")
    capture = LLFF.read(tmp_path)
    assert {image.file.parent for image in capture.images} == {tmp_path / "images_4"}
    assert_names(str(capture.notes), "images are taken from images_4", "1 images in folders within images_4")
    assert capture.images[0].lens.width == 64, "the size is that of the original images"
    assert [image.mask and image.mask.name for image in capture.images] == ["a 1.jpg", None, "b.png"]


def test_no_images_or_too_few(tmp_path):
    np.save(tmp_path / "poses_bounds.npy", table_of(2))
    touch(tmp_path, "images_x/a.png", "images_0/a.png")
    check_refused(LLFF.read, tmp_path, "images_4", str(tmp_path))
    (tmp_path / "images").mkdir()
    check_refused(LLFF.read, tmp_path, "2 poses", "0 images", "poses_bounds.npy")
    assert not LLFF.recognises(tmp_path / "images") and not LLFF.recognises(tmp_path / "a\0b")
    check_refused(LLFF.read, tmp_path / "images", "poses_bounds.npy")


def with_value(column: int, value: float, row: int = 1) -> np.ndarray:
    table = table_of(3)
    table[row, column] = value
    return table


TABLES = {  # arrays, and what the error has to name
    "columns": (np.zeros((3, 15)), "17", "[3, 15]"),
    "position": (with_value(8, 1e200, row=2), "[2, 8]", "1e+200"),
    "height": (with_value(4, 48.5), "row 1", "height", "48.5"),
    "focal": (with_value(14, -50), "row 1", "focal length", "-50"),
    "near": (with_value(15, -1), "row 1", "nearest", "-1"),
    "far": (with_value(16, 2), "row 1", "farthest", "2"),
    "no_rotation": (with_value(0, 5, row=2), "row 2", "rotation"),
}


@pytest.mark.parametrize("name", TABLES)
def test_bad_arrays(tmp_path, name: str):
    table, *named = TABLES[name]
    check_refused(LLFF.read, capture_of(tmp_path, table), "poses_bounds.npy", *named)


XYZ = "property float x\nproperty float y\nproperty float z\n"
RGB = "property uchar red\nproperty uchar green\nproperty uchar blue\n"


def header(properties: str = XYZ + RGB, format: str = "ascii", count=2, before: str = "", after: str = "") -> str:
    return f"ply\nformat {format} 1.0\ncomment by hand\n{before}element vertex {count}\n{properties}{after}end_header\n"


def put(folder: Path, text: str, body: bytes = b"") -> Path:
    (folder / "p.ply").write_bytes(text.encode() + body)
    return folder / "p.ply"


BODY = b"1 2 3 10 20 30\n-1.5 2e1 0 255 0 7\n"
FACES = "element face 1\nproperty list uchar int vertex_indices\n"
BINARY = struct.pack("<3f3B3f3B", 1, 2, 3, 10, 20, 30, -1.5, 20, 0, 255, 0, 7)
DOUBLES = struct.pack("<4d3B4d3B", 1, 2, 3, 9, 10, 20, 30, -1.5, 20, 0, 9, 255, 0, 7)
NORMALS = "property double nx\n"


@pytest.mark.parametrize(
    "text, body",
    [
        (header(), BODY),
        (header().replace("\n", "\r\n"), BODY.replace(b"\n", b"\r\n")),
        (header(before=FACES + "comment up to end_header\n"), b"3 0 1 2\n" + BODY),
        (header(format="binary_little_endian"), BINARY),
        (header(XYZ.replace("float", "double") + NORMALS + RGB, "binary_little_endian"), DOUBLES),
    ],
)
def test_read(tmp_path, text: str, body: bytes):
    points = read_points(put(tmp_path, text, body))
    assert points.positions.dtype == np.float64 and points.positions.tolist() == [[1, 2, 3], [-1.5, 20, 0]]
    assert points.colors.dtype == np.uint8 and points.colors.tolist() == [[10, 20, 30], [255, 0, 7]]
    assert points.track_lengths.tolist() == [0, 0] and points.views.shape == (0,)


def test_without_colors_and_without_points(tmp_path):
    assert (read_points(put(tmp_path, header(XYZ), b"1 2 3\n4 5 6\n")).colors == 128).all()
    for format in ("ascii", "binary_little_endian"):
        assert read_points(put(tmp_path, header(count=0, format=format))).positions.shape == (0, 3)


BAD = {
    "z_integer": (header(XYZ.replace("float z", "int z")), BODY, "'z'", "float"),
    "x_twice": (header(XYZ + XYZ), BODY, "different names"),
    "truncated_text": (header(count=3), BODY, "3"),
    "truncated_binary": (header(format="binary_little_endian"), BINARY[:-1], "truncated", "2"),
    "color_256": (header(), BODY.replace(b"255", b"256"), "red", "255"),
    "nan": (header(), BODY.replace(b"2e1", b"nan"), "point 1", "nan"),
    "no_format": (header().replace("format ascii 1.0\n", ""), BODY, "format", "ascii"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_by_name(tmp_path, name: str):
    text, body, *named = BAD[name]
    check_refused(read_points, put(tmp_path, text, body), "p.ply", *named)


def test_code_in_a_file_is_not_run(tmp_path):
    header = "__import__('os').abort()"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    (capture_of(tmp_path) / "poses_bounds.npy").write_bytes(content)
    check_refused(LLFF.read, tmp_path, "poses_bounds.npy")
