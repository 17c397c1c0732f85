# SPDX-License-Identifier: Apache-2.0
"""Camera paths between keyframes that are edited, and in files.

A file is in the frame of the scene's files, and is the camera-path JSON of nerfstudio's viewer

    {"camera_path": [{"camera_to_world": 16 numbers, rows of a 4x4, OpenGL axes, "fov": vertical degrees,
                      "aspect": width / height}, ...],
     "render_width": pixels, "render_height": pixels, "camera_type": "perspective", ...}

or follows the transforms schema, with every frame as `nerfkit render --cameras FILE` renders it, and keyframes beside:

    "keyframes": {"loop": false, "list": [{"transform_matrix": 4x4, "fov": vertical degrees, "seconds": to the next}]}
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import safe_io
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.plausible import lens_diagnostics
from nerfkit.data.capture import rotations_of
from nerfkit.data.readers.transforms import cameras_json
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import SceneError
from nerfkit.rendering.paths import around, in_files_world, pinholes
from nerfkit.safe_io import printable

PATH_KEY = "camera_path"
FOV_LIMITS = (1e-4, 180.0)  # degrees
NERFSTUDIO_FPS = 24  # of a file of nerfstudio's that is written
NGP_SCALE, NGP_OFFSET = 0.33, 0.5  # of instant-ngp's unit cube, where a scene's file gives none
MAX_KEYFRAMES = 500
MAX_FRAMES = 20_000
SECONDS, FPS = 2.0, 30  # of a new keyframe, of a new path
LIMITS = (0.05, 600.0)  # seconds to the next keyframe, where they are typed


def read_path(
    file: Path, size: tuple[int, int], own_size: tuple[int, int] | None = None, transform: SceneTransform | None = None
) -> Cameras:
    """Cameras of a path file, in its frame or in that to which `transform` leads from there; warns of odd lenses.

    Their images have `size` where the file states none, and `own_size` in any case where the file states angles alone.
    Raises SceneError naming file, place and key.
    """
    content = safe_io.read_json(file, SceneError, "the camera path")
    if path := _of_keyframes(content, printable(file), size, own_size, transform):
        return path.cameras()
    if isinstance(content, dict) and PATH_KEY in content:
        size = _size_of(content, printable(file), size, own_size)
        where, fov = f"{printable(file)}: {PATH_KEY}", content.get("default_fov")
        keys = _keyframes(content[PATH_KEY], where, "camera_to_world", transform, fov=fov)
        cameras = pinholes([key.pose for key in keys], [key.fov for key in keys], size)
    else:
        given = own_size or size
        content = {"w": given[0], "h": given[1]} | (stated := cameras_json.read_json(file))
        cameras = cameras_json.parse_cameras(content, file, transform)
        if not {"w", "fl_x"} & set(stated).union(*stated["frames"]):  # two angles are of images of another shape
            cameras = replace(cameras, focal=cameras.focal[:, 1:].repeat(1, 2))
    params = torch.cat([cameras.focal, cameras.center], dim=1).tolist()
    lenses = [Lens("PINHOLE", tuple(of_view), *size) for of_view, size in zip(params, cameras.sizes(), strict=True)]
    for line in lens_diagnostics(lenses):
        warnings.warn(f"{printable(file)}: {line}", stacklevel=2)
    return cameras


def _size_of(
    content: dict[str, Any], where: str, size: tuple[int, int], own_size: tuple[int, int] | None
) -> tuple[int, int]:
    """The size of the images of nerfstudio's perspective cameras."""
    kind = content.get("camera_type", "perspective")
    if kind != "perspective":
        raise SceneError(f"{where}: camera_type {kind!r:.40} cannot be rendered, only perspective")
    if content.get("crop") is not None:
        warnings.warn(f"{where}: its crop is not used, only that of the run folder", stacklevel=2)
    if own_size is None and ("render_width" in content or "render_height" in content):
        stated = {"w": content.get("render_width"), "h": content.get("render_height")}
        own_size = cameras_json.size_of(stated, f"{where}: render_width and render_height as w and h")
    return own_size or size


