# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: what is written is read back, by pycolmap too, and what pycolmap writes is read."""

from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import MODELS, Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.readers.colmap.reader import read_model
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.errors import RunError
from tests.captures import as_binary, random_poses, touch

NAMES = ["b.png", "a/1.jpg", "a/10.jpg", "a/2.jpg", "ü.png", "B.png"]
KNOWN = tuple(model for model, (number, _) in MODELS.items() if number is not None)


def a_lens(model: str) -> Lens:
    """A lens of any model, of slight distortion."""
    values = {"f": 500.0, "fx": 500.0, "fy": 501.0, "cx": 310.5, "cy": 242.25}
    return Lens(model, tuple(values.get(name, 0.01 / (n + 3)) for n, name in enumerate(MODELS[model][1])), 640, 480)


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
    """A capture as a model in `folder`, text or bin."""
    write_model(folder, capture)
    if form == "bin":
        as_binary(folder)
    return folder


def assert_equal(read: list, written: list) -> None:
    """The same names in the same order, and the same poses."""
    assert [image.name for image in read] == [image.name for image in written]
    for one, other in zip(read, written, strict=True):
        np.testing.assert_allclose(one.camera_to_world, other.camera_to_world, atol=1e-14)


def assert_same_points(read: Points, written: Points) -> None:
    for name in ("positions", "colors", "track_lengths", "views"):
        one, other = getattr(read, name), getattr(written, name)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_what_is_written_is_read_back(tmp_path, form: str):
    """Lenses of every model, and points of tracks from none to all images."""
    capture = a_capture([*NAMES, *(f"{index:02d}.png" for index in range(len(KNOWN)))], KNOWN)
    model = read_model(write(tmp_path / "m", capture, form))
    assert_equal(model.images, capture.images)
    assert [model.cameras[image.camera_id] for image in model.images] == [image.lens for image in capture.images]
    assert_same_points(model.points, capture.points)
    assert model.notes == ()
    model = read_model(write(tmp_path / "n", a_capture(["x.png"], n_points=0), form))
    assert model.points is None and "points3D" in model.notes[0]


def test_pycolmap_reads_what_is_written(tmp_path):
    pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed: nothing to compare with")
    capture = a_capture(NAMES, models=KNOWN[:7])
    theirs = pycolmap.Reconstruction(str(write(tmp_path, capture)))
    by_name = {image.name: image for image in theirs.images.values()}
    assert by_name.keys() == {image.name for image in capture.images}
    for image in capture.images:
        camera = theirs.cameras[by_name[image.name].camera_id]
        assert Lens(camera.model_name, tuple(camera.params), camera.width, camera.height) == image.lens
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


@pytest.mark.parametrize("form", ["bin", "txt"])
def test_models_of_pycolmap(tmp_path, form: str):
    """Of rigs of three cameras, which have more files than a model needs."""
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
        np.testing.assert_allclose(image.camera_to_world, opengl(by_name[image.name]), atol=1e-12)
        camera = theirs.cameras[by_name[image.name].camera_id]
        assert model.cameras[image.camera_id].params == tuple(camera.params)
    assert len(model.points.positions) == 30 and model.points.track_lengths.sum() == len(model.points.views)
    assert model.notes == ()


@pytest.mark.parametrize("name", ["a b.png", "a\tb", " a", "", "/a", "../a", "a/../../b", "a\0b", "\ud800", "n" * 5000])
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
    touch(tmp_path, "file")
    with pytest.raises(RunError, match="file"):
        write_model(tmp_path / "file", capture)
    with pytest.raises(RunError, match="RADIAL4_TANGENTIAL"):
        write_model(tmp_path / "n", a_capture(["a"], ["RADIAL4_TANGENTIAL"]))
