# SPDX-License-Identifier: Apache-2.0
"""Cameras of the browser and of the model: quaternions and axes.

The browser's cameras have OpenCV axes (x right, y down, z forward), the model's OpenGL axes (y up, looking down -z).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.rendering.paths import pinholes

FLIP = np.array([1.0, -1.0, -1.0])  # of the columns of a rotation, between the two kinds of axes


class Viewpoint(NamedTuple):
    """A pinhole camera in the middle of its frame."""

    pose: tuple[float, ...]  # [12] camera-to-world, rows of [3, 4], OpenGL axes, model's frame
    fov: float  # vertical [radians]

    @classmethod
    def of(cls, pose: np.ndarray, fov: float) -> Viewpoint:
        """That of a pose [3, 4]."""
        return cls(tuple(pose.flatten().tolist()), float(fov))

    @property
    def matrix(self) -> np.ndarray:
        """Its pose, [3, 4]."""
        return np.array(self.pose).reshape(3, 4)

    def cameras(self, width: int, height: int) -> Cameras:
        """It, for frames of a size."""
        return pinholes([self.matrix], [self.fov], (width, height))


def rotation_of(wxyz: Any) -> np.ndarray:
    """Rotation [3, 3] of a quaternion [4], of any length."""
    from viser.transforms import SO3

    return SO3(np.asarray(wxyz, dtype=np.float64)).as_matrix()


def quaternion_of(rotation: np.ndarray) -> np.ndarray:
    """Quaternion [4], w first, of a rotation [3, 3]."""
    from viser.transforms import SO3

    return SO3.from_matrix(np.asarray(rotation, dtype=np.float64)).wxyz


def viewpoint(wxyz: Any, position: Any, fov: float) -> Viewpoint:
    """The model's view of a camera in the browser."""
    return Viewpoint.of(np.column_stack([rotation_of(wxyz) * FLIP, position]), fov)


def in_browser(pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quaternion [4] and position [3] in the browser of a pose [3, 4] of the model's."""
    return quaternion_of(pose[:, :3] * FLIP), np.array(pose[:, 3])


def vertical_fov(cameras: Cameras, view: int) -> float:
    """Vertical field of view of a camera without its distortion [radians]."""
    return 2 * math.atan(cameras.size(view)[1] / 2 / float(cameras.focal[view, 1]))


def nearest_view(pose: np.ndarray, poses: np.ndarray, scale: float) -> tuple[int, float, float]:
    """The pose of [V, 3, 4] nearest to one [3, 4]: its number, its distance, and the angle [degrees] between both.

    A distance of `scale` counts as much as 60 degrees.
    """
    distance = np.linalg.norm(poses[:, :, 3] - pose[:, 3], axis=-1)  # [V]
    cosine = (np.einsum("vij,ij->v", poses[:, :, :3], pose[:, :3]) - 1) / 2
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    view = int(np.argmin(distance / max(scale, 1e-9) + angle / 60))
    return view, float(distance[view]), float(angle[view])
