# SPDX-License-Identifier: Apache-2.0
"""Cameras as JSON: `transforms*.json`, the one schema for scenes, camera paths and run folders.

    {"camera_angle_x": radians, or "fl_x", "fl_y", "cx", "cy", "w", "h": pixels,
     "frames": [{"file_path": name, "transform_matrix": 4x4 camera-to-world, OpenGL axes}, ...]}

A frame may hold intrinsics of its own, which beat the file's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit.data.cameras import Cameras
from nerfkit.errors import SceneError

DISTORTION = ("k1", "k2", "k3", "k4", "p1", "p2")


def read_json(file: Path) -> dict[str, Any]:
    """A transforms file with at least one frame; raises SceneError that says what is wrong with it."""
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise SceneError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise SceneError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict) or "frames" not in content:
        raise SceneError(f"{file}: key 'frames' is missing")
    if not isinstance(content["frames"], list) or not content["frames"]:
        raise SceneError(f"{file}: 'frames' holds no views")
    return content


def parse_cameras(content: dict[str, Any], file: Path, width: int | None = None, height: int | None = None) -> Cameras:
    """Cameras of a transforms file. The picture size is the file's "w" and "h" where none is given."""
    if width is None or height is None:
        if "w" not in content or "h" not in content:
            raise SceneError(f"{file}: keys 'w' and 'h' (picture size in pixels) are missing")
        width, height = (int(_number(content, key, str(file), above=0)) for key in ("w", "h"))
        if min(width, height) < 1:
            raise SceneError(f"{file}: the picture size must be at least 1x1, got {width}x{height}")
    poses, focals, centers = [], [], []
    for index, frame in enumerate(content["frames"]):
        where = f"{file}: frame {index}"
        if "transform_matrix" not in frame:
            raise SceneError(f"{where}: key 'transform_matrix' is missing")
        try:
            pose = np.array(frame["transform_matrix"], dtype=np.float64)
        except (ValueError, TypeError):
            raise SceneError(f"{where}: transform_matrix must be a 4x4 list of numbers") from None
        _check_pose(pose, where)
        poses.append(pose[:3])
        focal, center = _intrinsics({**content, **frame}, where, width, height)
        focals.append(focal)
        centers.append(center)
    return Cameras(
        camera_to_world=torch.tensor(np.stack(poses), dtype=torch.float32),
        focal=torch.tensor(focals, dtype=torch.float32),
        center=torch.tensor(centers, dtype=torch.float32),
        width=width,
        height=height,
    )


def _intrinsics(values: dict[str, Any], where: str, width: int, height: int) -> tuple[tuple, tuple]:
    """Focal lengths and principal point [pixels] of one frame."""
    distorted = [key for key in DISTORTION if values.get(key)]
    if distorted:
        raise SceneError(
            f"{where}: lens distortion ({', '.join(distorted)}) is not supported; undistort the pictures first"
        )
    # Intrinsics in pixels belong to pictures of the stated size, which may have been resized since.
    scale_x = width / (_number(values, "w", where, above=0) if "w" in values else width)
    scale_y = height / (_number(values, "h", where, above=0) if "h" in values else height)
    if "fl_x" in values:
        focal_x = _number(values, "fl_x", where, above=0) * scale_x
        focal_y = _number(values, "fl_y" if "fl_y" in values else "fl_x", where, above=0) * scale_y
    elif "camera_angle_x" in values:
        focal_x = focal_y = 0.5 * width / _half_tangent(values, "camera_angle_x", where)
        if "camera_angle_y" in values:
            focal_y = 0.5 * height / _half_tangent(values, "camera_angle_y", where)
    else:
        raise SceneError(f"{where}: intrinsics are missing; give 'camera_angle_x' or 'fl_x'")
    center_x = _number(values, "cx", where) * scale_x if "cx" in values else width / 2
    center_y = _number(values, "cy", where) * scale_y if "cy" in values else height / 2
    return (focal_x, focal_y), (center_x, center_y)


def _number(values: dict[str, Any], key: str, where: str, above: float = -math.inf, below: float = math.inf) -> float:
    """The number `key`, between bounds; raises SceneError naming `where`."""
    value = values[key]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value < below:
        bounds = "be finite" if above == -math.inf else f"be above {above:g} and below {below:.4g}"
        raise SceneError(f"{where}: '{key}' must be a number and {bounds}, got {value!r}")
    return float(value)


def _half_tangent(values: dict[str, Any], key: str, where: str) -> float:
    return math.tan(0.5 * _number(values, key, where, above=0, below=math.pi))


def to_json(cameras: Cameras, names: list[str]) -> dict[str, Any]:
    """`cameras` in the schema of a transforms file."""
    frames = []
    for index, name in enumerate(names):
        pose = torch.cat([cameras.camera_to_world[index].double(), torch.tensor([[0.0, 0, 0, 1]]).double()])
        (fl_x, fl_y), (cx, cy) = cameras.focal[index].tolist(), cameras.center[index].tolist()
        frames.append(
            {"file_path": name, "fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, "transform_matrix": pose.tolist()}
        )
    return {"w": cameras.width, "h": cameras.height, "frames": frames}


def _check_pose(pose: np.ndarray, where: str) -> None:
    """Require a rigid camera-to-world matrix; raises SceneError naming `where`."""
    if pose.shape not in ((4, 4), (3, 4)):
        raise SceneError(f"{where}: transform_matrix must be 4x4 or 3x4, got {'x'.join(map(str, pose.shape))}")
    if not np.isfinite(pose).all():
        raise SceneError(f"{where}: transform_matrix holds a value that is not finite")
    rotation = pose[:3, :3]
    determinant = float(np.linalg.det(rotation))
    if abs(determinant - 1) > 1e-3:
        cause = "the axes are mirrored" if determinant < 0 else "the matrix is scaled"
        raise SceneError(f"{where}: the rotation has determinant {determinant:.4g} instead of 1: {cause}")
    skew = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if skew > 1e-3:
        raise SceneError(f"{where}: the rotation's axes are not orthogonal (off by {skew:.3g})")
