# SPDX-License-Identifier: Apache-2.0
"""Captures that fit no scene: training and inspection say in a line what was found and what to change."""

import json
from pathlib import Path

import numpy as np
import pytest

from nerfkit.commands import inspect, train
from nerfkit.data.load import load_scene
from nerfkit.data.scene_transform.doubts import doubts_of_pictures
from nerfkit.errors import SceneError
from tests.naming import assert_names, raises_naming
from tests.posed_captures import HEIGHT, SMALL, WIDTH, noise, write_capture
from tests.processes import run_main
from tests.rigs import RIGS, grid, look_at, ring
from tests.test_crop import UTM
from tests.toy_scene import write_scene


def moved(view: int, far: float) -> np.ndarray:
    """A ring of cameras [V, 3, 4], one of which is far away."""
    poses = ring(20)
    poses[view, :, 3] += far
    return poses


def at_one_point() -> np.ndarray:
    poses = ring(20)
    poses[:, :, 3] = 1.0, 2.0, 3.0
    return poses


def away_from_each_other() -> np.ndarray:
    """Four cameras around a point, which look outwards, of 62 x 44 degrees."""
    eyes = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])
    return look_at(eyes.copy(), 2 * eyes)


def gray(index: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), 140, dtype=np.uint8) + np.uint8(index % 2)


def points_around(center: tuple[float, float, float], size: float) -> np.ndarray:
    return np.array(center) + size * np.random.default_rng(0).normal(size=(300, 3))


def far_away(rounded: bool) -> np.ndarray:
    """A ring 60 m across in UTM coordinates, as programs write them that keep float32."""
    poses = ring(20)
    poses[:, :, 3] = 30 * poses[:, :, 3] + UTM
    return poses.astype(np.float32).astype(np.float64) if rounded else poses


FOUND = {  # poses, other values of write_capture, what a warning has to name
    "one_far": (moved(7, 5e5), {}, ("1 of 17", "images/007.png", "correct their poses")),
    "turned_on_the_spot": (at_one_point(), {"points": points_around((0, 0, 0), 0.1)}, ("one point", "move the camera")),
    "no_overlap": (away_from_each_other(), {}, ("no point", "4 training views", "OpenGL")),
    "one_view": (ring(1), {"points": points_around((0, 0, 0.5), 0.3)}, ("one training view", "images/000.png")),
    "no_depth": (ring(1), {}, ("sparse points", "data.box")),
    "points_of_another_unit": (ring(20), {"points": points_around((0, 0, 0.5), 1e5)}, ("near", "points", "unit")),
    "rounded_positions": (far_away(rounded=True), {}, ("4.5", "digits end at 0.5", "subtract one point")),
    "focal_in_mm": (ring(20), {"fl_x": 3, "fl_y": 3}, ("focal length 3", "152 degrees", "17 of 17", "millimetres")),
    "no_parallax": (grid(), {"points": points_around((0, 5e5, 0), 1e4)}, ("pixels", "parallax", "unit")),
}


@pytest.mark.parametrize("name", FOUND)
def test_cameras_that_fit_no_scene_are_warned_of(name: str, tmp_path: Path, capsys):
    poses, values, named = FOUND[name]
    folder = write_capture(tmp_path / "odd", poses, **values)
    warnings = load_scene(str(folder)).frame.warnings()
    assert any(all(part in line for part in named) for line in warnings), warnings
    assert all(line.isprintable() and len(line) < 400 for line in warnings)
    assert run_main(inspect, str(folder)) == 1
    said = capsys.readouterr().out
    assert all(line in said for line in warnings) and "ready to train" not in said


@pytest.mark.parametrize("name", RIGS)
@pytest.mark.parametrize("scale, origin", [(1e-8, 0), (3e4, 0), (1, UTM), (1000, 1000 * UTM)])
def test_captures_of_any_unit_and_place_that_are_fine(name: str, scale: float, origin: np.ndarray, tmp_path: Path):
    """The frame has the same numbers whatever the unit and the origin, and no warning but that of a guess."""
    poses = RIGS[name].copy()
    points = points_around({"grid": (0, 9, 0), "corridor": (33, 0, 1.6)}.get(name, (0, 0, 0.5)), 0.6)
    one = load_scene(str(write_capture(tmp_path / "one", poses, points=points))).frame
    poses[:, :, 3] = scale * poses[:, :, 3] + origin
    frame = load_scene(str(write_capture(tmp_path / name, poses, points=scale * points + origin))).frame
    ours = [line for line in frame.warnings() if any(word in line for word in ("training", "unit", "positions"))]
    assert not ours
    assert (frame.near, frame.far) == pytest.approx((one.near, one.far), rel=1e-3)
    assert frame.scale * scale == pytest.approx(one.scale, rel=1e-6)


def test_poses_of_another_unit_than_the_box(tmp_path: Path):
    """In a format whose scenes stand in a known box, and with a box that is given."""
    poses = ring(20)
    poses[:, :, 3] *= 1e-4
    folder = str(write_capture(tmp_path / "odd", poses))
    (warning,) = load_scene(folder, box=(-1.0, -1, -1, 1, 1, 1)).frame.warnings()
    assert_names(warning, "data.box", "3.46")
    poses = ring(20)
    folder = str(write_capture(tmp_path / "fine", poses))
    assert not load_scene(folder, box=(-1.0, -1, -1, 1, 1, 1)).frame.warnings()
    assert not load_scene(str(write_scene(tmp_path / "toy"))).frame.warnings()


