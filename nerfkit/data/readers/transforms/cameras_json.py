# SPDX-License-Identifier: Apache-2.0
"""Cameras as JSON: `transforms*.json`, the one schema for scenes, camera paths and run folders.

    {"camera_angle_x": radians, "x_fov": degrees, or "fl_x", "fl_y", "cx", "cy", "w", "h": pixels,
     "frames": [{"file_path": name, "transform_matrix": 4x4 camera-to-world, OpenGL axes}, ...]}

Frames may have lenses of their own, see `lens.py`. Unsupported keys that would change the camera are errors; other
unused keys are named in a warning.
"""

from __future__ import annotations

import math
import reprlib
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import reading
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.capture import check_rotation
from nerfkit.data.readers.transforms.lens import (
    DISTORTION,
    FOCAL,
    REFUSED,
    SIZE,
    is_number,
    lens_of,
    size_of,
    values_of_frame,
)
from nerfkit.errors import SceneError
from nerfkit.reading import shown

SPLITS = ("train", "val", "test")
NERFSTUDIO = {  # keys that only nerfstudio writes
    "camera_model", "applied_transform", "applied_scale", "mask_path", "ply_file_path", "orientation_override",
    "depth_file_path", "depth_unit_scale_factor", "colmap_im_id", "distortion_params", "fisheye_crop_radius",
    *(f"{split}_filenames" for split in SPLITS),
}  # fmt: skip
INSTANT_NGP = {  # keys that only instant-ngp and its scripts write
    "aabb_scale", "aabb", "render_aabb", "scale", "offset", "x_fov", "y_fov", "is_fisheye", "sharpness",
    "n_extra_learnable_dims", "enable_depth_loading", "integer_depth_scale", "depth_path", "envmap",
}  # fmt: skip
KNOWN = {  # all that are used or refused, or say nothing of cameras and images
    *NERFSTUDIO, *INSTANT_NGP, *FOCAL, *SIZE, "cx", "cy", *DISTORTION, *REFUSED, "frames", "file_path",
    "transform_matrix", "up", "n_frames", "masks", "white_transparent", "black_transparent", "rotation", "lens", "fps",
    "keyframes", "crop", "checkpoint_step", "checkpoint_seconds",
}  # fmt: skip
POSITION_LIMIT = 1e6  # scene units: float32 resolves 1/16 there


def read_json(file: Path) -> dict[str, Any]:
    """A transforms file with at least one frame; raises SceneError that says what is wrong with it."""
    content = reading.read_json(file, SceneError, "scene file")
    frames_of(content, shown(file))
    if unused := unused_keys(content):
        warnings.warn(f"{shown(file)}: keys that are not used: {shown(', '.join(unused))}", stacklevel=2)
    return content


def parse_cameras(content: dict[str, Any], file: Path) -> Cameras:
    """Pinhole cameras of a transforms file, whose "w" and "h" are the size of each image that has none of its own."""
    frames = frames_of(content, shown(file))
    if "w" not in content or "h" not in content:
        raise SceneError(f"{shown(file)}: keys 'w' and 'h' (image size in pixels) are missing")
    size_of(content, shown(file))
    poses, lenses = [], []
    for index, frame in enumerate(frames):
        where = f"{shown(file)}: frame {index}"
        poses.append(pose_of(frame.get("transform_matrix"), where))
        values = values_of_frame(content, frame, where)
        lenses.append(lens_of(values, where, *size_of(values, where)))
        if not lenses[-1].is_pinhole:
            raise SceneError(
                f"{where}: a lens of camera_model {lenses[-1].model} is not rendered; cameras of pictures to come are "
                "pinholes: leave camera_model and its coefficients out of the file"
            )
    return Cameras.of_lenses(torch.tensor(np.stack(poses), dtype=torch.float32), lenses)


def to_json(cameras: Cameras, names: list[str]) -> dict[str, Any]:
    """`cameras` in the schema of a transforms file; `lens` is what the images had, rendering takes none."""
    frames, same = [], len(set(cameras.sizes())) == 1
    for index, name in enumerate(names):
        pose = torch.cat([cameras.camera_to_world[index].double(), torch.tensor([[0.0, 0, 0, 1]]).double()])
        (fl_x, fl_y), (cx, cy) = cameras.focal[index].tolist(), cameras.center[index].tolist()
        width, height = cameras.size(index)
        size = {} if same else {"w": width, "h": height}
        of_view = cameras.lenses[index] if cameras.lenses else None
        lens = {"lens": asdict(of_view) | {"params": list(of_view.params)}} if of_view else {}
        frames.append(
            {"file_path": name, "fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, **size, **lens,
             "transform_matrix": pose.tolist()}
        )  # fmt: skip
    width, height = cameras.size(0)
    return {"w": width, "h": height, "frames": frames}


def unused_keys(content: dict[str, Any]) -> list[str]:
    """Keys of the file and its frames that nothing is known of."""
    return sorted(set().union(content, *content["frames"]) - KNOWN)


def frames_of(content: Any, where: str) -> list[dict[str, Any]]:
    """The frames of a transforms file, at least one."""
    if not isinstance(content, dict) or "frames" not in content:
        raise SceneError(f"{where}: key 'frames' is missing")
    frames = content["frames"]
    if not isinstance(frames, list) or not frames:
        raise SceneError(f"{where}: 'frames' holds no views")
    for index, frame in enumerate(frames):
        if not isinstance(frame, dict):
            raise SceneError(f"{where}: frame {index} must be an object with keys, got {reprlib.repr(frame)}")
    return frames


def pose_of(matrix: Any, where: str) -> np.ndarray:
    """A rigid camera-to-world matrix [3, 4] from the rows of a file; raises SceneError naming `where`."""
    sizes = [len(row) if isinstance(row, list) else None for row in matrix] if isinstance(matrix, list) else [None]
    if sizes not in ([4] * 3, [4] * 4):
        got = reprlib.repr(matrix) if None in sizes else f"{len(sizes)} rows of {reprlib.repr(sizes)} values"
        missing = ": it is missing" if matrix is None else ""
        raise SceneError(f"{where}: transform_matrix must be 4x4 or 3x4, got {got}{missing}")
    for value in (value for row in matrix for value in row):
        if not is_number(value):
            raise SceneError(f"{where}: transform_matrix must hold numbers, got {reprlib.repr(value)}")
        if not abs(value) <= POSITION_LIMIT:  # nor is NaN
            others = "; if others are as large, divide all positions by one number" if abs(value) < math.inf else ""
            raise SceneError(
                f"{where}: the values of transform_matrix must be finite and at most {POSITION_LIMIT:g}, got "
                f"{reprlib.repr(value)}; leave the frame out{others}"
            )
    pose = np.array(matrix, dtype=np.float64)
    if len(pose) == 4 and np.abs(pose[3] - [0, 0, 0, 1]).max() > 1e-4:
        raise SceneError(
            f"{where}: the last row of transform_matrix is {pose[3].tolist()} instead of [0, 0, 0, 1]; "
            "is the matrix transposed?"
        )
    check_rotation(pose[:3, :3], where)
    return pose[:3]
