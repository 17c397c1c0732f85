# SPDX-License-Identifier: Apache-2.0
"""COLMAP records made by hand: what they mean; damaged ones are errors that name the place."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.colmap import reader as colmap
from nerfkit.data.readers.colmap import text as colmap_text
from nerfkit.data.readers.colmap.model import read_model, write_model
from tests.captures import check_refused, is_read, mutated
from tests.naming import assert_names
from tests.test_colmap import FORMS, a_capture, assert_equal

NAN = float("nan")
TEXT = {
    "cameras": "# remark\n7 PINHOLE 64 48 50 51 32 24\n",
    "images": "# remark\n\n1 1 0 0 0 1 2 3 7 left eye/a b.png \n5 6 -1 7 8 9\n2 1 0 0 0 1 2 3 7 b.png\n\n",
    "points3D": "9 1 2 3 10 20 255 .5 1 0\n\n10 4 5 6 0 0 0 -1\n",
}
IMAGE = "1 1 0 0 0 1 2 3 7 a.png\n\n"


def camera_bytes(size=(64, 48), params=(50, 51, 32, 24)) -> bytes:
    return struct.pack("<IiQQ4d", 7, 1, *size, *params)


CAMERA = camera_bytes()


def image_bytes(image_id: int = 1, pose=(1, 0, 0, 0, 1, 2, 3), camera_id: int = 7, name: bytes = b"a.png") -> bytes:
    return struct.pack("<I7dI", image_id, *pose, camera_id) + name + b"\0" + struct.pack("<Q2dq", 1, 5, 6, -1)


def point_bytes(position=(1, 2, 3), track=((1, 0),)) -> bytes:
    head = struct.pack("<Q3d3BdQ", 9, *position, 10, 20, 255, 0.5, len(track))
    return head + b"".join(struct.pack("<2I", *element) for element in track)


def model_of(folder: Path, cameras=(CAMERA,), images=None, points=None) -> Path:
    """A model of records made by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    points = (point_bytes(),) if points is None else points
    images = (image_bytes(), image_bytes(2, name=b"b.png")) if images is None else images
    for name, records in (("cameras", cameras), ("images", images), ("points3D", points)):
        (folder / f"{name}.bin").write_bytes(struct.pack("<Q", len(records)) + b"".join(records))
    return folder


def text_model(folder: Path, **changed: str) -> Path:
    """A text model made by hand."""
    for name, content in (TEXT | changed).items():
        (folder / f"{name}.txt").write_bytes(content.encode())
    return folder


def test_records_made_by_hand(tmp_path):
    quarter = (2**0.5, 0, 0, 2**0.5, 1, 2, 3)  # of length 2, a quarter turn about z: x_camera = -y, y_camera = x
    images = (image_bytes(5, name=b"b.png"), image_bytes(3, quarter, name=b"a.png"))
    model = read_model(model_of(tmp_path, images=images, points=(point_bytes(track=((5, 0), (3, 0), (5, 1))),)))
    assert model.cameras == {7: Lens("PINHOLE", (50, 51, 32, 24), 64, 48)}
    a, b = model.images
    np.testing.assert_allclose(a.camera_to_world, [[0, -1, 0, -2], [-1, 0, 0, 1], [0, 0, -1, -3]], atol=1e-15)
    np.testing.assert_array_equal(b.camera_to_world, [[1, 0, 0, -1], [0, -1, 0, -2], [0, 0, -1, -3]])
    assert model.points.views.tolist() == [1, 0, 1] and model.points.track_lengths.tolist() == [3]
    assert model.points.colors.tolist() == [[10, 20, 255]] and model.points.positions.tolist() == [[1, 2, 3]]


def test_observations_of_images_that_are_not_there(tmp_path):
    points = (point_bytes(track=((1, 0), (77, 0))), point_bytes(track=((99, 0),)), point_bytes(track=((2, 0),)))
    model = read_model(model_of(tmp_path, points=points))
    assert model.points.views.tolist() == [0, 1] and model.points.track_lengths.tolist() == [1, 0, 1]
    assert_names(model.notes[0], "2 of 4", "points3D.bin", "77")