def to_nerfstudio(poses: np.ndarray, focals: np.ndarray, width: int, height: int) -> dict[str, Any]:
    """The content of a file of nerfstudio's for poses [V, 3, 4] with vertical focal lengths [V] in pixels."""
    cameras, keyframes = [], []
    for pose, focal in zip(poses, focals.tolist(), strict=True):
        matrix = np.concatenate([pose, [[0.0, 0.0, 0.0, 1.0]]])
        view = {"fov": math.degrees(2 * math.atan(0.5 * height / focal)), "aspect": width / height}
        cameras.append({"camera_to_world": matrix.flatten().tolist(), **view})
        no_transition = {"override_transition_enabled": False, "override_transition_sec": None}
        keyframes.append({"matrix": str(matrix.T.flatten().tolist()), **view, **no_transition})
    return {
        "default_fov": cameras[0]["fov"], "default_transition_sec": 1 / NERFSTUDIO_FPS, "keyframes": keyframes,
        "camera_type": "perspective", "render_height": height, "render_width": width, "fps": NERFSTUDIO_FPS,
        "seconds": len(cameras) / NERFSTUDIO_FPS, "is_cycle": False, "smoothness_value": 0.0,
        "camera_path": cameras, "crop": None,
    }  # fmt: skip


@dataclass
class Keyframe:
    pose: np.ndarray  # [3, 4] camera-to-world, OpenGL axes, model's frame
    fov: float  # vertical [radians]
    seconds: float = SECONDS  # to the next keyframe


@dataclass
class CameraPath:
    keyframes: list[Keyframe] = field(default_factory=list)
    loop: bool = False
    fps: int = FPS
    size: tuple[int, int] = (1280, 720)

    def copy(self) -> CameraPath:
        """The path as it is now, for a thread that does not edit it."""
        return CameraPath(list(self.keyframes), self.loop, self.fps, self.size)

    @property
    def seconds(self) -> float:
        return sum(key.seconds for key in (self.keyframes if self.loop else self.keyframes[:-1]))

    @property
    def n_frames(self) -> int:
        """Frames of its video; the last of an open path is its last keyframe."""
        if not self.keyframes:
            return 0
        return max(round(self.seconds * self.fps) + (0 if self.loop else 1), 1)

    def frames(self) -> tuple[np.ndarray, np.ndarray]:
        """Poses and vertical fields of view of the frames of its video, as of `at`."""
        return self.at(np.arange(self.n_frames) / self.fps)

    def at(self, times: Any) -> tuple[np.ndarray, np.ndarray]:
        """Poses [F, 3, 4] and vertical fields of view [F] at `times` [F]."""
        keys = self.keyframes + self.keyframes[: self.loop]
        numbers, starts = np.arange(len(keys)), np.cumsum([0.0, *(key.seconds for key in keys[:-1])])
        u = np.interp(times, starts, numbers)  # in keyframes
        poses = torch.from_numpy(np.stack([key.pose for key in self.keyframes])).double()  # [K, 3, 4]
        if len(poses) > 1:
            poses = around(poses, torch.from_numpy(u), self.loop)
        return poses.expand(len(u), 3, 4).numpy(), np.interp(u, numbers, [key.fov for key in keys])

    def cameras(self) -> Cameras:
        if not 0 < self.n_frames <= MAX_FRAMES:
            raise SceneError(f"the path has {self.n_frames} frames; it must have 1 to {MAX_FRAMES}")
        return pinholes(*self.frames(), self.size)

    def to_json(self, transform: SceneTransform | None) -> str:
        cameras = self.cameras()
        listed = []
        for key in self.keyframes:
            pose = key.pose if transform is None else transform.to_input(key.pose)
            matrix = [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]
            listed.append({"transform_matrix": matrix, "fov": math.degrees(key.fov), "seconds": key.seconds})
        content = cameras_json.to_json(in_files_world(cameras, transform), [f"{i:05d}" for i in range(len(cameras))])
        return json.dumps({"fps": self.fps, "keyframes": {"loop": self.loop, "list": listed}, **content}, indent=1)


def read_camera_path(file: Path, transform: SceneTransform | None, size: tuple[int, int]) -> CameraPath:
    """The path of a file; of one without keyframes, each of its frames is one. Raises SceneError."""
    content = safe_io.read_json(file, SceneError, "the camera path")
    if path := _of_keyframes(content, printable(file), size, None, transform):
        return path
    cameras = read_path(file, size, transform=transform)
    path = CameraPath(size=max(cameras.sizes()), fps=_fps(content, printable(file)))
    kept = content.get("keyframes")
    if isinstance(kept, dict) and "list" in kept:
        path.loop = bool(kept.get("loop"))
        where = f"{printable(file)}: keyframe"
        path.keyframes = _keyframes(kept["list"], where, "transform_matrix", transform, seconds=None)
        return path
    if len(cameras) > MAX_KEYFRAMES:
        raise SceneError(
            f"{printable(file)} has {len(cameras)} frames and no keyframes; at most {MAX_KEYFRAMES} are read"
        )
    for index, pose in enumerate(cameras.camera_to_world.double().numpy()):
        height, focal = cameras.size(index)[1], float(cameras.focal[index, 1])
        path.keyframes.append(Keyframe(pose, 2 * math.atan(height / 2 / focal), 1 / path.fps))
    return path


