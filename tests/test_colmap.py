# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: what is written is read back, by pycolmap too; where the parts are; damaged records name the place."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nerfkit.config import DataConfig
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.load import elsewhere, load_capture
from nerfkit.data.readers import colmap
from nerfkit.data.readers.colmap import read_model
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.readers.transforms.writer import write_transforms
from nerfkit.errors import RunError
from tests.captures import as_binary, check_refused, random_poses, touch
from tests.naming import assert_names

NAMES = ["b.png", "a/1.jpg", "a/10.jpg", "a/2.jpg", "ü.png", "B.png"]
KNOWN = tuple(model for model, row in MODELS.items() if row.number is not None)


def a_lens(model: str) -> Lens:
    values = {"f": 500.0, "fx": 500.0, "fy": 501.0, "cx": 310.5, "cy": 242.25}
    return Lens(model, tuple(values.get(name, 0.01 / (n + 3)) for n, name in enumerate(MODELS[model].names)), 640, 480)


def a_capture(names: list[str], models=("PINHOLE",), n_points: int = 40) -> Capture:
    """Images of random poses, which see random points; the first point has no track."""
    generator = np.random.default_rng(0)
    rows = zip(sorted(names), random_poses(len(names), generator), strict=True)
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


def write(folder: Path, capture: Capture, form: str = "txt") -> Path:
    write_model(folder, capture)
    if form == "bin":
        as_binary(folder)
    return folder


