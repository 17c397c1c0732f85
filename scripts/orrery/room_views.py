# SPDX-License-Identifier: Apache-2.0
"""Cameras of the room: a hand-held walk of one and a half rings around the orrery, and a few views from the walls.

Two frames: the world of `orrery.model`, and that of the capture's files, which is turned, scaled and shifted as a
structure-from-motion's would be. Poses are camera-to-world [4, 4] with OpenGL axes.
"""

from __future__ import annotations

import math

import numpy as np

from nerfkit.data.lens import Lens
from orrery.cameras import View, look_at
from orrery.meshes import rotation_about

WIDTH, HEIGHT = 240, 160  # pixels
# Of images of that size, in pixels; the distortion is that of an ordinary wide lens.
INTRINSICS = {"fl_x": 188.4, "fl_y": 188.9, "cx": 121.3, "cy": 79.2}
DISTORTION = {"k1": -0.12, "k2": 0.03, "p1": 5e-4, "p2": -3e-4}
TEST_EVERY = 8  # nerfkit's default: of the sorted names, from the first on

# The files' frame: scale * rotation @ world + offset.
FILE_SCALE = 0.37  # files' units of one scene unit
FILE_OFFSET = np.array([1.3, -2.1, 0.7])
FILE_ROTATION = rotation_about("x", 24) @ rotation_about("y", -17) @ rotation_about("z", 50)

RING, HALF_RING, WALL = 44, 18, 10  # views of each kind


def lens(width: int = WIDTH) -> Lens:
    """The lens of images of `width` pixels, two thirds as high."""
    whole = Lens("OPENCV", (*INTRINSICS.values(), *DISTORTION.values()), WIDTH, HEIGHT)
    return whole if width == WIDTH else whole.resized(width, round(width * HEIGHT / WIDTH))


def views() -> list[View]:
    """All views in the order of their names. The seed counts them from 1001: no view of the Orrery has it."""
    poses = _poses()
    return [
        View("train" if index % TEST_EVERY else "test", index, 1001 + index, pose) for index, pose in enumerate(poses)
    ]


def file_stem(view: View) -> str:
    """Name of a view's files, without folder and extension."""
    return f"frame_{view.index + 1:05d}"


def to_files(pose: np.ndarray) -> np.ndarray:
    """A pose [4, 4] of the world in the frame of the files."""
    moved = np.eye(4)
    moved[:3, :3] = FILE_ROTATION @ pose[:3, :3]
    moved[:3, 3] = points_to_files(pose[:3, 3])
    return moved


def points_to_files(points: np.ndarray) -> np.ndarray:
    """Points [..., 3] of the world in the frame of the files."""
    return FILE_SCALE * points @ FILE_ROTATION.T + FILE_OFFSET


def points_to_world(points: np.ndarray) -> np.ndarray:
    """The inverse of `points_to_files`."""
    return (points - FILE_OFFSET) @ FILE_ROTATION / FILE_SCALE


def _poses() -> list[np.ndarray]:
    """A full ring at changing heights, half a ring close to the table, and views from the walls."""
    rng = np.random.default_rng(23)
    poses = []
    for i in range(RING):
        turn = math.tau * i / RING
        height = 0.45 + 1.0 * math.sin(1.5 * turn + 0.4)
        poses.append(_hand_held(rng, turn, 3.0, height, aim=0.45))
    for i in range(HALF_RING):
        turn = -0.3 + math.pi * i / (HALF_RING - 1)
        height = 0.75 + 0.6 * math.sin(3 * turn)
        poses.append(_hand_held(rng, turn, 1.95, height, aim=0.3))
    for i in range(WALL):
        turn = math.tau * (i + 0.35) / WALL
        radius = min(4.3 / abs(math.cos(turn)), 3.2 / abs(math.sin(turn)), 5.0)  # along the walls, into the corners
        poses.append(_hand_held(rng, turn, radius, 0.8 + 0.6 * (i % 3 - 1), aim=0.9))
    return poses


def _hand_held(rng: np.random.Generator, turn: float, radius: float, height: float, aim: float) -> np.ndarray:
    """A camera near a point of a ring (turn in radians) that looks to within `aim` of the center, a little rolled."""
    eye = np.array([radius * math.cos(turn), radius * math.sin(turn), height])
    eye += rng.normal(0, 0.08, 3).clip(-0.2, 0.2)
    target = np.array([0, 0, -0.05]) + rng.uniform(-aim, aim, 3)
    pose = look_at(eye, target)
    pose[:3, :3] = pose[:3, :3] @ rotation_about("z", rng.normal(0, 2.0))
    return pose