def test_a_box_is_in_the_coordinates_of_the_files_which_must_not_be_far_away(tmp_path: Path):
    folder, box = str(write_capture(tmp_path / "far", far_away(rounded=False))), [*(UTM - 40), *(UTM + 40)]
    assert any("subtract one point" in line for line in load_scene(folder, box=tuple(box)).frame.warnings())
    assert not any("subtract" in line for line in load_scene(folder).frame.warnings())


def test_a_solve_that_failed_and_a_lens_that_folds_are_not_ready_to_train(tmp_path: Path, capsys):
    """Training refuses the lens."""
    folder = write_capture(tmp_path / "odd", ring(20))
    content = json.loads((folder / "transforms.json").read_text())
    (folder / "transforms.json").write_text(json.dumps(content | {"frames": content["frames"][:9]}))
    (folder / "images" / "depth_000.png").write_bytes(b"")  # named unlike the images
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "9 of 20 images have a pose", "find the poses again")
    (folder / "transforms.json").write_text(json.dumps(content | {"camera_model": "OPENCV", "k1": -3.0}))
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "OPENCV", "k1 -3", "folds")


def with_points(folder: Path) -> str:
    return str(write_capture(folder / "ring", ring(20), points=points_around((0, 0, 0.5), 0.2)))


@pytest.mark.parametrize("box", ["2.2 2.2 2.2 2.7 2.7 2.7", "1 -3 -3 7 3 3"])
def test_a_box_beside_the_scene_is_not_ready_to_train(box: str, tmp_path: Path, capsys):
    """Also one that many rays meet, but that nothing is in."""
    for folder in (with_points(tmp_path), str(write_capture(tmp_path / "bare", ring(20)))):
        assert run_main(inspect, folder, "--data.box", *box.split()) == 1
        assert_names(capsys.readouterr().out, "data.box", "of the rays of the training views meet it", "look at (")


def test_a_box_that_next_to_no_ray_meets_is_refused_before_a_run_is_replaced(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".nerfkit").write_text("nerfkit run\nmetrics.jsonl\n")
    (run / "metrics.jsonl").write_text("{}\n")
    options = ["--data.path", with_points(tmp_path), "--out", str(run), *SMALL]
    with raises_naming(SceneError, "data.box", "100.0", "101.0", "next to no ray"):
        run_main(train, *options, "--overwrite", "--data.box", "100", "100", "100", "101", "101", "101")
    assert (run / "metrics.jsonl").read_text() == "{}\n"


def test_a_small_box_around_one_of_many_things_is_trained(tmp_path: Path, capsys):
    """A warning at most: none where some of the points are inside."""
    points = np.concatenate([points_around((0, 0, 0.5), 1.0), points_around((0.7, 0.2, 0.5), 0.01)[:20]])
    folder = str(write_capture(tmp_path / "many", ring(20), points=points))
    box = (0.55, 0.05, 0.35, 0.85, 0.35, 0.65)
    assert not load_scene(folder, box=box).frame.warnings()
    few = (-0.9, 0.3, 1.3, -0.85, 0.35, 1.35)
    options = ["--data.path", folder, "--out", str(tmp_path / "run"), *SMALL, "--data.box", *map(str, few)]
    assert run_main(train, *options) == 0
    assert_names(capsys.readouterr().out, "warning: data.box", "sparse points are inside")


def test_pictures_that_show_nothing():
    pictures = [noise(k).reshape(-1, 3) for k in range(20)]
    plain = [gray(k).reshape(-1, 3) for k in range(20)]
    assert_names(doubts_of_pictures(plain[:19] + pictures[:1])[0], "19 of 20", "one color", "140, 140, 140")
    assert not doubts_of_pictures(plain[:15] + pictures[:5]), "a view or two of a wall are usual"
    assert_names(doubts_of_pictures([pictures[0]] * 20)[0], "20 of 20", "copies")
    assert not doubts_of_pictures([*pictures[:10], *pictures[:1] * 5])
    silhouette = [np.concatenate([0 * p, p[:, :1]], axis=1) for p in pictures]
    assert not doubts_of_pictures(silhouette), "black, but for where it is opaque"


def test_training_goes_on_with_pictures_of_nothing_but_says_so(tmp_path: Path, capsys):
    folder = write_capture(tmp_path / "odd", ring(20), gray)
    assert run_main(train, *SMALL, "--data.path", str(folder), "--out", str(tmp_path / "run")) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert "one color" in line and "test views: PSNR" in said
    assert run_main(inspect, str(folder)) == 1
    assert "one color" in capsys.readouterr().out


def test_no_test_views(tmp_path: Path, capsys):
    folder = write_capture(tmp_path / "few", ring(10))
    assert run_main(train, *SMALL, "--data.path", str(folder), "--out", str(tmp_path / "run")) == 0
    said = capsys.readouterr().out
    assert_names(said, "scoring", "none", "no test views")
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "10 training images are few", "no test images")
