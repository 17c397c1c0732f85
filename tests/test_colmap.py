# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: what is written is read back, by pycolmap too, and what pycolmap writes is read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.readers.colmap import binary as colmap_binary
from nerfkit.data.readers.colmap import text as colmap_text
from nerfkit.data.readers.colmap.model import read_model, write_model
from nerfkit.data.readers.colmap.records import MODELS
from nerfkit.errors import RunError, SceneError
from tests.captures import check_refused, random_poses, touch

FORMS = [False, True]  # whether text

NAMES = ["b.png", "a/1.jpg", "a/10.jpg", "a/2.jpg", "ü.png", "B.png"]

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


def a_capture(names: list[str], models=("PINHOLE",), n_points: int = 40, seed: int = 0) -> Capture:
    """Images of random poses, which see random points; the first point has no track."""
    generator = np.random.default_rng(seed)
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
    check_refused(read_model, tmp_path / form, f"images.{form}", "usable pose", str(replaced[0]), f"frames.{form}")


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
        touch(tmp_path / name, name)
        with pytest.raises(RunError, match=name):
            write_model(tmp_path / name, capture)
    write_model(tmp_path / "m", a_capture(["x.png"]))
    write_model(tmp_path / "m", capture)  # the same files, anew
    assert_equal(read_model(tmp_path / "m").images, capture.images)
    touch(tmp_path, "file")
    with pytest.raises(RunError, match="file"):
        write_model(tmp_path / "file", capture)
    with pytest.raises(RunError, match="'THICK'"):
        lens = a_lens("PINHOLE")
        object.__setattr__(lens, "model", "THICK")
        write_model(tmp_path / "n", Capture("n", "", [PosedImage("a", Path(), np.eye(3, 4), lens)]))
