# SPDX-License-Identifier: Apache-2.0
"""Poses in other axes than they are meant to be: what gives away cameras whose y and z axes are turned round.

Such cameras look away from what they photographed, with their heads down. Neither is proof alone: some captures look
outwards. The optical axes of world-to-camera matrices, and of transposed rotations, do not meet.
"""

import numpy as np

from nerfkit.data.capture import Note, Points, PosedImage
from nerfkit.data.scene_transform.rig import Rig, measure, seen_by
from nerfkit.errors import SceneError

ADVICE = "if they are, flip the signs of the second and the third column of every transform_matrix"
FEWEST = 8  # cameras, or points, of which anything is said
SPREAD = 0.1  # least eigenvalue of mean(1 - d d^T) of viewing directions d that meet
NEAR_FOCUS = 0.3  # of the axes from their common point, by the cameras' distance
IN_FRONT, NEAR_AXES, BETTER = 0.95, 0.1, 3.0  # of poses read otherwise
SAMPLED = 64, 2048  # cameras and points that are projected
TO_OPENCV = np.array([1.0, -1, -1, 1])  # of the columns of a pose
MORE = 4  # times as many points as are seen


def axes_diagnostics(
    where: str, images: list[PosedImage], points: Points | None, up: tuple[float, float, float] | None
) -> list[Note]:
    """A warning where poses may not be in OpenGL axes; raises SceneError naming `where` if they certainly are not."""
    if len(images) < FEWEST:
        return []
    opencv = "the poses look like OpenCV axes"
    poses = np.stack([image.camera_to_world for image in images])  # [V, 3, 4]
    if points is not None and len(points.positions) >= FEWEST:
        some = points.positions[:: -(-len(points.positions) // SAMPLED[1])]
        probes = [(image.camera_to_world, image.lens) for image in images[:: -(-len(images) // SAMPLED[0])]]
        seen = sum(len(seen_by(some, pose, lens)) for pose, lens in probes)
        turned = sum(len(seen_by(some, pose * TO_OPENCV, lens)) for pose, lens in probes)
        if turned > MORE * seen and turned >= FEWEST:
            cause = f"{turned} of the sparse points projected lie in the images if they are, {seen} as they are read"
            raise SceneError(f"{where}: {opencv}: {cause}; {ADVICE}, or give points of the same frame")
        if seen > turned:
            return []
    rig = measure(poses[:: -(-len(poses) // SAMPLED[0])])
    if better := _meets_better(rig):
        return [Note("warning", f"the poses look {better}; check what wrote them")]
    across = np.eye(3) - rig.directions.T @ rig.directions / len(rig.directions)
    meet = rig.focus is not None and rig.miss < NEAR_FOCUS and np.linalg.eigvalsh(across)[0] >= SPREAD
    looks_away = meet and rig.in_front < 1 - IN_FRONT
    is_upside_down = up is not None and (poses[:, :, 1] @ np.array(up)).mean() < -0.5 * np.linalg.norm(up)
    is_upright = up is not None and poses[:, 2, 1].mean() > 0.5  # along z
    away = "the cameras look away from the point where their axes meet"
    if looks_away and is_upside_down:
        raise SceneError(f"{where}: {opencv}: {away}, and stand upside down; {ADVICE}, or else give the world's 'up'")
    if looks_away:
        return [Note("info" if is_upright else "warning", f"{opencv}, or the capture looks outwards: {away}; {ADVICE}")]
    if is_upside_down and not meet:
        return [Note("warning", f"{opencv}: the cameras stand upside down; {ADVICE}")]
    return []


def _meets_better(rig: Rig) -> str | None:
    """What the poses look like if their optical axes meet far better when they are turned round."""
    turned = rig.poses[:, :, :3].transpose(0, 2, 1)
    inverse = np.concatenate([turned, -turned @ rig.poses[:, :, 3:]], axis=-1)
    transposed = np.concatenate([turned, rig.poses[:, :, 3:]], axis=-1)
    for others, words in ((inverse, "like world-to-camera matrices"), (transposed, "as if rotations were transposed")):
        there = measure(others)
        if there.focus is None or there.in_front < IN_FRONT or there.miss > NEAR_AXES:
            continue
        looks_away = rig.focus is not None and rig.miss < NEAR_AXES and rig.in_front < 1 - IN_FRONT
        apart, others_apart = (of[:, :, 3].std(axis=0).max() for of in (rig.poses, others))
        if looks_away and 2 * others_apart < apart:  # from a ring outwards
            continue
        if rig.focus is None or rig.in_front < 0.5 or rig.miss > BETTER * there.miss:
            return f"{words}: read so, axes miss their common point by {there.miss:.2f}, and now by {rig.miss:.2f}"
    return None
