# SPDX-License-Identifier: Apache-2.0
"""nerfstudio's camera paths: poses, and one angle of view each. Lenses are pinholes, centred."""

from __future__ import annotations

import math
import reprlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit.data.cameras import Cameras
from nerfkit.data.readers.transforms import is_number, pose_of
from nerfkit.errors import SceneError
from nerfkit.reading import shown

FPS = 24
SIDE_LIMIT = 100_000  # pixels


def is_camera_path(content: Any) -> bool:
    """Whether the content of a JSON file is a camera path of nerfstudio's."""
    return isinstance(content, dict) and "camera_path" in content


def parse_camera_path(content: dict[str, Any], file: Path) -> Cameras:
    """The cameras of a path; raises SceneError that says what is wrong with it."""
    where = shown(file)
    sizes = [content.get(key) for key in ("render_width", "render_height")]
    if not all(is_number(side) and 1 <= side <= SIDE_LIMIT and side == int(side) for side in sizes):
        raise SceneError(f"{where}: 'render_width' and 'render_height' must be whole pixels, got {sizes!r:.80}")
    width, height = map(int, sizes)
    kind = content.get("camera_type", "perspective")
    if kind != "perspective":
        raise SceneError(f"{where}: camera_type {reprlib.repr(kind)} is not supported, only perspective")
    frames = content["camera_path"]
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise SceneError(f"{where}: 'camera_path' must be a list of cameras")
    poses, focals = [], []
    for index, frame in enumerate(frames):
        place = f"{where}: camera {index}"
        flat = frame.get("camera_to_world")
        if not isinstance(flat, list) or len(flat) != 16:
            raise SceneError(f"{place}: 'camera_to_world' must be 16 numbers, row by row, got {reprlib.repr(flat)}")
        poses.append(pose_of([flat[row : row + 4] for row in range(0, 16, 4)], place))
        fov = frame.get("fov")
        if not is_number(fov) or not 0.01 < fov < 179.9:
            raise SceneError(f"{place}: 'fov' must be from 0.01 to 179.9 degrees, got {reprlib.repr(fov)}")
        focals.append(0.5 * height / math.tan(math.radians(fov) / 2))
    focal = torch.tensor(focals, dtype=torch.float32)[:, None].expand(-1, 2).contiguous()
    center = torch.tensor([[width / 2, height / 2]], dtype=torch.float32).repeat(len(poses), 1)
    return Cameras(torch.tensor(np.stack(poses), dtype=torch.float32), focal, center, width, height)


def camera_path(poses: np.ndarray, focals: np.ndarray, width: int, height: int, fps: float = FPS) -> dict[str, Any]:
    """The content of a path through poses [V, 3, 4] with vertical focal lengths [V] in pixels."""
    cameras = []
    for pose, focal in zip(poses, focals.tolist(), strict=True):
        flat = [*pose.flatten().tolist(), 0.0, 0.0, 0.0, 1.0]
        fov = math.degrees(2 * math.atan(0.5 * height / focal))
        cameras.append({"camera_to_world": flat, "fov": fov, "aspect": width / height})
    keyframes = [
        {"matrix": str(np.array(camera["camera_to_world"]).reshape(4, 4).T.flatten().tolist()), "fov": camera["fov"],
         "aspect": camera["aspect"], "override_transition_enabled": False, "override_transition_sec": None}
        for camera in cameras
    ]  # fmt: skip
    return {
        "default_fov": cameras[0]["fov"], "default_transition_sec": 1 / fps, "keyframes": keyframes,
        "camera_type": "perspective", "render_height": height, "render_width": width, "fps": fps,
        "seconds": len(cameras) / fps, "is_cycle": False, "smoothness_value": 0.0, "camera_path": cameras, "crop": None,
    }  # fmt: skip
