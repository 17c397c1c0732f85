# SPDX-License-Identifier: Apache-2.0
"""The frame of a scene: one similarity, the kind of scene, near, far and box, for any cameras."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data import scene_transform as frames
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.scene_transform.transform import SceneTransform, identity_transform
from nerfkit.errors import RunError, SceneError
from tests.camera_layouts import KIND_OF, LAYOUTS, cloud, grid, look_at, moved, ring, similarity
from tests.naming import raises_mentioning

SQUARE = Lens("PINHOLE", (100.0, 100.0, 60.0, 60.0), 120, 120)
BOX = np.array([[-1.0, -2, -3], [1, 2, 3]])
CENTERS = {"ring": (0, 0, 0.5), "half ring": (0, 0, 0.5), "grid": (0, 9, 0), "corridor": (15, 0, 1.6)}


def find_scene_transform(
    poses, points=None, bounds=None, training=None, has_alpha: bool = False, up=None, lens: Lens = SQUARE
) -> SceneTransform:
    """The frame of cameras at `poses` [V, 3, 4], with `bounds` [V, 2] of their depths; `training` [V] bool."""
    bounds = [None] * len(poses) if bounds is None else map(tuple, bounds)
    rows = enumerate(zip(poses, bounds, strict=True))
    images = [PosedImage(str(k), Path(str(k)), pose, lens, bounds=ends) for k, (pose, ends) in rows]
    names = () if training is None else [str(k) for k in np.flatnonzero(training)]
    return frames.find_scene_transform(Capture("toy", "colmap", images, points, up), names, has_alpha)


def check_sane(frame: SceneTransform) -> None:
    """No NaN anywhere, a rotation, and room to see something in."""
    numbers = [frame.rotation, frame.center, frame.scale, frame.near, frame.far, frame.box, frame.up]
    assert all(np.isfinite(number).all() for number in numbers), frame.notes
    assert np.abs(frame.rotation @ frame.rotation.T - np.eye(3)).max() < 1e-12
    assert np.linalg.det(frame.rotation) > 0
    assert frame.scale > 0 and 0 < frame.near < frame.far and (frame.box[0] < frame.box[1]).all()
    assert not any("nan" in text or "\n" in text for _, text in frame.notes)
    words = ("kind", "up", "center", "radius", "near", "far", "box")
    assert all(any(text.startswith(word) for _, text in frame.notes) for word in words)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("with_points", [False, True])
def test_kinds(name: str, with_points: bool):
    poses = LAYOUTS[name]
    points = cloud(CENTERS[name], 0.5, len(poses)) if with_points else None
    frame = find_scene_transform(poses, points)
    check_sane(frame)
    assert frame.kind == KIND_OF[name], frame.notes
    if name != "grid":
        distances = np.linalg.norm(frame.to_model(poses)[:, :, 3], axis=1)
        assert np.quantile(distances, 0.9) == pytest.approx(1)
    if name in ("ring", "half ring"):
        assert np.abs(frame.to_model(np.array([0, 0, 0.5]))).max() < 0.05
    if with_points and name != "corridor":
        assert ((frame.to_model(points.positions) >= frame.box[0]).all(1)).mean() > 0.95 and not frame.warnings()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("tracked", [False, True])
def test_panoramas_see_all_around(name: str, tracked: bool):
    """Whichever way they are turned, and what is behind them is as near as what is before them."""
    poses, panorama = LAYOUTS[name], Lens("EQUIRECTANGULAR", (120.0, 60.0), 120, 60)
    points = cloud(tuple(poses[0] @ [0, 0, 0.5, 1]), 0.01, 1)
    if not tracked:
        points = replace(points, track_lengths=points.track_lengths * 0, views=points.views[:0])
    frame = find_scene_transform(poses, points, lens=panorama)
    check_sane(frame)
    assert frame.kind == "walk-through" and 0 < frame.near / frame.scale < 0.5
    np.testing.assert_allclose(frame.center, poses[:, :, 3].mean(0))


def test_round_trip():
    poses = moved(LAYOUTS["corridor"], similarity(7))
    frame, points = find_scene_transform(poses), poses[:, :, 3]
    in_model = frame.to_model(points)
    assert np.abs(frame.to_input(frame.to_model(poses)) - poses).max() < 1e-9
    assert np.abs(frame.to_input(in_model[0]) - points[0]).max() < 1e-9
    homogeneous = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    assert np.abs((homogeneous @ frame.matrix().T)[:, :3] - in_model).max() < 1e-9
    steps, there = np.diff(points, axis=0), np.diff(in_model, axis=0)
    np.testing.assert_allclose(frame.directions_to_input(there) / frame.scale, steps, atol=1e-9)
    assert np.allclose(frame.distance_to_input(np.linalg.norm(there, axis=1)), np.linalg.norm(steps, axis=1))


def test_bad_json():
    content = find_scene_transform(LAYOUTS["ring"]).to_json()
    for key, value in {
        "rotation": (-np.eye(3)).tolist(), "center": [1, 2, float("inf")], "scale": 10**400, "near": -1, "far": 0,
        "box": [[1, 1, 1], [0, 2, 2]], "up": [0, 0, 2], "kind": "sphere", "notes": [["danger", "line"]],
    }.items():  # fmt: skip
        with raises_mentioning(RunError, key, "run.json"):
            SceneTransform.from_json(content | {key: value}, "run.json")
    with raises_mentioning(RunError, "object", "run.json"):
        SceneTransform.from_json([], "run.json")


def test_a_box_from_high_to_low_is_refused():
    with pytest.raises(SceneError, match="box"):
        identity_transform(BOX[::-1])


def same_way(eyes: list) -> np.ndarray:
    return look_at(np.array(eyes, dtype=float), np.array(eyes, dtype=float) + [0, 1, 0])


ROUND = ring(12, radius=1.0)
PANORAMA = ROUND.copy()
PANORAMA[:, :, 3] = [3, 4, 5]
DOWN = np.stack([np.stack([[np.cos(a), np.sin(a), 0], [-np.sin(a), np.cos(a), 0], [0, 0, 1], [a, a * a, 8]], axis=-1)
                 for a in np.linspace(0, 6, 9)])  # fmt: skip
ROLLED = ring(40)[:, :, [1, 0, 2, 3]] * [1, -1, 1, 1]  # a camera turned by 90 degrees
DEGENERATE = {  # cameras, and what kind of scene that is, where it is clear
    "one": (ring(1), "forward"),
    "two": (ring(2, 0, 1), "forward"),
    "two that face each other": (look_at(np.array([[0, -1.0, 0], [0, 1, 0]]), np.zeros(3)), "walk-through"),
    "three": (ring(3), "inward"),
    "at one point, the same way": (same_way([[1, 2, 3]] * 6), "forward"),
    "at one point, all around": (PANORAMA, "walk-through"),
    "parallel": (same_way([[k, 0, k * k] for k in range(6)]), "forward"),
    "collinear across the view": (same_way([[k, 0, 0] for k in range(5)]), "forward"),
    "collinear along the view": (same_way([[0, k, 0] for k in range(5)]), "walk-through"),
    "outwards": (look_at(ROUND[:, :, 3], 3 * ROUND[:, :, 3]), None),
    "straight down": (DOWN, None),
    "rolled": (ROLLED, "inward"),
    "far away": (ring() + [0, 0, 0, 1e6], "inward"),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_cameras(name: str):
    poses, kind = DEGENERATE[name]
    few, nothing = cloud((0, 5, 0), 0.1, len(poses), n=3), np.zeros(0, np.int64)
    untracked, one_place = replace(few, views=nothing), replace(few, positions=np.ones((3, 3)))
    for points in (None, few, untracked, one_place):
        for bounds in (None, np.tile([2.0, 9], (len(poses), 1)), np.tile([0.0, 9], (len(poses), 1))):
            for has_alpha in (False, True):
                frame = find_scene_transform(poses, points, bounds, has_alpha=has_alpha)
                check_sane(frame)
    error = np.abs(frame.to_input(frame.to_model(poses)) - poses).max()
    assert error < 1e-9 * max(1.0, np.abs(poses).max(), 1 / frame.scale)
    assert kind in (None, find_scene_transform(poses).kind)


def test_parallel_axes_are_forward_only_if_the_points_are_far():
    poses = DOWN
    far, close = (cloud((3, 10, depth), 0.1, len(poses)) for depth in (-200, -1))
    assert [find_scene_transform(poses, points).kind for points in (far, close)] == ["forward", "walk-through"]
    assert not find_scene_transform(poses, far).warnings()
    assert any("how far" in line for line in find_scene_transform(poses).warnings())


def test_up():
    def tilt(poses: np.ndarray) -> float:
        return float(np.degrees(np.arccos(np.clip(find_scene_transform(poses).rotation[2, 2], -1, 1))))

    for name in LAYOUTS:
        assert tilt(LAYOUTS[name]) < 1, name
    assert tilt(DOWN) < 1  # a drone: its up axes cancel, and it looks down
    pitched = look_at(ring()[:, :, 3] + [0, 0, 4.0], np.zeros(3))  # the mean of up axes of half a ring would lean
    assert tilt(pitched[:12]) < 1 < np.degrees(np.arccos(np.linalg.norm(pitched[:12, 2, 1].mean())))
    assert abs(find_scene_transform(ROLLED).rotation[2, 2]) > 0.99
    assert any("which way is up" in line for line in find_scene_transform(ROLLED).warnings())
    for up in ((0, 3, 0), (0, 0, 1)):  # of the files
        assert find_scene_transform(LAYOUTS["ring"], up=up).rotation @ up == pytest.approx([0, 0, np.linalg.norm(up)])


def test_near_and_far_follow_from_training_images_alone():
    poses, n = LAYOUTS["ring"], 30
    bounds = np.tile([2.0, 5.0], (n, 1))
    bounds[3], bounds[4] = (0.1, 5), (2, 70)
    training = np.ones(n, dtype=bool)
    training[[3, 4]] = False
    every = find_scene_transform(poses, bounds=bounds)
    some = find_scene_transform(poses, bounds=bounds, training=training)
    assert every.near == pytest.approx(0.09 * every.scale) and every.far == pytest.approx(84 * every.scale)
    assert some.near == pytest.approx(1.8 * some.scale) and some.far == pytest.approx(6 * some.scale)
    assert np.array_equal(some.to_model(poses), every.to_model(poses))
    points = cloud((0, 0, 0.5), 0.1, n)
    close = poses[3, :, 3] - 0.01 * poses[3, :, 2]  # right in front of camera 3, which alone sees it
    more = (np.tile(close, (50, 1)), np.zeros((50, 3), np.uint8), np.ones(50, int), np.full(50, 3))
    points = Points(*map(np.concatenate, zip(vars(points).values(), more, strict=True)))
    every, some = find_scene_transform(poses, points), find_scene_transform(poses, points, training=training)
    assert every.near == pytest.approx(0.005 * every.scale) and some.near > 0.3


def test_box_of_an_object():
    poses = LAYOUTS["ring"]
    points = cloud((0, 0, 0.5), 0.2, 30, n=4000)
    stray = points.positions.copy()
    stray[points.track_lengths == 2] += 40  # seen by two: not trusted
    frame = find_scene_transform(poses, replace(points, positions=stray), has_alpha=True)
    assert frame.kind == "object" and np.abs(frame.to_input(frame.box) - [0, 0, 0.5]).max() < 1.3
    assert any("points lie outside" in line for line in frame.warnings())
    frame = find_scene_transform(poses, has_alpha=True)
    assert np.allclose(frame.box, [[-1.2] * 3, [1.2] * 3]), "as long as the box of any object"
    eyes = frame.to_model(poses)[:, :, 3]
    assert frame.far >= np.linalg.norm(eyes - frame.box[0], axis=1).max() - 1e-12
    for changed in (replace(points, positions=points.positions * [1, 1, 0]), cloud((0, 0, 0.5), 0.01, 30, n=4000)):
        frame = find_scene_transform(poses, changed, has_alpha=True)
        check_sane(frame)
        assert np.ptp(frame.box, axis=0).max() == pytest.approx(2.4)


def test_box_of_a_forward_scene_holds_what_the_cameras_see():
    poses = grid()
    points = cloud((0, 9, 0), 0.5, len(poses))
    frame = find_scene_transform(poses, points)
    seen = np.array([[0.0, frame.distance_to_input(frame.near) + 0.01, 0], [1, 9, 1], [-2, 10, 1]])
    inside = frame.to_model(seen)
    assert (inside >= frame.box[0]).all() and (inside <= frame.box[1]).all()
    everywhere = np.tile([1.0, 1e6], (len(poses), 1))
    assert np.abs(find_scene_transform(poses, bounds=everywhere).box).max() <= 4