BAD_BINARY = {  # records, and what the error has to name
    "model": ({"cameras": (CAMERA[:4] + b"\x2a" + CAMERA[5:],)}, "cameras.bin", "record 0", "byte 8", "model 42"),
    "model_negative": ({"cameras": (CAMERA[:4] + b"\xff" * 4 + CAMERA[8:],)}, "cameras.bin", "model -1"),
    "camera_cut": ({"cameras": (CAMERA[:-1],)}, "cameras.bin", "record 0", "63 bytes"),
    "camera_more": ({"cameras": (CAMERA + b"\0",)}, "cameras.bin", "byte 64"),
    "camera_twice": ({"cameras": (CAMERA, CAMERA)}, "cameras.bin", "record 1", "byte 64", "id 7"),
    "camera_none": ({"cameras": ()}, "images.bin", "camera id 7"),
    "width": ({"cameras": (camera_bytes((0, 48)),)}, "cameras.bin", "width", "got 0"),
    "height": ({"cameras": (camera_bytes((64, 2**63)),)}, "height", str(2**63)),
    "focal": ({"cameras": (camera_bytes(params=(50, -5, 32, 24)),)}, "cameras.bin", "focal", "-5"),
    "center": ({"cameras": (camera_bytes(params=(50, 50, 32, 9999)),)}, "cameras.bin", "9999"),
    "param_nan": ({"cameras": (camera_bytes(params=(50, 50, 32, NAN)),)}, "cameras.bin", "nan"),
    "no_images": ({"images": ()}, "images.bin"),
    "image_cut": ({"images": (image_bytes(), image_bytes(2)[:60])}, "images.bin", "record 1", "byte 110", "170 bytes"),
    "name_cut": ({"images": (image_bytes(1, name=b"n" * 99)[:90],)}, "images.bin", "record 0", "byte 8"),
    "name_empty": ({"images": (image_bytes(name=b""),)}, "images.bin", "record 0", "name"),
    "name_long": ({"images": (image_bytes(name=b"n" * 9999),)}, "images.bin", "record 0", "4096"),
    "name_latin_1": ({"images": (image_bytes(name=b"\xfc.png"),)}, "images.bin", r"\xfc.png", "UTF-8"),
    "name_above": ({"images": (image_bytes(name=b"a/../../x"),)}, "images.bin", "a/../../x"),
    "name_root": ({"images": (image_bytes(name=b"/etc/passwd"),)}, "images.bin", "/etc/passwd"),
    "name_folder": ({"images": (image_bytes(name=b"a/"),)}, "images.bin", "a/"),
    "name_twice": ({"images": (image_bytes(), image_bytes(2))}, "images.bin", "record 1", "a.png", "twice"),
    "name_twice_dot": ({"images": (image_bytes(), image_bytes(2, name=b"./a.png"))}, "record 1", "./a.png"),
    "name_newline": ({"images": (image_bytes(name=b"a\nb", camera_id=1),)}, r"a\nb", "camera id 1"),
    "image_id_twice": ({"images": (image_bytes(), image_bytes(1, name=b"b"))}, "images.bin", "record 1", "id 1"),
    "camera_id": ({"images": (image_bytes(camera_id=8),)}, "images.bin", "record 0", "a.png", "id 8", "7"),
    "quaternion_nan": ({"images": (image_bytes(pose=(NAN, 0, 0, 1, 0, 0, 0)),)}, "images.bin", "a.png", "nan"),
    "quaternion_zero": ({"images": (image_bytes(pose=(0, 0, 0, 0, 1, 0, 0)),)}, "images.bin", "byte 8", "0.0"),
    "quaternion_huge": ({"images": (image_bytes(pose=(1e300, 0, 0, 0, 1, 0, 0)),)}, "images.bin", "1e+300"),
    "translation_inf": ({"images": (image_bytes(pose=(1, 0, 0, 0, 1, np.inf, 0)),)}, "images.bin", "inf"),
    "translation_huge": ({"images": (image_bytes(pose=(1, 0, 0, 0, 1, -1e300, 0)),)}, "images.bin", "-1e+300"),
    "points2d": ({"images": (image_bytes()[:-32] + b"\xff" * 32,)}, "images.bin", "record 0", str(2**64 - 1)),
    "point_cut": ({"points": (point_bytes(), point_bytes()[:-1])}, "points3D.bin", "record 1", "byte 67"),
    "point_more": ({"points": (point_bytes() + b"abc",)}, "points3D.bin", "3 bytes", "byte 67"),
    "track": ({"points": (point_bytes()[:-16] + b"\xff" * 16,)}, "points3D.bin", "record 0", str(2**64 - 1)),
    "point_nan": ({"points": (point_bytes(), point_bytes((1, NAN, 2)))}, "points3D.bin", "record 1", "byte 67", "nan"),
    "point_far": ({"points": (point_bytes((1, 2, -1e200)),)}, "points3D.bin", "record 0", "-1e+200"),
}

