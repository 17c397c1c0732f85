# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: what is written is read back, by pycolmap too; damaged ones are errors that name the place."""

import shutil
import struct
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data import colmap_binary, colmap_text
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.colmap import read_model, write_model
from nerfkit.data.colmap_records import MODELS
from nerfkit.data.lens import Lens
from nerfkit.data.readers import colmap
from nerfkit.errors import RunError, SceneError

FORMS = [False, True]  # whether text
WHY_PYCOLMAP = "pycolmap is not installed: nothing to compare with"


def a_lens(model: str) -> Lens:
    """A lens of any model, of slight distortion."""
    n_params, n_focal = MODELS[model]
    center = (310.5, 242.25) if n_focal else (640.0, 480.0)
    rest = tuple(0.01 / (index + 3) for index in range(n_params - n_focal - 2))
    return Lens(model, tuple(500.0 + index for index in range(n_focal)) + center + rest, 640, 480)


def is_known(model: str) -> bool:
    """Whether there are equations of a model."""
    try:
        return bool(a_lens(model))
    except SceneError:
        return False


KNOWN = tuple(filter(is_known, MODELS))


def poses(count: int, generator: np.random.Generator) -> np.ndarray:
    """Random camera to world [count, 3, 4]."""
    rotation = np.linalg.qr(generator.normal(size=(count, 3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))[:, None, None]
    return np.concatenate([rotation, generator.normal(size=(count, 3, 1))], axis=2)


def a_capture(names: list[str], models=("PINHOLE",), n_points: int = 40, seed: int = 0) -> Capture:
    """Images of random poses, which see random points; the first point has no track."""
    generator = np.random.default_rng(seed)
    rows = zip(sorted(names), poses(len(names), generator), strict=True)
    images = [
        PosedImage(name, Path("images", name), pose, a_lens(models[index % len(models)]))
        for index, (name, pose) in enumerate(rows)
    ]
    tracks = [generator.permutation(len(names))[: index % (len(names) + 1)] for index in range(n_points)]
    points = Points(
        positions=generator.normal(size=(n_points, 3)),
        colors=generator.integers(0, 256, (n_points, 3)).astype(np.uint8),
        track_lengths=np.array([len(track) for track in tracks], np.int64),
        views=np.concatenate([*tracks, []]).astype(np.int64),
    )
    return Capture("toy", "colmap", images, points if n_points else None)


NAMES = ["b.png", "a/1.jpg", "a/10.jpg", "a/2.jpg", "ü.png", "B.png"]


def assert_equal(read: list, written: list) -> None:
    """The same names in the same order, and the same poses."""
    assert [image.name for image in read] == [image.name for image in written]
    for one, other in zip(read, written, strict=True):
        np.testing.assert_allclose(one.camera_to_world, other.camera_to_world, atol=1e-14)


def assert_same_points(read: Points, written: Points) -> None:
    np.testing.assert_array_equal(read.positions, written.positions)
    np.testing.assert_array_equal(read.colors, written.colors)
    np.testing.assert_array_equal(read.track_lengths, written.track_lengths)
    np.testing.assert_array_equal(read.views, written.views)
    types = (read.positions.dtype, read.colors.dtype, read.track_lengths.dtype, read.views.dtype)
    assert types == (np.float64, np.uint8, np.int64, np.int64)


@pytest.mark.parametrize("text", FORMS)
def test_what_is_written_is_read_back(tmp_path, text: bool):
    capture = a_capture(NAMES, models=KNOWN[:4])
    write_model(tmp_path / "m", capture, text=text)
    model = read_model(tmp_path / "m")
    assert_equal(model.images, capture.images)
    assert [model.cameras[image.camera_id] for image in model.images] == [image.lens for image in capture.images]
    assert_same_points(model.points, capture.points)
    assert model.notes == ()


@pytest.mark.parametrize("text", FORMS)
def test_every_lens_is_read_back(tmp_path, text: bool):
    capture = a_capture([f"{index:02d}.png" for index in range(len(KNOWN))], KNOWN, n_points=0)
    write_model(tmp_path, capture, text=text)
    model = read_model(tmp_path)
    assert [model.cameras[image.camera_id] for image in model.images] == [a_lens(name) for name in KNOWN]
    assert model.points is None and "points3D" in model.notes[0]


@pytest.mark.parametrize("text", FORMS)
def test_blocks_of_points(tmp_path, monkeypatch, text: bool):
    capture = a_capture(NAMES, n_points=50)
    write_model(tmp_path, capture, text=text)
    monkeypatch.setattr(colmap_binary, "BLOCK", 60)  # bytes: less than most records
    monkeypatch.setattr(colmap_text, "BLOCK", 7)  # points
    assert_same_points(read_model(tmp_path).points, capture.points)


@pytest.mark.parametrize("text", FORMS)
def test_pycolmap_reads_what_is_written(tmp_path, text: bool):
    pycolmap = pytest.importorskip("pycolmap", reason=WHY_PYCOLMAP)
    capture = a_capture(NAMES, models=KNOWN[:7])
    write_model(tmp_path, capture, text=text)
    theirs = pycolmap.Reconstruction(str(tmp_path))
    by_name = {image.name: image for image in theirs.images.values()}
    assert by_name.keys() == {image.name for image in capture.images}
    for image in capture.images:
        camera = theirs.cameras[by_name[image.name].camera_id]
        lens = Lens(camera.model_name, tuple(camera.params), camera.width, camera.height)
        assert lens == image.lens
        np.testing.assert_allclose(opengl(by_name[image.name]), image.camera_to_world, atol=1e-13)
    points = [theirs.points3D[index + 1] for index in range(len(capture.points.positions))]
    np.testing.assert_array_equal([point.xyz for point in points], capture.points.positions)
    names = [theirs.images[element.image_id].name for point in points for element in point.track.elements]
    assert names == [capture.images[view].name for view in capture.points.views]
    for point_id, point in enumerate(points, 1):
        for element in point.track.elements:
            assert theirs.images[element.image_id].points2D[element.point2D_idx].point3D_id == point_id


def opengl(image) -> np.ndarray:
    """Camera to world [3, 4] of an image of pycolmap's."""
    return image.cam_from_world().inverse().matrix() @ np.diag([1.0, -1, -1, 1])


def synthetic(folder: Path, cameras_per_rig: int):
    """A reconstruction of pycolmap's, written into bin and txt of `folder`."""
    pycolmap = pytest.importorskip("pycolmap", reason=WHY_PYCOLMAP)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 2, cameras_per_rig, 3
    options.num_points3D = 30
    made = pycolmap.synthesize_dataset(options)
    for name in ("bin", "txt"):
        (folder / name).mkdir()
    made.write(str(folder / "bin"))
    made.write_text(str(folder / "txt"))
    return made


@pytest.mark.parametrize("cameras_per_rig", [1, 3])
@pytest.mark.parametrize("form", ["bin", "txt"])
def test_models_of_pycolmap(tmp_path, cameras_per_rig: int, form: str):
    theirs = synthetic(tmp_path, cameras_per_rig)
    model = read_model(tmp_path / form)
    by_name = {image.name: image for image in theirs.images.values()}
    assert [image.name for image in model.images] == sorted(by_name)
    for image in model.images:
        np.testing.assert_allclose(image.camera_to_world, opengl(by_name[image.name]), atol=1e-12)
        camera = theirs.cameras[by_name[image.name].camera_id]
        assert model.cameras[image.camera_id].params == tuple(camera.params)
    assert len(model.points.positions) == 30 and model.points.track_lengths.sum() == len(model.points.views)
    assert model.notes == ()


def without_poses(folder: Path, replaced: tuple[float, ...], which: Callable[[int], bool]) -> None:
    """Put other poses into the images file of a model."""
    form = ".bin" if (folder / "images.bin").exists() else ".txt"
    module = colmap_binary if form == ".bin" else colmap_text
    images = module.read_images(folder / f"images{form}")
    images.poses = [replaced if which(index) else pose for index, pose in enumerate(images.poses)]
    (folder / f"images{form}").write_bytes(module.images_bytes(images, [np.zeros(0, np.int64)] * len(images.ids)))
    (folder / f"points3D{form}").unlink()


@pytest.mark.parametrize("form", ["bin", "txt"])
@pytest.mark.parametrize("replaced", [(0.0,) * 7, (float("nan"),) * 7, (1.0, 0, 0, 0, float("inf"), 0, 0)])
def test_rigs_give_the_poses_that_images_lack(tmp_path, form: str, replaced: tuple):
    synthetic(tmp_path, 3)
    whole = read_model(tmp_path / form)
    without_poses(tmp_path / form, replaced, lambda index: index % 2 == 0)
    model = read_model(tmp_path / form)
    for one, other in zip(model.images, whole.images, strict=True):
        np.testing.assert_allclose(one.camera_to_world, other.camera_to_world, atol=1e-12)
    assert any(f"images.{form}: 9" in note for note in model.notes)
    (tmp_path / form / f"frames.{form}").unlink()
    assert_names(error_of(tmp_path / form), f"images.{form}", "no usable pose", str(replaced[0]), f"frames.{form}")


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_frames_that_contradict_or_are_damaged(tmp_path, form: str):
    synthetic(tmp_path, 2)
    without_poses(tmp_path / form, (1.0, 0, 0, 0, 9, 9, 9), lambda index: index == 3)
    model = read_model(tmp_path / form)
    assert any(f"frames.{form}: 1" in note for note in model.notes)
    assert sum(np.allclose(image.camera_to_world[:, 3], [-9, -9, -9]) for image in model.images) == 1
    frames = tmp_path / form / f"frames.{form}"
    frames.write_bytes(frames.read_bytes()[:-20])
    assert any(f"frames.{form}" in note for note in read_model(tmp_path / form).notes)


CAMERA = struct.pack("<IiQQ4d", 7, 1, 64, 48, 50, 51, 32, 24)


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


def error_of(folder: Path) -> str:
    """What reading a model says."""
    with pytest.raises(SceneError) as caught:
        read_model(folder)
    return str(caught.value)


def assert_names(message: str, *named: str) -> None:
    assert all(part in message for part in named) and message.isprintable() and len(message) < 1000, message


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


NAN = float("nan")
BAD = {  # records, and what the error has to name
    "model": ({"cameras": (CAMERA[:4] + b"\x2a" + CAMERA[5:],)}, "cameras.bin", "record 0", "byte 8", "model 42"),
    "model_negative": ({"cameras": (CAMERA[:4] + b"\xff" * 4 + CAMERA[8:],)}, "cameras.bin", "model -1"),
    "camera_cut": ({"cameras": (CAMERA[:-1],)}, "cameras.bin", "record 0", "63 bytes"),
    "camera_more": ({"cameras": (CAMERA + b"\0",)}, "cameras.bin", "byte 64"),
    "camera_twice": ({"cameras": (CAMERA, CAMERA)}, "cameras.bin", "record 1", "byte 64", "id 7"),
    "camera_none": ({"cameras": ()}, "images.bin", "camera id 7"),
    "width": ({"cameras": (struct.pack("<IiQQ4d", 7, 1, 0, 48, 50, 51, 32, 24),)}, "cameras.bin", "width", "got 0"),
    "height": ({"cameras": (struct.pack("<IiQQ4d", 7, 1, 64, 2**63, 50, 51, 32, 24),)}, "height", str(2**63)),
    "focal": ({"cameras": (struct.pack("<IiQQ4d", 7, 1, 64, 48, 50, -5, 32, 24),)}, "cameras.bin", "focal", "-5"),
    "center": ({"cameras": (struct.pack("<IiQQ4d", 7, 1, 64, 48, 50, 50, 32, 9999),)}, "cameras.bin", "9999"),
    "param_nan": ({"cameras": (struct.pack("<IiQQ4d", 7, 1, 64, 48, 50, 50, 32, NAN),)}, "cameras.bin", "nan"),
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


@pytest.mark.parametrize("name", BAD)
def test_bad_records(tmp_path, name: str):
    records, *named = BAD[name]
    assert_names(error_of(model_of(tmp_path, **records)), *named)


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
@pytest.mark.parametrize("count", [2**64 - 1, 2**40, 10**6])
def test_absurd_counts_take_no_memory(tmp_path, part: str, count: int):
    file = model_of(tmp_path) / f"{part}.bin"
    file.write_bytes(struct.pack("<Q", count) + file.read_bytes()[8:])
    tracemalloc.start()
    assert_names(error_of(tmp_path), f"{part}.bin", str(count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


TEXT = {
    "cameras": "# remark\n7 PINHOLE 64 48 50 51 32 24\n",
    "images": "# remark\n\n1 1 0 0 0 1 2 3 7 left eye/a b.png \n5 6 -1 7 8 9\n2 1 0 0 0 1 2 3 7 b.png\n\n",
    "points3D": "9 1 2 3 10 20 255 .5 1 0\n\n10 4 5 6 0 0 0 -1\n",
}


def text_model(folder: Path, **changed: str) -> Path:
    """A text model made by hand."""
    for name, content in (TEXT | changed).items():
        (folder / f"{name}.txt").write_bytes(content.encode())
    return folder


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


IMAGE = "1 1 0 0 0 1 2 3 7 a.png\n\n"
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


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text(tmp_path, name: str):
    changed, *named = BAD_TEXT[name]
    assert_names(error_of(text_model(tmp_path, **changed)), *named)


def test_both_endings(tmp_path):
    text_model(model_of(tmp_path))
    model = read_model(tmp_path)
    assert [image.name for image in model.images] == ["a.png", "b.png"]
    assert_names(model.notes[0], "images.bin", "images.txt")


def test_a_line_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(colmap_text, "LINE_LIMIT", 1000)
    assert_names(error_of(text_model(tmp_path, images=IMAGE + "1 " * 999)), "images.txt", "line 3", "1000")


def outcome(folder: Path) -> bool:
    """Whether the capture is read; only a SceneError of one line may come of it else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            capture = colmap.read(folder)
        except SceneError as error:
            assert str(error).isprintable() and len(str(error)) < 1000, repr(str(error))
            return False
    assert all(np.isfinite(image.camera_to_world).all() for image in capture.images)
    assert all(note.isprintable() for note in capture.notes)
    if capture.points is not None:
        assert np.isfinite(capture.points.positions).all()
        assert capture.points.track_lengths.sum() == len(capture.points.views)
        assert (capture.points.views < len(capture.images)).all() and (capture.points.views >= 0).all()
    return True


def fuzzed(tmp_path: Path, text: bool) -> Path:
    """A capture whose files are to be damaged."""
    capture = a_capture(["a.png", "b.png", "c.png"], ("OPENCV", "PINHOLE"), n_points=12)
    write_model(tmp_path / "sparse" / "0", capture, text=text)
    if text:  # a rig of two cameras, which took the first two images
        pose = "1 0 0 0 0.5 0 0"
        (tmp_path / "sparse" / "0" / "rigs.txt").write_text(f"1 2 CAMERA 1 CAMERA 2 1 {pose}\n")
        (tmp_path / "sparse" / "0" / "frames.txt").write_text(f"1 1 {pose} 2 CAMERA 1 1 CAMERA 2 2\n")
    else:
        pose = struct.pack("<7d", 1, 0, 0, 0, 0.5, 0, 0)
        rig = struct.pack("<QIIiIiI?", 1, 1, 2, 0, 1, 0, 2, True) + pose
        frame = struct.pack("<QII", 1, 1, 1) + pose + struct.pack("<IiIQiIQ", 2, 0, 1, 1, 0, 2, 2)
        (tmp_path / "sparse" / "0" / "rigs.bin").write_bytes(rig)
        (tmp_path / "sparse" / "0" / "frames.bin").write_bytes(frame)
    return tmp_path


@pytest.mark.parametrize("text", FORMS)
def test_truncated_models(tmp_path, text: bool):
    folder = fuzzed(tmp_path, text)
    assert outcome(folder)
    for file in sorted((folder / "sparse" / "0").iterdir()):
        content = file.read_bytes()
        loaded = []
        for length in [*range(0, len(content), 50), len(content) - 1]:
            file.write_bytes(content[:length])
            loaded.append(outcome(folder))
        assert text or file.stem in ("rigs", "frames") or not any(loaded), "a binary file that is cut is an error"
        file.write_bytes(content)


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """A few bytes changed, cut out or doubled."""
    for _ in range(generator.integers(1, 4)):
        start, length = int(generator.integers(len(content))), int(generator.integers(1, 12))
        part = content[start : start + length]
        flipped = bytes([part[0] ^ 1 << int(generator.integers(8))]) + part[1:]
        part = [flipped, generator.bytes(len(part)), b"", part + part][generator.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
        content = content[:start] + part + content[start + length :] or b"0"
    return content


@pytest.mark.parametrize("text", FORMS)
def test_mutated_models(tmp_path, text: bool):
    folder, generator = fuzzed(tmp_path, text), np.random.default_rng(0)
    files = sorted((folder / "sparse" / "0").iterdir())
    contents = [file.read_bytes() for file in files]
    loaded = set()
    for trial in range(300):
        file, content = files[trial % len(files)], contents[trial % len(files)]
        file.write_bytes(mutated(content, generator))
        loaded.add(outcome(folder))
        file.write_bytes(content)
    assert loaded == {True, False}, "both happen among them"


def put(folder: Path, *names: str) -> None:
    """Empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize("place", ["sparse/0", "sparse/7", "colmap/sparse/0", "sparse", "colmap/sparse", "."])
@pytest.mark.parametrize("text", FORMS)
def test_places_of_the_model(tmp_path, place: str, text: bool):
    capture = a_capture(["b.png", "a/1.png"], n_points=3)
    write_model(tmp_path / place, capture, text=text)
    put(tmp_path, "images/b.png")  # the other file is missing, and stays in the list
    assert colmap.recognises(tmp_path)
    read = colmap.read(tmp_path)
    assert_equal(read.images, capture.images)
    assert [image.file for image in read.images] == [tmp_path / "images" / name for name in ("a/1.png", "b.png")]
    assert (read.name, read.format, read.notes) == (tmp_path.name, "colmap", ())
    assert_same_points(read.points, capture.points)


def test_folders_without_a_model(tmp_path):
    (tmp_path / "sparse" / "0").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "a\0b"):
        assert not colmap.recognises(folder)
        with pytest.raises(SceneError, match="sparse/0"):
            colmap.read(folder)
    put(tmp_path, "sparse/0/cameras.bin", "sparse/0/frames.bin", "sparse/0/images.txt")
    assert colmap.recognises(tmp_path)
    with pytest.raises(SceneError, match=r"sparse/0: .*cameras.bin, frames.bin, images.txt"):
        colmap.read(tmp_path)


def test_the_model_with_most_images_is_read(tmp_path):
    names = [f"{index}.png" for index in range(9)]
    for number, count in ((0, 2), (1, 5), (2, 5), (10, 9)):
        write_model(tmp_path / "sparse" / str(number), a_capture(names[:count]), text=number == 10)
    read = colmap.read(tmp_path)
    assert len(read.images) == 9
    assert_names(read.notes[0], "sparse/10", "of 4", "9", "sparse/0 2", "sparse/1 5", "sparse/2 5")
    shutil.rmtree(tmp_path / "sparse" / "10")
    read = colmap.read(tmp_path)
    assert len(read.images) == 5 and "sparse/1 is read" in read.notes[0] and "of 3" in read.notes[0]
    write_model(tmp_path / "colmap" / "sparse" / "0", a_capture(names))
    assert "colmap/sparse/0" in colmap.read(tmp_path).notes[1]


@pytest.mark.parametrize(
    "files, place",
    [
        (["images/x y/a b.png", "images_2/x y/a b.png"], "images"),
        (["images_8/x y/a b.png", "images_2/x y/a b.png"], "images_2"),
        (["images_4/x y/a b.png"], "images_4"),
        (["photos/x y/a b.png", "images/other.png"], "photos"),
        (["x y/a b.png", "images/other.png"], "."),
        (["other/c.png"], "images"),
    ],
)
def test_places_of_the_images(tmp_path, files: list[str], place: str):
    write_model(tmp_path / "sparse" / "0", a_capture(["x y/a b.png"]))
    put(tmp_path, *files)
    read = colmap.read(tmp_path)
    assert read.images[0].file == tmp_path / place / "x y" / "a b.png"
    assert place == "images" or any(place in note or "itself" in note for note in read.notes)
    assert read.images[0].file.exists() or any("x y/a b.png" in note for note in read.notes)


def test_images_without_a_pose_are_counted(tmp_path):
    write_model(tmp_path / "sparse" / "0", a_capture(["b.png", "c/d.png"]))
    put(tmp_path, "images/b.png", "images/c/d.png", "images/read.me", "images/.hidden.png")
    assert colmap.read(tmp_path).notes == ()
    put(tmp_path, "images/a.JPG", "images/c/e.png", "images/z.png", "images/y.png")
    (tmp_path / "images" / "round").symlink_to(tmp_path / "images")
    (note,) = colmap.read(tmp_path).notes
    assert_names(note, "4 of 6", "a.JPG", "c/e.png", "y.png")


def test_masks(tmp_path):
    names = ["a/1.jpg", "a/2.jpg", "3.png", "4.png"]
    write_model(tmp_path / "sparse" / "0", a_capture(names))
    put(tmp_path, *(f"images/{name}" for name in names))
    put(tmp_path, "masks/a/1.jpg", "masks/a/1.jpg.png", "masks/a/2.jpg.png", "masks/a/2.png", "masks/3.png")
    read = colmap.read(tmp_path)
    masks = {image.name: image.mask and image.mask.relative_to(tmp_path / "masks").as_posix() for image in read.images}
    assert masks == {"a/1.jpg": "a/1.jpg", "a/2.jpg": "a/2.jpg.png", "3.png": "3.png", "4.png": None}
    assert not read.white_ignores
    assert_names(read.notes[0], "1 of 4", "4.png")
    assert_names(read.notes[1], "2 of 5", "a/1.jpg.png", "a/2.png")


def test_names_that_text_cannot_hold(tmp_path):
    for name in ("a b.png", "a\tb", " a"):
        with pytest.raises(RunError, match=r"spaces.*\.bin"):
            write_model(tmp_path / "m", a_capture([name]), text=True)
    write_model(tmp_path / "m", a_capture(["a b.png"]))
    assert read_model(tmp_path / "m").images[0].name == "a b.png"


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a\0b", "\ud800", "n" * 5000])
def test_names_that_no_model_can_hold(tmp_path, name: str):
    with pytest.raises(RunError) as caught:
        write_model(tmp_path / "m", a_capture([name]))
    assert str(caught.value).isprintable() and not (tmp_path / "m").exists()


def test_writing_beside_another_model(tmp_path):
    capture = a_capture(NAMES)
    for name in ("rigs.bin", "frames.txt", "cameras.txt"):
        put(tmp_path / name, name)
        with pytest.raises(RunError, match=name):
            write_model(tmp_path / name, capture)
    write_model(tmp_path / "m", a_capture(["x.png"]))
    write_model(tmp_path / "m", capture)  # the same files, anew
    assert_equal(read_model(tmp_path / "m").images, capture.images)
    put(tmp_path, "file")
    with pytest.raises(RunError, match="file"):
        write_model(tmp_path / "file", capture)
    with pytest.raises(RunError, match="'THICK'"):
        lens = a_lens("PINHOLE")
        object.__setattr__(lens, "model", "THICK")
        write_model(tmp_path / "n", Capture("n", "", [PosedImage("a", Path(), np.eye(3, 4), lens)]))
