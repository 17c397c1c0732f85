# SPDX-License-Identifier: Apache-2.0
"""Cameras on a sphere around the world origin, in the convention of the NeRF-synthetic scenes.

Poses are camera-to-world matrices [4, 4] with OpenGL axes: x right, y up, looking down -z. World z is up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

CAMERA_ANGLE_X = 0.6911112070083618  # horizontal field of view in radians, that of the NeRF-synthetic scenes
CAMERA_RADIUS = 4.031128874149275  # distance from the world origin in scene units, theirs too


class View(NamedTuple):
    """One image to take."""

    split: str  # "train", "val" or "test"
    index: int  # within the split
    seed: int  # of the renderer's sampler
    camera_to_world: np.ndarray  # [4, 4], OpenGL axes

    @property
    def name(self) -> str:
        return f"{self.split}/{self.index}"

    @property
    def file_stem(self) -> str:
        """Path of the image within the scene folder, without its extension."""
        return f"{self.split}/r_{self.index}"


def look_at(eye, target=(0, 0, 0), up=(0, 0, 1)) -> np.ndarray:
    """Camera-to-world [4, 4], OpenGL axes, of a camera at `eye` [3] that has `target` [3] in its center."""
    eye, target, up = (np.asarray(vector, float) for vector in (eye, target, up))
    z = eye - target  # a camera that looks down -z has z pointing back at it
    z /= np.linalg.norm(z)
    x = np.cross(up, z)
    x /= np.linalg.norm(x)
    pose = np.eye(4)
    pose[:3, 0], pose[:3, 1], pose[:3, 2], pose[:3, 3] = x, np.cross(z, x), z, eye
    return pose


def on_sphere(azimuth: float, elevation: float, radius: float = CAMERA_RADIUS) -> np.ndarray:
    """Point [3] at two angles in radians."""
    horizontal = math.cos(elevation)
    return radius * np.array([horizontal * math.cos(azimuth), horizontal * math.sin(azimuth), math.sin(elevation)])


def cameras(n_train: int = 100, n_val: int = 10, n_test: int = 20, seed: int = 7) -> dict[str, list[np.ndarray]]:
    """Camera-to-world matrices [4, 4] by split.

    train: a jittered Fibonacci lattice, so that the cover is even but no grid. val: uniform on the same zone
    of the sphere. test: a closed loop that rises and falls, so that it is a path for a video as well.
    """
    rng = np.random.default_rng(seed)
    # A uniform sine of the elevation is uniform in area. Slightly below the horizon up to almost overhead.
    low, high = math.sin(math.radians(-5)), math.sin(math.radians(82))
    train = []
    for i in range(n_train):
        height = low + (high - low) * (i + rng.uniform(0.2, 0.8)) / n_train
        azimuth = i * math.pi * (3 - math.sqrt(5)) + rng.uniform(-0.06, 0.06)
        train.append(look_at(on_sphere(azimuth, math.asin(height))))
    val = []
    for _ in range(n_val):
        azimuth = rng.uniform(0, math.tau)
        val.append(look_at(on_sphere(azimuth, math.asin(rng.uniform(low, high)))))
    test = []
    for i in range(n_test):
        azimuth = math.tau * (i + 0.5) / n_test
        elevation = math.radians(32 + 24 * math.sin(2 * azimuth))
        test.append(look_at(on_sphere(azimuth, elevation)))
    return {"train": train, "val": val, "test": test}


def views() -> list[View]:
    """All views of the data set. The seed counts them from 1, so a view keeps it when rendered alone."""
    result = []
    for split, poses in cameras().items():
        for i, pose in enumerate(poses):
            result.append(View(split, i, len(result) + 1, pose))
    return result
