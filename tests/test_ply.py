# SPDX-License-Identifier: Apache-2.0
"""PLY files of points: what is read, what is refused and named, and that writing is read back."""

import struct
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.capture import Points
from nerfkit.data.ply import read_points, write_points
from nerfkit.errors import SceneError
from tests.captures import check_refused, mutated

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
NORMALS = "property double nx\n"


@pytest.mark.parametrize(
    "text, body",
    [
        (header(), BODY),
        (header().replace("\n", "\r\n"), BODY.replace(b"\n", b"\r\n")),
        (header(before=FACES), b"3 0 1 2\n" + BODY),
        (header(format="binary_little_endian"), BINARY),
        (
            header(XYZ.replace("float", "double") + NORMALS + RGB, "binary_little_endian"),
            struct.pack("<4d3B4d3B", 1, 2, 3, 9, 10, 20, 30, -1.5, 20, 0, 9, 255, 0, 7),
        ),
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
    "empty": ("", b"", "PLY"),
    "big_endian": (header(format="binary_big_endian"), BINARY, "binary_big_endian"),
    "no_vertex": (header().replace("vertex", "corner"), BODY, "vertex"),
    "no_z": (header(XYZ.replace(" z", " w")), BODY, "'z'"),
    "z_integer": (header(XYZ.replace("float z", "int z")), BODY, "'z'", "float"),
    "float_colors": (header(XYZ + RGB.replace("uchar", "float")), BODY, "'red'", "uchar"),
    "x_twice": (header(XYZ + XYZ), BODY, "twice"),
    "list": (header(XYZ + "property list uchar int v\n"), BODY, "list", "vertex"),
    "nonsense": (header(after="propertee\n"), BODY, "propertee"),
    "truncated_text": (header(count=3), BODY, "3"),
    "truncated_binary": (header(format="binary_little_endian"), BINARY[:-1], "truncated", "2"),
    "text_in_a_row": (header(), BODY.replace(b"20", b"xx"), "6 numbers"),
    "color_256": (header(), BODY.replace(b"255", b"256"), "'red'", "255"),
    "nan": (header(), BODY.replace(b"2e1", b"nan"), "vertex 1", "nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_by_name(tmp_path, name: str):
    text, body, *named = BAD[name]
    check_refused(read_points, put(tmp_path, text, body), "p.ply", *named)


@pytest.mark.parametrize("text, body", [(header(), BODY), (header(format="binary_little_endian"), BINARY)])
def test_mutated(tmp_path, text: str, body: bytes):
    generator, loaded = np.random.default_rng(0), set()
    for _ in range(200):
        try:
            read_points(put(tmp_path, "", mutated(text.encode() + body, generator)))
            loaded.add(True)
        except SceneError as error:
            assert str(error).isprintable()
            loaded.add(False)
    assert loaded == {True, False}


def test_written_and_read_back(tmp_path):
    generator, count = np.random.default_rng(0), 1000
    nothing = np.zeros(count, dtype=np.int64)
    colors = generator.integers(0, 256, (count, 3)).astype(np.uint8)
    points = Points(generator.normal(size=(count, 3)), colors, nothing, nothing)
    write_points(tmp_path / "p.ply", points)
    again = read_points(tmp_path / "p.ply")
    assert np.array_equal(again.positions, points.positions) and np.array_equal(again.colors, points.colors)
