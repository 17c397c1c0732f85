# SPDX-License-Identifier: Apache-2.0
"""Camera paths in files: the transforms schema, or the camera-path JSON of nerfstudio's viewer.

    {"camera_path": [{"camera_to_world": 16 numbers, rows of a 4x4, OpenGL axes, "fov": vertical degrees,
                      "aspect": width / height}, ...],
     "render_width": pixels, "render_height": pixels, "camera_type": "perspective", ...}

Either is in the frame of the scene's files.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import reading
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.readers.transforms.cameras_json import frames_of, number, parse_cameras, pose_of, read_json, size_of
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.errors import SceneError
from nerfkit.reading import shown

PATH_KEY = "camera_path"
KNOWN = {  # keys of the file that are used, or only serve its editor
    PATH_KEY, "camera_type", "render_width", "render_height", "default_fov", "default_transition_sec", "keyframes",
    "fps", "seconds", "is_cycle", "smoothness_value",
}  # fmt: skip
FOV_LIMITS = (0.1, 179.0)  # degrees


def read_path(file: Path, size: tuple[int, int], own_size: tuple[int, int] | None = None) -> Cameras:
    """Cameras of a path file, in the frame of the scene's files.

    Their images have `size` where the file states none, and `own_size` in any case where the file states angles alone.
    """
    content = reading.read_json(file, SceneError, "path file")
    if isinstance(content, dict) and PATH_KEY in content:
        return nerfstudio_path(content, file, size, own_size)
    given = own_size or size
    return parse_cameras({"w": given[0], "h": given[1], **read_json(file)}, file)


def nerfstudio_path(
    content: dict[str, Any], file: Path, size: tuple[int, int], own_size: tuple[int, int] | None
) -> Cameras:
    """Cameras of a nerfstudio camera path; raises SceneError naming file, place and key."""
    where = shown(file)
    kind = content.get("camera_type", "perspective")
    if kind != "perspective":
        raise SceneError(f"{where}: camera_type {kind!r:.40} cannot be rendered, only perspective")
    if unused := sorted(key for key in set(content) - KNOWN if content[key] is not None):  # an empty crop is none
        warnings.warn(f"{where}: keys that are not used: {shown(', '.join(unused))}", stacklevel=2)
    if own_size is None and ("render_width" in content or "render_height" in content):
        stated = {"w": content.get("render_width"), "h": content.get("render_height")}
        own_size = size_of(stated, f"{where}: render_width and render_height as w and h")
    width, height = own_size or size
    poses, focals = [], []
    for index, entry in enumerate(frames_of({"frames": content[PATH_KEY]}, where)):
        place = f"{where}: {PATH_KEY} {index}"
        poses.append(pose_of(_rows(entry, place), place))
        fov = number({"fov": content.get("default_fov"), **entry}, "fov", place, *FOV_LIMITS)
        focals.append(height / 2 / math.tan(math.radians(fov) / 2))
    focal = torch.tensor(focals, dtype=torch.float32)[:, None].expand(-1, 2).clone()
    center = torch.tensor([[width / 2, height / 2]]).repeat(len(poses), 1)
    return Cameras(torch.tensor(np.stack(poses), dtype=torch.float32), focal, center, width, height)


def moved(cameras: Cameras, frame: Frame | None, to_model: bool) -> Cameras:
    """Cameras of the scene's frame in the model's, or the other way round."""
    if frame is None:
        return cameras
    poses = (frame.to_model if to_model else frame.to_input)(cameras.camera_to_world.double().numpy())
    return replace(cameras, camera_to_world=torch.from_numpy(poses).to(cameras.camera_to_world.dtype))


def _rows(entry: dict[str, Any], place: str) -> Any:
    """Rows of a frame's matrix, which the file may give as 16 numbers in a row."""
    matrix = entry.get("camera_to_world")
    if matrix is None:
        raise SceneError(f"{place}: key 'camera_to_world' is missing")
    if isinstance(matrix, list) and len(matrix) == 16 and not any(isinstance(row, list) for row in matrix):
        return [matrix[i : i + 4] for i in range(0, 16, 4)]
    return matrix