BAD_TEXT = {
    "model": ({"cameras": "7 PINHOL 64 48 50 51 32 24"}, "cameras.txt", "line 1", "PINHOL"),
    "params": ({"cameras": "\n7 PINHOLE 64 48 50 51 32"}, "cameras.txt", "line 2", "PINHOLE", "4", "3"),
    "param": ({"cameras": "7 PINHOLE 64 48 50 51 32 2_4"}, "cameras.txt", "line 1", "2_4"),
    "camera_short": ({"cameras": "7 PINHOLE"}, "cameras.txt", "line 1"),
    "camera_twice": ({"cameras": TEXT["cameras"] * 2}, "cameras.txt", "line 4", "id 7"),
    "width": ({"cameras": "7 PINHOLE 64.5 48 50 51 32 24"}, "cameras.txt", "line 1", "64.5"),
    "width_long": ({"cameras": f"7 PINHOLE {'9' * 5000} 48 50 51 32 24"}, "cameras.txt", "line 1", "999"),
    "image_short": ({"images": "1 1 0 0 0 1 2 3 7"}, "images.txt", "line 1", "9 values"),
    "image_id": ({"images": "-1 1 0 0 0 1 2 3 7 a.png"}, "images.txt", "line 1", "-1"),
    "quaternion": ({"images": "1 one 0 0 0 1 2 3 7 a.png"}, "images.txt", "line 1", "one"),
    "quaternion_nan": ({"images": "1 nan 0 0 0 1 2 3 7 a.png"}, "images.txt", "line 1", "nan"),
    "one_line_each": ({"images": IMAGE[:-1] + IMAGE.replace("a.png", "b c d.png")}, "images.txt", "line 2", "d.png"),
    "points2d": ({"images": IMAGE[:-1] + "1 2 3 4\n"}, "images.txt", "line 2", "line 1", "4"),
    "camera_id": ({"images": IMAGE.replace("7", "8")}, "images.txt", "line 1", "id 8"),
    "name_twice": ({"images": IMAGE + IMAGE.replace("1", "2", 1)}, "images.txt", "line 3", "a.png"),
    "name_nul": ({"images": IMAGE.replace("a.", "a\0.")}, "images.txt", "line 1", "a\\x00.png"),
    "point_short": ({"points3D": "9 1 2 3 10 20 255"}, "points3D.txt", "line 1", "9 1 2 3 10 20 255"),
    "point_pair": ({"points3D": "9 1 2 3 10 20 255 0 1"}, "points3D.txt", "line 1"),
    "point_color": ({"points3D": "\n9 1 2 3 10 20 256 0"}, "points3D.txt", "line 2", "256"),
    "point_color_float": ({"points3D": "9 1 2 3 10 20.5 25 0"}, "points3D.txt", "line 1", "20.5"),
    "point_nan": ({"points3D": TEXT["points3D"] + "11 nan 5 6 0 0 0 -1"}, "points3D.txt", "line 4", "nan"),
    "point_track": ({"points3D": "9 1 2 3 10 20 255 0 -1 0"}, "points3D.txt", "line 1"),
    "point_track_huge": ({"points3D": f"9 1 2 3 10 20 255 0 {10**30} 0"}, "points3D.txt", "line 1"),
}
BAD = {model_of: BAD_BINARY, text_model: BAD_TEXT}


