# SPDX-License-Identifier: Apache-2.0
"""Poses in other axes than they are meant to be: what gives away cameras whose y and z axes are turned round.

Camera-to-world matrices in OpenCV's axes (y down, z forward) are valid in OpenGL's: the cameras then look away from
what they photographed, with their heads down. Neither is proof alone: some captures look outwards. World-to-camera
matrices, and transposed rotations, are valid as well, but then the optical axes do not meet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.scene_transform.rig import measure

ADVICE = "if these are their axes, negate columns 1 and 2 of every transform_matrix"
FEWEST = 8  # cameras, or points, of which anything is said
SPREAD = 0.1  # smallest eigenvalue of mean(1 - d d^T) over viewing directions d: below, they are too parallel to meet
NEAR_FOCUS = 0.3  # median distance of the axes from their common point, by that of the cameras
IN_FRONT, NEAR_AXES, BETTER = 0.95, 0.1, 3.0  # of poses read otherwise: looking at a point, hitting it, so much better
SAMPLED = 64, 2048  # cameras and points that are projected
MORE = 4  # times as many points as are seen


class Verdict(NamedTuple):
    """What is found, and whether it is certain."""

    text: str
    is_certain: bool


def suspect(
    poses: np.ndarray, lenses: list[Lens], points: np.ndarray | None, up: tuple[float, float, float] | None
) -> Verdict | None:
    """What speaks against camera-to-world `poses` [V, 3, 4] in OpenGL axes; `points` [P, 3] and `up` in their world."""
    if len(poses) < FEWEST:
        return None
    if points is not None and len(points) >= FEWEST:
        seen, turned = _points_seen(poses, lenses, points)
        if turned > MORE * seen and turned >= FEWEST:
            cause = f"{turned} of the sparse points projected lie in the images if they are, {seen} as they stand"
            return Verdict(
                f"the poses look like OpenCV axes: {cause}; {ADVICE}, or give points of the same frame", True
            )
        if seen > turned:
            return None
    if better := _meets_better(poses):
        return Verdict(f"the poses look {better}; check what wrote them", False)
    behind = _behind_focus(poses)
    upside_down = up is not None and _uprightness(poses, up) < -0.5
    away = "the cameras look away from the point where their axes meet"
    if behind == 1 and upside_down:
        cause = f"{away}, and stand upside down"
        return Verdict(f"the poses look like OpenCV axes: {cause}; {ADVICE}, or else give the world's 'up'", True)
    if behind == 1:
        return Verdict(f"the poses look like OpenCV axes, or the capture looks outwards: {away}; {ADVICE}", False)
    if behind is None and upside_down:
        return Verdict(f"the poses look like OpenCV axes: the cameras stand upside down; {ADVICE}", False)
    return None


def _meets_better(poses: np.ndarray) -> str | None:
    """What the poses [V, 3, 4] look like if their optical axes meet far better when they are turned round."""
    poses = poses[:: -(-len(poses) // SAMPLED[0])]
    turned = poses[:, :, :3].transpose(0, 2, 1)
    inverse = np.concatenate([turned, -turned @ poses[:, :, 3:]], axis=-1)
    transposed = np.concatenate([turned, poses[:, :, 3:]], axis=-1)
    here = measure(poses)
    for others, words in ((inverse, "like world-to-camera matrices"), (transposed, "as if rotations were transposed")):
        there = measure(others)
        if there.focus is None or there.in_front < IN_FRONT or there.miss > NEAR_AXES:
            continue
        if here.focus is None or here.in_front < 0.5 or here.miss > BETTER * there.miss:
            return (
                f"{words}: read so, the cameras' axes miss their common point by {there.miss:.2f} of its distance and "
                f"{there.in_front:.0%} have it in front, as they stand by {here.miss:.2f} and {here.in_front:.0%}"
            )
    return None


def _behind_focus(poses: np.ndarray) -> int | None:
    """1 if the optical axes meet behind nearly all of the cameras, 0 if elsewhere, and None if they do not meet."""
    origins, directions = poses[:, :, 3], -poses[:, :, 2]  # [V, 3]
    across = np.eye(3) - directions[:, :, None] * directions[:, None]  # [V, 3, 3]
    total = across.mean(axis=0)
    if np.linalg.eigvalsh(total)[0] < SPREAD:
        return None
    focus = np.linalg.solve(total, np.einsum("vij,vj->i", across, origins) / len(poses))
    offsets = focus - origins
    along = (offsets * directions).sum(axis=1)
    distances = np.linalg.norm(offsets, axis=1)
    from_axes = np.linalg.norm(offsets - along[:, None] * directions, axis=1)
    if not np.median(from_axes) < NEAR_FOCUS * np.median(distances):
        return None
    return int((along < 0).mean() > 0.95)


def _uprightness(poses: np.ndarray, up: tuple[float, float, float]) -> float:
    """Cosine between `up` and the cameras' y axes, on average."""
    return float((poses[:, :, 1] @ np.array(up)).mean() / np.linalg.norm(up))


def _points_seen(poses: np.ndarray, lenses: list[Lens], points: np.ndarray) -> tuple[int, int]:
    """How many pairs of points and images there are, without distortion; then with the y and z axes turned round."""
    points = points[:: -(-len(points) // SAMPLED[1])]
    seen = turned = 0
    for index in range(0, len(poses), -(-len(poses) // SAMPLED[0])):
        lens, pose = lenses[index], poses[index]
        local = (points - pose[:, 3]) @ pose[:, :3]  # [P, 3], OpenGL axes
        sides = np.array([lens.width, lens.height]) / lens.params[0]
        inside = (2 * np.abs(local[:, :2]) < sides * np.abs(local[:, 2:])).all(axis=1)
        is_before = local[:, 2] < 0
        seen, turned = seen + int((inside & is_before).sum()), turned + int((inside & ~is_before).sum())
    return seen, turned
