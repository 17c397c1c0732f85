# SPDX-License-Identifier: Apache-2.0
"""Captures as other programs leave them: keys of frames, splits without images, names from elsewhere, other poses."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from nerfkit.commands import inspect, render, train
from nerfkit.data.assemble import resolve_files
from nerfkit.data.capture import Points
from nerfkit.data.load import load_capture, load_scene
from nerfkit.errors import SceneError
from nerfkit.rendering.camera_path import read_camera_path, read_path
from tests.camera_layouts import ring
from tests.captures import check_refused
from tests.naming import assert_names, raises_mentioning
from tests.posed_captures import PINHOLE, SMALL, WRITERS, call, capture_in, write_capture
from tests.processes import run_main
from tests.test_scene import load
from tests.toy_scene import change, write_scene

MAIN = "transforms.json"


def captured(folder: Path, **of_frame) -> Path:
    """A ring of 20, with keys of each frame, each a function of its index, whose None leaves out the key."""
    write_capture(folder, ring(20))
    values = [{key: value(i) for key, value in of_frame.items() if value(i) is not None} for i in range(20)]
    change(folder, lambda c: [frame.update(values[i]) for i, frame in enumerate(c["frames"])], MAIN)
    return folder


OBEYED = {  # keys of frames by index, and how many images are trained and tested
    "is_test": ({"is_test": lambda i: i % 5 == 0}, 16, 4),
    "is_test_of_some": ({"isTest": lambda i: True if i < 3 else None}, 17, 3),
    "split": ({"split": lambda i: "test" if i > 14 else "train"}, 15, 5),
    "is_train": ({"is_train": lambda i: i != 7}, 19, 1),
    "enabled": ({"enabled": lambda i: i >= 2}, 15, 3),
    "exclude": ({"exclude": lambda i: True if i < 2 else None}, 15, 3),
    "depth_only": ({"depth only": lambda i: int(i < 2), "is_test": lambda i: i < 3}, 17, 1),
    "one_time": ({"time": lambda i: 0.5, "timestamp": lambda i: 17.0 + i}, 17, 3),
}


@pytest.mark.parametrize("name", OBEYED)
def test_keys_that_say_which_frames_count_are_obeyed(name: str, tmp_path: Path):
    keys, n_train, n_test = OBEYED[name]
    views = load_scene(str(captured(tmp_path, **keys))).views
    assert {split: len(of.files) for split, of in views.items()} == {"train": n_train, "test": n_test}


NOT_OBEYED = {  # keys of frames by index, and what the error names
    "time": ({"time": lambda i: i / 19}, "'time'", "moves"),
    "frame_time": ({"frame_time": lambda i: i}, "'frame_time'", "moves"),
    "unknown_split": ({"split": lambda i: "holdout"}, "frame 0", "'holdout'"),
    "no_flag": ({"enabled": lambda i: "maybe"}, "'enabled'", "'maybe'"),
    "none_left": ({"exclude": lambda i: True}, MAIN, "all frames"),
}


@pytest.mark.parametrize("name", NOT_OBEYED)
def test_keys_that_cannot_be_obeyed_are_refused(name: str, tmp_path: Path):
    keys, *named = NOT_OBEYED[name]
    check_refused(load, captured(tmp_path, **keys), *named)


def test_points_are_seen_by_the_same_images_where_some_become_a_path(tmp_path: Path):
    """The first two, which have no files: a point that the third and the fourth see is none of the first and second."""
    capture = capture_in(tmp_path, [PINHOLE] * 4)
    points = Points(np.eye(3)[:2], np.zeros((2, 3), np.uint8), np.array([3, 1]), np.array([0, 2, 3, 1]))
    for image in capture.images[:2]:
        image.file.unlink()
    names = [image.name for image in capture.images]
    capture = replace(capture, points=points, splits={"train": names[2:], "test": names[:2]})
    found = resolve_files(capture, tmp_path)
    assert [image.name for image in found.images] == names[2:] and [*found.paths] == ["test"]
    assert found.points.views.tolist() == [0, 1] and found.points.track_lengths.tolist() == [2, 0]


@pytest.mark.parametrize(
    "key, of_frame, is_doubted",
    [
        ("is_registered", lambda i: i > 4, True),
        ("flash", lambda i: i > 4, False),
        ("time", lambda i: 1.7e9 + i, False),
        ("valid", lambda i: 0.9, False),
        ("train_weight", lambda i: i > 4, True),
        ("camera_to_rig", lambda i: [[1, 0, 0, 0.1], [0, 1, 0, 0], [0, 0, 1, 0]], True),
        ("world_to_camera", lambda i: np.eye(4).tolist(), False),
        ("serial", lambda i: f"cam{i % 2}", False),
    ],
)
def test_unknown_keys_are_doubted_if_they_may_say_which_frames_count(key, of_frame, is_doubted, tmp_path, capsys):
    folder = str(captured(tmp_path, **{key: of_frame}))
    assert run_main(inspect, folder) == is_doubted
    assert (f"'{key}'" in capsys.readouterr().out) == is_doubted


def test_a_split_without_images_is_a_camera_path(tmp_path: Path, capsys):
    """As Blender's add-ons write test cameras, whose images are never made."""
    scene, run = write_scene(tmp_path / "scene", counts={"train": 12, "test": 2}), str(tmp_path / "run")
    forty = lambda frame: [dict(frame, file_path=f"test/{i}") for i in range(40)]  # noqa: E731
    change(scene, lambda c: c.update(frames=forty(c["frames"][0])), "transforms_test.json")
    call(train, *SMALL, "-v", "--data.path", str(scene), "--out", run)
    assert_names(capsys.readouterr().out, "40 cameras of test", "--cameras test")
    call(render, run, "--cameras", "test", "--size", "6", "4")
    assert len(list(Path(run, "render/test").glob("*.png"))) == 40
    check_refused(lambda folder: load_scene(str(folder)).split("test"), scene, "no split 'test'")
    change(scene, lambda c: c.update(frames=[]), "transforms_test.json")
    assert list(load_scene(str(scene)).views) == ["train"], "an exporter wrote the file though nothing was asked for"


