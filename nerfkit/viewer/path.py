# SPDX-License-Identifier: Apache-2.0
"""A camera path with keyframes: what is edited, where its camera is at a time, and its file.

The file is a transforms file, with every frame as `nerfkit render --path FILE` renders it, in the frame of the scene's
files, and the keyframes beside them:

    "keyframes": {"loop": false, "list": [{"transform_matrix": 4x4, "fov": vertical degrees, "seconds": to the next}]}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.readers.transforms.cameras_json import number, pose_of, to_json
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.errors import SceneError
from nerfkit.reading import read_json, shown
from nerfkit.rendering.path_files import FOV_LIMITS, moved, read_path
from nerfkit.rendering.paths import along

MAX_KEYFRAMES = 500
MAX_FRAMES = 20_000
SECONDS, FPS = 2.0, 30  # of a new keyframe, of a new path
LIMITS = (0.05, 600.0)  # seconds to the next keyframe, where they are typed


@dataclass
class Keyframe:
    """A camera on the path."""

    pose: np.ndarray  # [3, 4] camera-to-world, OpenGL axes, model's frame
    fov: float  # vertical [radians]
    seconds: float = SECONDS  # to the next keyframe


@dataclass
class CameraPath:
    """Keyframes in their order."""

    keyframes: list[Keyframe] = field(default_factory=list)
    loop: bool = False
    fps: int = FPS
    size: tuple[int, int] = (1280, 720)

    def copy(self) -> CameraPath:
        """The path as it is now, for a thread that does not edit it."""
        return CameraPath(list(self.keyframes), self.loop, self.fps, self.size)

    @property
    def seconds(self) -> float:
        """Duration of the whole path."""
        return sum(key.seconds for key in (self.keyframes if self.loop else self.keyframes[:-1]))

    @property
    def n_frames(self) -> int:
        """Frames of its video; the last of an open path is its last keyframe."""
        if not self.keyframes:
            return 0
        return max(round(self.seconds * self.fps) + (0 if self.loop else 1), 1)

    def times(self) -> np.ndarray:
        """Time of each frame [F], in seconds."""
        return np.arange(self.n_frames) / self.fps

    def at(self, times: Any) -> tuple[np.ndarray, np.ndarray]:
        """Poses [F, 3, 4] and vertical fields of view [F] at `times` [F]."""
        fovs = np.array([key.fov for key in self.keyframes])
        starts = np.cumsum([0.0, *(key.seconds for key in self.keyframes)])  # [K+1] of each keyframe
        count = len(self.keyframes) + 1 if self.loop else len(self.keyframes)
        u = np.interp(times, starts[:count], np.arange(count))  # in keyframes
        poses = torch.from_numpy(np.stack([key.pose for key in self.keyframes])).double()  # [K, 3, 4]
        if len(poses) > 1:
            poses = along(poses, torch.from_numpy(u), self.loop)
        ends = np.append(fovs, fovs[0]) if self.loop else fovs
        return poses.expand(len(u), 3, 4).numpy(), np.interp(u, np.arange(count), ends[:count])

    def cameras(self) -> Cameras:
        """Every frame, in the model's frame."""
        if not 0 < self.n_frames <= MAX_FRAMES:
            raise SceneError(f"the path has {self.n_frames} frames; it must have 1 to {MAX_FRAMES}")
        poses, fovs = self.at(self.times())
        return pinholes(poses, fovs, self.size)

    def to_json(self, frame: Frame | None) -> str:
        """The content of its file."""
        cameras = self.cameras()
        keys = moved(pinholes([key.pose for key in self.keyframes], [1.0] * len(self.keyframes)), frame, False)
        listed = [
            {"transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]], "fov": math.degrees(key.fov),
             "seconds": key.seconds}
            for key, pose in zip(self.keyframes, keys.camera_to_world, strict=True)
        ]  # fmt: skip
        content = to_json(moved(cameras, frame, to_model=False), [f"{i:05d}" for i in range(len(cameras))])
        return json.dumps({"fps": self.fps, "keyframes": {"loop": self.loop, "list": listed}, **content}, indent=1)


def pinholes(poses: Any, fovs: Any, size: tuple[int, int] = (2, 2)) -> Cameras:
    """Cameras at poses [F, 3, 4] with vertical fields of view [F], for images of one size."""
    width, height = size
    focal = torch.tensor([height / 2 / math.tan(fov / 2) for fov in fovs])[:, None].repeat(1, 2)
    center = torch.tensor([[width / 2, height / 2]]).repeat(len(focal), 1)
    return Cameras(torch.tensor(np.stack(poses), dtype=torch.float32), focal, center, width, height)


def read_camera_path(file: Path, frame: Frame | None, size: tuple[int, int]) -> CameraPath:
    """The path of a file; of one without keyframes, each of its frames is one. Raises SceneError."""
    content = read_json(file, SceneError, "path file")
    cameras = moved(read_path(file, size), frame, to_model=True)
    path = CameraPath(size=max(cameras.sizes()))
    path.fps = max(round(number(content, "fps", shown(file), 0, 1001)), 1) if "fps" in content else FPS
    kept = content.get("keyframes")
    if isinstance(kept, dict) and "list" in kept:
        path.loop = bool(kept.get("loop"))
        path.keyframes = [_keyframe(entry, i, shown(file), frame) for i, entry in enumerate(kept["list"])]
        return path
    if len(cameras) > MAX_KEYFRAMES:
        raise SceneError(f"{shown(file)} has {len(cameras)} frames and no keyframes; at most {MAX_KEYFRAMES} are read")
    for index, pose in enumerate(cameras.camera_to_world.double().numpy()):
        height, focal = cameras.size(index)[1], float(cameras.focal[index, 1])
        path.keyframes.append(Keyframe(pose, 2 * math.atan(height / 2 / focal), 1 / path.fps))
    return path


def _keyframe(entry: Any, index: int, where: str, frame: Frame | None) -> Keyframe:
    place = f"{where}: keyframe {index}"
    if not isinstance(entry, dict) or not {"transform_matrix", "fov", "seconds"} <= set(entry):
        raise SceneError(f"{place} must have the keys transform_matrix, fov and seconds")
    pose = pose_of(entry["transform_matrix"], place)
    fov = math.radians(number(entry, "fov", place, *FOV_LIMITS))
    seconds = number(entry, "seconds", place, 0, LIMITS[1] + 1)
    return Keyframe(pose if frame is None else frame.to_model(pose), fov, seconds)
