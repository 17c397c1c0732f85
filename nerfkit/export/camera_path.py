# SPDX-License-Identifier: Apache-2.0
"""nerfstudio's camera paths, as its viewer writes them; `nerfkit.rendering.path_files` reads them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FPS = 24


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