def _of_keyframes(
    content: Any, where: str, size: tuple[int, int], own_size: tuple[int, int] | None, transform: SceneTransform | None
) -> CameraPath | None:
    """The path between keyframes that nerfstudio or instant-ngp saved without the frames; None of other content."""
    if not isinstance(content, dict):
        return None
    is_ngp, is_empty = isinstance(content.get("path"), list), not content.get(PATH_KEY)
    kept = content["path"] if is_ngp else content.get("keyframes") if is_empty else None
    if not isinstance(kept, list) or not kept:
        return None
    scale = None
    if is_ngp:
        scale = cameras_json.number({"scale": NGP_SCALE} | content, "scale", where, above=0)
        advice = "if the scene's transforms.json has another, write it into this file"
        warnings.warn(f"{where}: read with scale {scale:g}; {advice}", stacklevel=3)
    is_loop = content.get("is_cycle") is True or content.get("loop") is True
    steps = max(len(kept) - (not is_loop), 1)
    seconds = cameras_json.number({"seconds": SECONDS * steps} | content, "seconds", where, 0, 1e5) / steps
    keyframes = _keyframes(kept, f"{where}: keyframe", "matrix", transform, scale, seconds=seconds)
    return CameraPath(keyframes, is_loop, _fps(content, where), _size_of(content, where, size, own_size))


def _fps(content: dict[str, Any], where: str) -> int:
    return max(round(cameras_json.number({"fps": FPS} | content, "fps", where, 0, 1001)), 1)


def _keyframes(
    entries: Any, where: str, key: str, transform: SceneTransform | None, scale: float | None = None, **defaults: Any
) -> list[Keyframe]:
    """The entries of a list in a file, whose matrix is under `key`, or instant-ngp's if there is a `scale`."""
    keyframes = []
    for index, entry in enumerate(cameras_json.frames_of({"frames": entries}, where)):
        place, values = f"{where} {index}", {"fov": None, "seconds": SECONDS} | defaults | entry
        matrix = _rows(entry.get(key)) if scale is None else _of_ngp(entry, place, scale)
        pose = cameras_json.pose_of(matrix, f"{place}, {key}")
        fov = math.radians(cameras_json.number(values, "fov", place, *FOV_LIMITS))
        seconds = cameras_json.number(values, "seconds", place, 0, LIMITS[1] + 1)
        keyframes.append(Keyframe(pose if transform is None else transform.to_model(pose), fov, seconds))
    return keyframes


def _rows(matrix: Any) -> Any:
    """A matrix that may be 16 numbers, row by row or column by column, and in a text; what is none stays as it is."""
    with contextlib.suppress(ValueError, RecursionError):
        matrix = json.loads(matrix, parse_int=float) if isinstance(matrix, str) else matrix
    if not isinstance(matrix, list) or len(matrix) != 16 or not all(map(cameras_json.is_number, matrix)):
        return matrix
    rows = np.array(matrix, dtype=np.float64).reshape(4, 4)
    return (rows.T if np.abs(rows[3, :3]).max() > np.abs(rows[:3, 3]).max() else rows).tolist()


def _of_ngp(entry: dict[str, Any], where: str, scale: float) -> Any:
    """The matrix of a quaternion R x y z w, OpenCV's axes, and a position T in instant-ngp's unit cube, y z x."""
    values = [entry.get("R"), entry.get("T")]
    sizes = [len(part) if isinstance(part, list) and all(map(cameras_json.is_number, part)) else 0 for part in values]
    if sizes != [4, 3] or not any(values[0]):
        raise SceneError(f"{where} must have 'R' of 4 numbers and 'T' of 3")
    x, y, z, w = values[0]
    pose = np.concatenate([rotations_of(np.array([[w, x, y, z]]))[0], np.array([values[1]]).T], axis=1)[[2, 0, 1]]
    pose[:, 1:3] *= -1
    pose[:, 3] = (pose[:, 3] - NGP_OFFSET) / scale
    return pose.tolist()