def assert_equal(read: list, written: list) -> None:
    assert [image.name for image in read] == [image.name for image in written]
    for one, other in zip(read, written, strict=True):
        np.testing.assert_allclose(one.camera_to_world, other.camera_to_world, atol=1e-14)
        assert one.lens == other.lens


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_what_is_written_is_read_back(tmp_path, form: str):
    """Lenses of every model, and points of tracks from none to all images."""
    capture = a_capture([*NAMES, *(f"{index:02d}.png" for index in range(len(KNOWN)))], KNOWN)
    model = read_model(write(tmp_path / "m", capture, form))
    assert_equal(model.images, capture.images)
    for one, other in zip(vars(model.points).values(), vars(capture.points).values(), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert model.notes == []
    model = read_model(write(tmp_path / "n", a_capture(["x.png"], n_points=0), form))
    assert model.points is None and "points3D" in str(model.notes[0])


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_models_of_pycolmap(tmp_path, form: str):
    """Of rigs of three cameras, which have more files than a model needs; written anew, pycolmap reads the tracks."""
    pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed: nothing to compare with")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 2, 3, 3
    options.num_points3D = 30
    theirs = pycolmap.synthesize_dataset(options)
    (theirs.write if form == "bin" else theirs.write_text)(str(tmp_path))
    model = read_model(tmp_path)
    by_name = {image.name: image for image in theirs.images.values()}
    assert [image.name for image in model.images] == sorted(by_name)
    for image in model.images:
        pose = by_name[image.name].cam_from_world().inverse().matrix() @ np.diag([1.0, -1, -1, 1])
        np.testing.assert_allclose(image.camera_to_world, pose, atol=1e-12)
        assert image.lens.params == tuple(theirs.cameras[by_name[image.name].camera_id].params)
    assert model.notes == []
    again = pycolmap.Reconstruction(str(write(tmp_path / "again", Capture("it", "colmap", model.images, model.points))))
    ends = np.cumsum(model.points.track_lengths)
    for point_id, (position, end) in enumerate(zip(model.points.positions, ends, strict=True), 1):
        point = again.points3D[point_id]
        seen = [again.images[element.image_id] for element in point.track.elements]
        names = [model.images[view].name for view in model.points.views[end - len(seen) : end]]
        assert point.xyz.tolist() == position.tolist() and [image.name for image in seen] == names
        for image, element in zip(seen, point.track.elements, strict=True):
            assert image.points2D[element.point2D_idx].point3D_id == point_id


@pytest.mark.parametrize("name", ["a b.png", "", "/a", "a/../../b", "a\0b", "\ud800", "n" * 5000])
def test_names_that_no_model_can_hold(tmp_path, name: str):
    with pytest.raises(RunError) as caught:
        write_model(tmp_path / "m", a_capture([name]))
    assert str(caught.value).isprintable() and not (tmp_path / "m").exists()


def test_writing_beside_another_model(tmp_path):
    capture = a_capture(NAMES)
    for name in ("rigs.txt", "frames.bin", "cameras.bin"):
        touch(tmp_path / name, name)
        with pytest.raises(RunError, match=name):
            write_model(tmp_path / name, capture)
    write_model(tmp_path / "m", a_capture(["x.png"]))
    write_model(tmp_path / "m", capture)  # the same files, anew
    assert_equal(read_model(tmp_path / "m").images, capture.images)
    with pytest.raises(RunError, match="RADIAL4_TANGENTIAL"):
        write_model(tmp_path / "n", a_capture(["a"], ["RADIAL4_TANGENTIAL"]))


@pytest.mark.parametrize("place", ["sparse/0", "colmap/sparse/0", "sparse", "."])
def test_places_of_the_model(tmp_path, place: str):
    capture = a_capture(["b.png", "a/1.png"], n_points=3)
    write(tmp_path / place, capture, "bin" if place == "sparse/0" else "txt")
    touch(tmp_path, "images/b.png")  # the other file is missing, and stays in the list
    assert colmap.recognises(tmp_path)
    read = colmap.read(tmp_path)
    assert_equal(read.images, capture.images)
    assert [image.file for image in read.images] == [tmp_path / "images" / name for name in ("a/1.png", "b.png")]
    assert (read.name, read.format, read.notes) == (tmp_path.name, "colmap", ())


def test_the_format_that_knows_more_is_read(tmp_path):
    """COLMAP's, where transforms.json has no sparse points: they say where the scene is. Others are named."""
    capture, file = a_capture(["a.png", "b.png"], n_points=3), tmp_path / "transforms.json"
    touch(tmp_path, "images/a.png", "images/b.png", "other/a.png")

    def taken(points: Points | None, of_run: bool = False, **known) -> str:
        write_model(tmp_path / "sparse/0", replace(capture, points=points))
        write_transforms(file, replace(capture, points=None, **known))
        read = load_capture(str(tmp_path), of_run=of_run)
        assert_names(read.notes[0].text, f"read as {read.format}", "--data.format")
        return read.format

    masked = [replace(image, mask=tmp_path / "other/a.png") for image in capture.images]
    assert taken(capture.points) == "colmap" and taken(None) == "transforms"
    assert taken(capture.points, of_run=True) == "transforms", "as by runs that say auto"
    assert taken(capture.points, splits={"train": ["a.png"], "test": ["b.png"]}) == "transforms", "it knows the tests"
    assert taken(capture.points, images=masked) == "transforms", "it knows what counts"
    check_refused(load_capture, str(tmp_path) + "x", "does not exist", str(tmp_path))
    check_refused(load_capture, str(file), "neither a folder", f"folder '{tmp_path}'")
    (tmp_path / "sparse/0/images.txt").write_bytes(b"broken")
    assert load_capture(str(tmp_path)).format == "transforms"
    file.write_text('{"frames": [')
    check_refused(load_capture, str(tmp_path), "transforms.json", "JSON")
    file.unlink()
    of_runs = [DataConfig("there", "poses", format) for format in ("colmap", "transforms", "auto")]
    now = [elsewhere(data, str(tmp_path)) for data in of_runs]
    assert now == [DataConfig(str(tmp_path), "", format) for format in ("colmap", "auto", "auto")]


def test_the_model_with_most_images_is_read(tmp_path):
    names = [f"{index}.png" for index in range(9)]
    for number, count in ((0, 2), (1, 5), (2, 9), (10, 5)):
        write_model(tmp_path / "sparse" / str(number), a_capture(names[:count]))
    read = colmap.read(tmp_path)
    assert len(read.images) == 9
    assert_names(read.notes[0].text, "sparse/2", "of 4", "9", "sparse/0 2", "sparse/1 5", "sparse/10 5")
    write_model(tmp_path / "colmap" / "sparse" / "0", a_capture(names))
    assert "colmap/sparse/0" in colmap.read(tmp_path).notes[1].text


@pytest.mark.parametrize(
    "place, named", [("images", ()), ("photos", ("photos",)), (".", ("itself",)), ("elsewhere", ("x/a.png",))]
)
def test_places_of_the_images(tmp_path, place: str, named: tuple):
    write_model(tmp_path / "sparse" / "0", a_capture(["x/a.png"]))
    touch(tmp_path, "images/other.png", *[f"{place}/x/a.png"] * (place != "elsewhere"))
    read = colmap.read(tmp_path)
    assert read.images[0].file == tmp_path / place.replace("elsewhere", "images") / "x" / "a.png"
    assert all(any(part in note.text for note in read.notes) for part in named)


def test_images_without_a_pose_are_counted(tmp_path):
    write_model(tmp_path / "sparse" / "0", a_capture(["b.png", "c/d.png"]))
    touch(tmp_path, "images/b.png", "images/c/d.png", "images/read.me", "images/.hidden.png")
    assert colmap.read(tmp_path).notes == ()
    touch(tmp_path, "images/a.JPG", "images/c/e.png", "images/z.png", "images/y.png")
    (tmp_path / "images" / "round").symlink_to(tmp_path / "images")
    (note,) = colmap.read(tmp_path).notes
    assert_names(note.text, "4 of 6", "a.JPG", "c/e.png", "y.png")
    assert note.kind == "warning"


# ---- records made by hand


TEXT = {
    "cameras": "# remark\n7 PINHOLE 64 48 50 51 32 24\n",
    "images": "# remark\n\n1 1 0 0 0 1 2 3 7 left eye\\a b.png \n5 6 -1 7 8 9\n2 1 0 0 0 1 2 3 7 b.png\n\n",
    "points3D": "9 1 2 3 10 20 255 .5 1 0\n\n10 4 5 6 0 0 0 -1\n",
}
BINARY = {  # of which binary files are made; a.png is turned a quarter about z: x_camera = -y, y_camera = x
    "cameras": TEXT["cameras"],
    "images": "#\n5 1 0 0 0 1 2 3 7 b.png\n5 6 -1\n3 1.5 0 0 1.5 1 2 3 7 a.png\n5 6 -1\n",
    "points3D": "#\n9 1 2 3 10 20 255 .5 5 0 3 0 5 1\n9 1 2 3 10 20 255 .5 3 0 77 0\n",
}


def model_of(folder: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(content.encode(errors="surrogateescape"))
    return folder


def test_records_made_by_hand(tmp_path):
    as_binary(model_of(tmp_path, BINARY))
    model = read_model(tmp_path)
    a, b = model.images
    assert a.lens == b.lens == Lens("PINHOLE", (50, 51, 32, 24), 64, 48)
    np.testing.assert_allclose(a.camera_to_world, [[0, -1, 0, -2], [-1, 0, 0, 1], [0, 0, -1, -3]], atol=1e-15)
    np.testing.assert_array_equal(b.camera_to_world, [[1, 0, 0, -1], [0, -1, 0, -2], [0, 0, -1, -3]])
    assert model.points.views.tolist() == [1, 0, 1, 0] and model.points.track_lengths.tolist() == [3, 1]
    assert model.points.colors.tolist() == [[10, 20, 255]] * 2 and model.points.positions.tolist() == [[1, 2, 3]] * 2
    assert_names(model.notes[0], "1 of 5", "points3D.bin", "77")


def test_text_made_by_hand(tmp_path):
    """With and without ends of lines of Windows, and after an editor has taken off the last empty line."""
    windows = {name: "\ufeff" + content.replace("\n", "\r\n") for name, content in TEXT.items()}
    for changed in ({}, windows, {"images": TEXT["images"].strip("\n")}):
        model = read_model(model_of(tmp_path, TEXT | changed))
        assert [image.name for image in model.images] == ["b.png", "left eye/a b.png"]
        assert model.images[0].camera_to_world[:, 3].tolist() == [-1, -2, -3]
        assert model.images[0].lens == Lens("PINHOLE", (50, 51, 32, 24), 64, 48)
        assert model.points.views.tolist() == [1] and model.points.track_lengths.tolist() == [1, 0]
    as_binary(model_of(tmp_path, BINARY))
    model_of(tmp_path, TEXT)
    model = read_model(tmp_path)
    assert [image.name for image in model.images] == ["a.png", "b.png"], "of both endings"
    assert_names(model.notes[0], "images.bin", "images.txt")


@pytest.mark.parametrize(
    "name, change, named",
    [
        ("cameras", lambda whole: whole[:12] + b"\x2a" + whole[13:], ("record 0", "byte 8", "'42'")),
        ("cameras", lambda whole: whole + b"\0", ("byte 64",)),
        ("cameras", lambda whole: struct.pack("<Q", 10**9) + whole[8:], ("record 1", str(10**9))),
        ("images", lambda whole: bytes(8), ()),
        ("images", lambda whole: whole[:170], ("record 1", "byte 110", "170 bytes")),
        ("points3D", lambda whole: whole[:16] + struct.pack("<d", np.nan) + whole[24:], ("point 0", "nan")),
    ],
)
def test_bad_binary_records(tmp_path, name: str, change, named: tuple):
    as_binary(model_of(tmp_path, BINARY))
    file = tmp_path / f"{name}.bin"
    file.write_bytes(change(file.read_bytes()))
    check_refused(read_model, tmp_path, file.name, *named)


IMAGE = "1 1 0 0 0 1 2 3 7 a.png\n\n"


@pytest.mark.parametrize(
    "part, content, named",
    [
        ("cameras", "7 PINHOL 64 48 50 51 32 24", ("line 1", "PINHOL")),
        ("cameras", "\n7 PINHOLE 64 48 50 51 32", ("line 2", "PINHOLE", "fx, fy, cx, cy", "got 3")),
        ("cameras", "7 PINHOLE 64.5 48 50 51 32 24", ("line 1", "64.5")),
        ("cameras", TEXT["cameras"] * 2, ("line 4", "id 7")),
        ("images", "1 1 0 0 0 1 2 3", ("line 1", "camera id")),
        ("images", IMAGE.replace("1 1", "1 0"), ("line 1", "a.png", "0.0")),
        ("images", IMAGE.replace("3", "-1e300"), ("line 1", "-1e+300")),
        ("images", IMAGE[:-1] + IMAGE, ("line 2", "line 1", "a.png")),
        ("images", IMAGE.replace("7", "8"), ("line 1", "a.png", "id 8", "7")),
        ("images", IMAGE + IMAGE.replace("1 1", "2 1"), ("line 3", "a.png", "twice")),
        ("images", IMAGE + IMAGE.replace("a", "b"), ("line 3", "id 1")),
        ("images", IMAGE.replace("a", "\udcfc"), (r"\xfc.png", "UTF-8")),
        ("images", IMAGE.replace("a", "a/../../a"), ("a/../../a.png",)),
        ("points3D", "9 1 2 3 10 20 255 .5 1", ("line 1", "pairs")),
    ],
)
def test_bad_text_records(tmp_path, part: str, content: str, named: tuple):
    check_refused(read_model, model_of(tmp_path, TEXT | {part: content}), f"{part}.txt", *named)