@pytest.mark.parametrize("make, name", [(make, name) for make, bad in BAD.items() for name in bad])
def test_bad_records(tmp_path, make: Callable, name: str):
    records, *named = BAD[make][name]
    check_refused(read_model, make(tmp_path, **records), *named)


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
@pytest.mark.parametrize("count", [2**64 - 1, 2**40, 10**6])
def test_absurd_counts_take_no_memory(tmp_path, part: str, count: int):
    file = model_of(tmp_path) / f"{part}.bin"
    file.write_bytes(struct.pack("<Q", count) + file.read_bytes()[8:])
    tracemalloc.start()
    check_refused(read_model, tmp_path, f"{part}.bin", str(count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


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


def test_both_endings(tmp_path):
    text_model(model_of(tmp_path))
    model = read_model(tmp_path)
    assert [image.name for image in model.images] == ["a.png", "b.png"]
    assert_names(model.notes[0], "images.bin", "images.txt")


def test_a_line_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(colmap_text, "LINE_LIMIT", 1000)
    check_refused(read_model, text_model(tmp_path, images=IMAGE + "1 " * 999), "images.txt", "line 3", "1000")


def fuzzed(tmp_path: Path, text: bool) -> Path:
    """A capture whose files are to be damaged."""
    capture = a_capture(["a.png", "b.png", "c.png"], ("OPENCV", "PINHOLE"), n_points=12)
    model = tmp_path / "sparse" / "0"
    write_model(model, capture, text=text)
    if text:  # a rig of two cameras, which took the first two images
        pose = "1 0 0 0 0.5 0 0"
        (model / "rigs.txt").write_text(f"1 2 CAMERA 1 CAMERA 2 1 {pose}\n")
        (model / "frames.txt").write_text(f"1 1 {pose} 2 CAMERA 1 1 CAMERA 2 2\n")
    else:
        pose = struct.pack("<7d", 1, 0, 0, 0, 0.5, 0, 0)
        rig = struct.pack("<QIIiIiI?", 1, 1, 2, 0, 1, 0, 2, True) + pose
        frame = struct.pack("<QII", 1, 1, 1) + pose + struct.pack("<IiIQiIQ", 2, 0, 1, 1, 0, 2, 2)
        (model / "rigs.bin").write_bytes(rig)
        (model / "frames.bin").write_bytes(frame)
    return tmp_path


@pytest.mark.parametrize("text", FORMS)
def test_truncated_models(tmp_path, text: bool):
    folder = fuzzed(tmp_path, text)
    assert is_read(colmap.read, folder)
    for file in sorted((folder / "sparse" / "0").iterdir()):
        content = file.read_bytes()
        loaded = []
        for length in [*range(0, len(content), 50), len(content) - 1]:
            file.write_bytes(content[:length])
            loaded.append(is_read(colmap.read, folder))
        assert text or file.stem in ("rigs", "frames") or not any(loaded), "a binary file that is cut is an error"
        file.write_bytes(content)


@pytest.mark.parametrize("text", FORMS)
def test_mutated_models(tmp_path, text: bool):
    folder, generator = fuzzed(tmp_path, text), np.random.default_rng(0)
    files = sorted((folder / "sparse" / "0").iterdir())
    contents = [file.read_bytes() for file in files]
    loaded = set()
    for trial in range(300):
        file, content = files[trial % len(files)], contents[trial % len(files)]
        file.write_bytes(mutated(content, generator))
        loaded.add(is_read(colmap.read, folder))
        file.write_bytes(content)
    assert loaded == {True, False}, "both happen among them"
