# SPDX-License-Identifier: Apache-2.0
"""COLMAP records made by hand: what they mean; damaged ones are errors that name the place."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.colmap import reader as colmap
from nerfkit.data.readers.colmap.reader import read_model
from tests.captures import check_refused, is_read, mutated
from tests.naming import assert_names
from tests.test_colmap import a_capture, assert_equal, write

NAN = float("nan")
CAMERA = struct.pack("<IiQQ4d", 7, 1, 64, 48, 50, 51, 32, 24)
TEXT = {
    "cameras": "# remark\n7 PINHOLE 64 48 50 51 32 24\n",
    "images": "# remark\n\n1 1 0 0 0 1 2 3 7 left eye/a b.png \n5 6 -1 7 8 9\n2 1 0 0 0 1 2 3 7 b.png\n\n",
    "points3D": "9 1 2 3 10 20 255 .5 1 0\n\n10 4 5 6 0 0 0 -1\n",
}


def image_bytes(image_id: int = 1, pose=(1, 0, 0, 0, 1, 2, 3), camera_id: int = 7, name: bytes = b"a.png") -> bytes:
    return struct.pack("<I7dI", image_id, *pose, camera_id) + name + b"\0" + struct.pack("<Q2dq", 1, 5, 6, -1)


def point_bytes(position=(1, 2, 3), track=((1, 0),)) -> bytes:
    head = struct.pack("<Q3d3BdQ", 9, *position, 10, 20, 255, 0.5, len(track))
    return head + b"".join(struct.pack("<2I", *element) for element in track)


def binary_model(folder: Path, cameras=(CAMERA,), images=None, points=None) -> Path:
    """A model of records made by hand."""
    points = points or (point_bytes(),)
    images = (image_bytes(), image_bytes(2, name=b"b.png")) if images is None else images
    for name, records in (("cameras", cameras), ("images", images), ("points3D", points)):
        (folder / f"{name}.bin").write_bytes(struct.pack("<Q", len(records)) + b"".join(records))
    return folder


def text_model(folder: Path, **changed: str) -> Path:
    """A text model made by hand."""
    for name, content in (TEXT | changed).items():
        (folder / f"{name}.txt").write_bytes(content.encode(errors="surrogateescape"))
    return folder


def test_records_made_by_hand(tmp_path):
    quarter = (2**0.5, 0, 0, 2**0.5, 1, 2, 3)  # of length 2, a quarter turn about z: x_camera = -y, y_camera = x
    images = (image_bytes(5, name=b"b.png"), image_bytes(3, quarter, name=b"a.png"))
    model = read_model(binary_model(tmp_path, images=images, points=(point_bytes(track=((5, 0), (3, 0), (5, 1))),)))
    assert model.cameras == {7: Lens("PINHOLE", (50, 51, 32, 24), 64, 48)}
    a, b = model.images
    np.testing.assert_allclose(a.camera_to_world, [[0, -1, 0, -2], [-1, 0, 0, 1], [0, 0, -1, -3]], atol=1e-15)
    np.testing.assert_array_equal(b.camera_to_world, [[1, 0, 0, -1], [0, -1, 0, -2], [0, 0, -1, -3]])
    assert model.points.views.tolist() == [1, 0, 1] and model.points.track_lengths.tolist() == [3]
    assert model.points.colors.tolist() == [[10, 20, 255]] and model.points.positions.tolist() == [[1, 2, 3]]
    points = (point_bytes(track=((1, 0), (77, 0))), point_bytes(track=((99, 0),)), point_bytes(track=((2, 0),)))
    model = read_model(binary_model(tmp_path, points=points))
    assert model.points.views.tolist() == [0, 1] and model.points.track_lengths.tolist() == [1, 0, 1]
    assert_names(model.notes[0], "2 of 4", "points3D.bin", "77")


def test_text_made_by_hand(tmp_path):
    model = read_model(text_model(tmp_path))
    assert [image.name for image in model.images] == ["b.png", "left eye/a b.png"]
    np.testing.assert_array_equal(model.images[0].camera_to_world, [[1, 0, 0, -1], [0, -1, 0, -2], [0, 0, -1, -3]])
    assert model.cameras == {7: Lens("PINHOLE", (50, 51, 32, 24), 64, 48)}
    assert model.points.views.tolist() == [1] and model.points.track_lengths.tolist() == [1, 0]
    windows = {name: "\ufeff" + content.replace("\n", "\r\n") for name, content in TEXT.items()}
    assert_equal(read_model(text_model(tmp_path, **windows)).images, model.images)
    stripped = read_model(text_model(tmp_path, images=TEXT["images"].strip("\n")))
    assert_equal(stripped.images, model.images)
    model = read_model(binary_model(tmp_path))
    assert [image.name for image in model.images] == ["a.png", "b.png"], "of both endings"
    assert_names(model.notes[0], "images.bin", "images.txt")


BAD_BINARY = {  # records, and what the error has to name
    "model": ({"cameras": (CAMERA[:4] + b"\x2a" + CAMERA[5:],)}, "cameras.bin", "record 0", "byte 8", "'42'"),
    "camera_more": ({"cameras": (CAMERA + b"\0",)}, "cameras.bin", "byte 64"),
    "camera_none": ({"cameras": ()}, "images.bin", "camera id 7"),
    "no_images": ({"images": ()}, "images.bin"),
    "image_cut": ({"images": (image_bytes(), image_bytes(2)[:60])}, "images.bin", "record 1", "byte 110", "170 bytes"),
    "name_long": ({"images": (image_bytes(name=b"n" * 9999),)}, "images.bin", "record 0", "4096"),
    "points2d": ({"images": (image_bytes()[:-32] + b"\xff" * 32,)}, "images.bin", "record 0", str(2**64 - 1)),
    "point_cut": ({"points": (point_bytes(), point_bytes()[:-1])}, "points3D.bin", "record 1", "byte 67"),
    "track": ({"points": (point_bytes()[:-16] + b"\xff" * 16,)}, "points3D.bin", "record 0", str(2**64 - 1)),
    "point_nan": ({"points": (point_bytes(), point_bytes((1, NAN, 2)))}, "points3D.bin", "record 1", "byte 67", "nan"),
}


@pytest.mark.parametrize("name", BAD_BINARY)
def test_bad_binary_records(tmp_path, name: str):
    records, *named = BAD_BINARY[name]
    check_refused(read_model, binary_model(tmp_path, **records), *named)


def image_line(image_id="1", pose="1 0 0 0 1 2 3", camera_id="7", name="a.png") -> str:
    return f"{image_id} {pose} {camera_id} {name}\n\n"


BAD_TEXT = {
    "cameras": {
        "7 PINHOL 64 48 50 51 32 24": ("line 1", "PINHOL"),
        "\n7 PINHOLE 64 48 50 51 32": ("line 2", "PINHOLE", "fx, fy, cx, cy", "missing"),
        "7 PINHOLE 64 48 50 51 32 24 1": ("line 1", "'1'", "more"),
        TEXT["cameras"] * 2: ("line 4", "id 7"),
        "7 PINHOLE 64.5 48 50 51 32 24": ("line 1", "64.5"),
        "7 PINHOLE 64 48 50 -5 32 24": ("line 1", "fy", "-5"),
        "7 PINHOLE 64 48 50 51 32 nan": ("line 1", "nan"),
    },
    "images": {
        "1 1 0 0 0 1 2 3": ("line 1", "the camera id is missing"),
        image_line(pose="nan 0 0 0 1 2 3"): ("line 1", "nan"),
        image_line(pose="0 0 0 0 1 2 3"): ("line 1", "a.png", "0.0"),
        image_line(pose="1 0 0 0 1 2 -1e300"): ("line 1", "-1e+300"),
        image_line()[:-1] + image_line(name="b c d.png"): ("line 2", "d.png"),
        image_line()[:-1] + "1 2 3 4\n": ("line 2", "line 1", "4"),
        image_line(camera_id="8"): ("line 1", "a.png", "id 8", "7"),
        image_line() + image_line("2"): ("line 3", "a.png", "twice"),
        image_line() + image_line("2", name="./a.png"): ("line 3", "./a.png"),
        image_line() + image_line(name="b.png"): ("line 3", "id 1"),
        image_line(name="a\0.png"): ("line 1", "a\\x00.png"),
        image_line(name="\udcfc.png"): (r"\xfc.png", "UTF-8"),
        image_line(name="a/../../x"): ("a/../../x",),
    },
    "points3D": {
        "9 1 2 3 10 20 255": ("line 1", "9 1 2 3 10 20 255"),
        "\n9 1 2 3 10 20 256 0": ("line 2", "256"),
        TEXT["points3D"] + "11 nan 5 6 0 0 0 -1": ("line 4", "nan"),
        f"9 1 2 3 10 20 255 0 {10**30} 0": ("line 1",),
    },
}


@pytest.mark.parametrize("part, content", [(part, content) for part, bad in BAD_TEXT.items() for content in bad])
def test_bad_text_records(tmp_path, part: str, content: str):
    named = BAD_TEXT[part][content]
    check_refused(read_model, text_model(tmp_path, **{part: content}), f"{part}.txt", *named)


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_absurd_counts_take_no_memory(tmp_path, part: str):
    file = binary_model(tmp_path) / f"{part}.bin"
    file.write_bytes(struct.pack("<Q", 10**9) + file.read_bytes()[8:])
    tracemalloc.start()
    check_refused(read_model, tmp_path, f"{part}.bin", str(10**9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_damaged_models(tmp_path, form: str):
    """Cut at any length, or with some bytes changed: read, or refused in a line."""
    model = tmp_path / "sparse" / "0"
    write(model, a_capture(["a.png", "b.png", "c.png"], ("OPENCV", "PINHOLE"), n_points=12), form)
    assert is_read(colmap.read, tmp_path)
    generator, loaded = np.random.default_rng(0), set()
    for file in sorted(model.iterdir()):
        content = file.read_bytes()
        for length in [*range(0, len(content), 100), len(content) - 1]:
            file.write_bytes(content[:length])
            is_whole = is_read(colmap.read, tmp_path)
            assert not (is_whole and form == "bin"), "a binary file that is cut is an error"
        for _ in range(20):
            file.write_bytes(mutated(content, generator))
            loaded.add(is_read(colmap.read, tmp_path))
        file.write_bytes(content)
    assert loaded == {True, False}, "both happen among them"