def test_focal_lengths_of_a_stated_size_beat_angles(tmp_path: Path):
    """Blender's angles are of its sensor; focal lengths that differ are not believed."""
    angle = 2 * np.arctan(12 / 20)
    folder = write_capture(tmp_path, ring(20), camera_angle_x=angle, camera_angle_y=0.5)
    assert load_capture(str(folder)).images[0].lens.focal == (20, 20)
    check_refused(load, write_capture(tmp_path, ring(20), camera_angle_x=angle, fl_x=40.0), "camera_angle_x", "fl_x")


def renamed(folder: Path, on_disk, in_file) -> Path:
    write_capture(folder, ring(20))
    for file in sorted((folder / "images").iterdir()):
        place = folder / on_disk(f"images/{file.name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)
    change(folder, lambda c: [f.update(file_path=in_file(f["file_path"])) for f in c["frames"]], MAIN)
    return folder


NAMES = {  # of a file on disk, and in transforms.json
    "unicode": (lambda n: unicodedata.normalize("NFD", f"é{n}"), lambda n: unicodedata.normalize("NFC", f"é{n}")),
    "case_and_no_extension": (lambda n: n.upper().replace("IMAGES", "images"), lambda n: n.removesuffix(".png")),
    "folder_of_another_computer": (lambda n: n, lambda n: f"/home/me/scan/{n}"),
    "windows": (lambda n: n, lambda n: f"C:\\Users\\Me\\{n}".replace("/", "\\")),
    "name_alone": (lambda n: n, lambda n: f"../../elsewhere/{Path(n).name}"),
    "extension_twice_on_disk": (lambda n: f"{n}.png", lambda n: n),
    "extension_twice_in_file": (lambda n: n, lambda n: f"{n}.png"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_nearest_name_is_taken_with_a_note(name: str, tmp_path: Path):
    capture = load_capture(str(renamed(tmp_path, *NAMES[name])))
    assert [image.found.name[:3] for image in capture.images] == [f"{index:03d}" for index in range(20)]
    assert any("20 of 20 images are there under other names" in note.text for note in capture.notes)


def test_what_is_no_neighbour_is_named(tmp_path: Path):
    folder = renamed(tmp_path / "prefixed", lambda n: n, lambda n: f"images/frame_0361.png{Path(n).name}")
    check_refused(load, folder, "images has 20 images", "000.png")
    folder = write_capture(tmp_path / "linked", ring(20))
    for file in (folder / "images").iterdir():
        file.unlink()
        file.symlink_to(f"/mnt/gone/{file.name}")
    check_refused(load, folder, "link to /mnt/gone/000.png")
    folder = renamed(tmp_path / "elsewhere", lambda n: f"left/{Path(n).name}", lambda n: f"right/{Path(n).name}")
    check_refused(load, folder, "20 images (left/000.png")
    folder = write_capture(tmp_path / "twice", ring(20))
    change(folder, lambda c: [c["frames"][i].update(file_path=f"{i}/none/019.png") for i in range(2)], MAIN)
    assert sum(image.found is None for image in load_capture(str(folder)).images) == 2, "neither frame's"


def test_masks_and_points_of_another_computer(tmp_path: Path):
    folder = write_capture(tmp_path, ring(20), points=np.random.default_rng(0).normal(size=(20, 3)))
    (folder / "masks").mkdir()
    for index in range(20):
        Image.new("L", (24, 16), 255).save(folder / f"masks/{index}.png")
    change(folder, lambda c: c.update(ply_file_path="/home/me/scan/POINTS.ply"), MAIN)
    change(folder, lambda c: [f.update(mask_path=f"C:\\scan\\masks\\{i}.png") for i, f in enumerate(c["frames"])], MAIN)
    capture = load_capture(str(folder))
    assert len(capture.points.positions) == 20
    assert [image.mask.name for image in capture.images] == [f"{index}.png" for index in range(20)]


FOREIGN = {  # files of other programs, and what the message names
    "cameras.xml": ('<?xml version="1.0"?><document version="2.0.0">\n <chunk label="1">', "Metashape"),
    "registration.csv": ("#name,x,y,alt,heading\n", "RealityCapture"),
    "cameras.sfm": ('{"version": [], "views": [], "poses": []}', "Meshroom"),
    "opensfm/reconstruction.json": ('[{"cameras": {}, "shots": {}}]', "opensfm export_colmap"),
    "bundle/bundle.out": ("# Bundle file v0.3\n", "Bundler"),
    "groundtruth.txt": ("# timestamp tx ty tz qx qy qz qw\n", "TUM"),
    "cams/00000000_cam.txt": ("extrinsic\n1 0 0 0\n", "MVSNet"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_poses_of_other_programs_are_named_before_poses_are_found_anew(name: str, tmp_path: Path, monkeypatch, capsys):
    content, *named = FOREIGN[name]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    check_refused(load, tmp_path, Path(name).name, *named)
    capture = capture_in(tmp_path, [PINHOLE] * 5)
    monkeypatch.setattr(inspect, "find_spec", lambda name: True)
    run_main(inspect, tmp_path)
    assert_names(capsys.readouterr().out, "warning: ", Path(name).name, *named)
    monkeypatch.setattr("nerfkit.data.load.solve", lambda *_: WRITERS["colmap"](tmp_path, capture) or tmp_path)
    assert load_capture(str(tmp_path)).format_again == "auto"
    assert_names(capsys.readouterr().out, "warning: ", Path(name).name, *named)


def test_lost_poses_of_the_small_formats(tmp_path: Path):
    WRITERS["nsvf"](tmp_path, capture_in(tmp_path, [PINHOLE] * 5))
    np.savetxt(tmp_path / "pose/r_01.txt", np.full((4, 4), -np.inf))
    assert any("1 of 5" in note.text and "r_01.png" in note.text for note in load_capture(str(tmp_path)).notes)


def test_a_whole_format_beside_a_broken_one_is_read(tmp_path: Path):
    capture = capture_in(tmp_path, [PINHOLE] * 5)
    WRITERS["llff"](tmp_path, capture)
    WRITERS["colmap"](tmp_path, capture)
    (tmp_path / "sparse/0/images.bin").unlink()
    read = load_capture(str(tmp_path))
    assert read.format == "llff" and any("not read as colmap" in note.text for note in read.notes)
    with raises_mentioning(SceneError, "images"):
        load_capture(str(tmp_path), "colmap")


def test_points_that_cannot_be_read_are_left_out(tmp_path: Path):
    folder = write_capture(tmp_path, ring(20), ply_file_path="points.ply")
    for named in ("does not exist", "half"):
        capture = load_capture(str(folder))
        assert capture.points is None and any(named in note.text for note in capture.notes), capture.notes
        (folder / "points.ply").write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty half x\nend_header\n0\n")


@pytest.mark.filterwarnings("ignore:.*scale")
def test_paths_of_keyframes_alone(tmp_path: Path):
    """nerfstudio's before its frames are made, and instant-ngp's in its unit cube."""
    poses = np.concatenate([ring(6), np.broadcast_to([[0, 0, 0, 1.0]], (6, 1, 4))], axis=1)
    rows = [{"matrix": str(pose.T.ravel().tolist()), "fov": 50} for pose in poses]
    to_ngp = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])  # y z x
    quaternions = Rotation.from_matrix(to_ngp @ poses[:, :3, :3] * [1, -1, -1]).as_quat().tolist()
    places = (to_ngp @ (poses[:, :3, 3] * 0.33 + 0.5).T).T.tolist()
    keys = [{"R": r, "T": t, "fov": 50, "scale": 1.5} for r, t in zip(quaternions, places, strict=True)]
    size = {"render_width": 60, "render_height": 40, "camera_type": "perspective"}
    nerfstudio = {"keyframes": rows, "camera_path": [], "seconds": 4, "fps": 24, **size}
    for content, n_frames, shape in ((nerfstudio, 97, (60, 40)), ({"path": keys, "time": 1.0}, 301, (8, 6))):
        (tmp_path / "p.json").write_text(json.dumps(content))
        path = read_camera_path(tmp_path / "p.json", None, (8, 6))
        np.testing.assert_allclose([key.pose for key in path.keyframes], poses[:, :3], atol=1e-6)
        assert len(read_path(tmp_path / "p.json", (8, 6))) == n_frames and path.size == shape
    no_turn = {"R": [0, 0, 0, 0], "T": [0, 0, 0], "fov": 50}
    for damaged in ({"path": [no_turn]}, {"keyframes": [{"matrix": "[1", "fov": 50}]}):
        (tmp_path / "p.json").write_text(json.dumps(damaged))
        with raises_mentioning(SceneError, "keyframe 0"):
            read_path(tmp_path / "p.json", (8, 6))
