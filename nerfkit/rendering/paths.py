# SPDX-License-Identifier: Apache-2.0
"""Camera paths for novel views: made around cameras, between keyframes that are edited, and in files.

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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import safe_io
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.plausible import lens_diagnostics
from nerfkit.data.capture import rotations_of
from nerfkit.data.readers.transforms import cameras_json
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable

ELEVATION = 25.0  # degrees, of an orbit
STEEPEST = math.radians(89)  # of a path among views
MAX_GAP = 120.0  # degrees between neighbours among cameras that surround a scene
AIMED = 0.05  # of the way to a point, by which cameras that look at it may miss it
PATH_KEY = "camera_path"
FOV_LIMITS = (1e-4, 180.0)  # degrees
NERFSTUDIO_FPS = 24  # of a file of nerfstudio's that is written
NGP_SCALE, NGP_OFFSET = 0.33, 0.5  # of instant-ngp's unit cube, where a scene's file gives none
MAX_KEYFRAMES = 500
MAX_FRAMES = 20_000
SECONDS, FPS = 2.0, 30  # of a new keyframe, of a new path
LIMITS = (0.05, 600.0)  # seconds to the next keyframe, where they are typed


def look_at(eyes: Tensor, target: Tensor, up: Tensor) -> Tensor:
    """Poses [V, 3, 4], OpenGL axes, of cameras at `eyes` [V, 3] looking at `target` [3] with `up` [3] upwards."""
    back = F.normalize(eyes - target, dim=-1)  # [V, 3] camera z
    right = F.normalize(torch.linalg.cross(up.expand_as(back), back), dim=-1)
    return torch.stack([right, torch.linalg.cross(back, right), back, eyes], dim=-1)


def orbit(like: Cameras, target: Tensor, up: Tensor, n_frames: int, elevation: float = ELEVATION) -> Cameras:
    """A circle around `target` at the mean distance of the cameras `like`; `elevation` in degrees. Closed."""
    angles = torch.arange(n_frames) / n_frames * 2 * math.pi
    return _around(like, target, up, angles, torch.full_like(angles, math.radians(elevation)))


def spiral(like: Cameras, target: Tensor, up: Tensor, n_frames: int) -> Cameras:
    """Two turns around `target` from 5 up to 70 degrees of elevation and back. Closed."""
    t = torch.arange(n_frames) / n_frames * 2 * math.pi
    return _around(like, target, up, 2 * t, torch.deg2rad(37.5 - 32.5 * torch.cos(t)))


def _around(like: Cameras, target: Tensor, up: Tensor, azimuths: Tensor, elevations: Tensor) -> Cameras:
    """Cameras at azimuths and elevations [V, radians] around `target`, looking at it."""
    radius, (east, north) = (like.positions - target).norm(dim=-1).mean(), _level(up)
    flat = torch.cos(azimuths)[:, None] * east + torch.sin(azimuths)[:, None] * north  # [V, 3]
    eyes = target + radius * (torch.cos(elevations)[:, None] * flat + torch.sin(elevations)[:, None] * up)
    return _with_poses(like, look_at(eyes, target, up))


def _level(up: Tensor) -> Tensor:
    """Two axes [2, 3] of the ground."""
    east = F.normalize(torch.linalg.cross(torch.eye(3)[up.abs().argmin()], up), dim=-1)
    return torch.stack([east, torch.linalg.cross(up, east)])


def angles_of(cameras: Cameras, target: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Azimuths and elevations of cameras [V, radians] as they are seen from `target`."""
    offset = F.normalize(cameras.positions - target, dim=-1)  # [V, 3]
    east, north = (offset @ _level(up).T).unbind(-1)
    return torch.atan2(north, east), torch.asin((offset @ up).clamp(-1, 1))


def sway(like: Cameras, target: Tensor, up: Tensor, n_frames: int) -> Cameras:
    """An ellipse as wide and high as the cameras `like` are spread around `target`, looking at it. Closed."""
    azimuths, elevations = angles_of(like, target, up)
    middle = torch.atan2(azimuths.sin().mean(), azimuths.cos().mean())
    aside = (azimuths - middle + math.pi).remainder(2 * math.pi) - math.pi
    t = torch.arange(n_frames) / n_frames * 2 * math.pi
    across, above = (x.mean() + x.std(correction=0) * wave for x, wave in ((aside, t.cos()), (elevations, t.sin())))
    # Not above the highest view, and not over the pole, beyond which the image would be upside down.
    low, high = elevations.clamp(-STEEPEST, STEEPEST).aminmax()
    return _around(like, target, up, middle + across, above.clamp(low, high))


def views_surround(cameras: Cameras, target: Tensor, up: Tensor) -> bool:
    """Whether cameras stand around `target` and look inwards, so that a circle stays near them."""
    if (((cameras.positions - target) * cameras.camera_to_world[:, :, 2]).sum(-1) < 0).float().mean() > 0.5:
        return False  # most look outwards
    angles = angles_of(cameras, target, up)[0].sort().values
    gaps = torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
    return bool(gaps.max() < math.radians(MAX_GAP))


def mean_elevation(cameras: Cameras, target: Tensor, up: Tensor) -> float:
    """Of cameras above the plane through `target` [degrees]."""
    return math.degrees(angles_of(cameras, target, up)[1].mean())


def interpolate(like: Cameras, n_frames: int) -> Cameras:
    """A closed smooth path through the cameras `like`, in their order: Catmull-Rom splines of position and axes."""
    n = len(like)
    return _with_poses(like, along(like.camera_to_world, torch.arange(n_frames) / n_frames * n, closed=True))


def along(poses: Tensor, u: Tensor, closed: bool) -> Tensor:
    """Poses [F, 3, 4] at `u` [F] on Catmull-Rom splines of positions and axes of `poses` [K, 3, 4]; u = k is pose k."""
    n = len(poses)
    index = u.long() if closed else u.long().clamp(max=max(n - 2, 0))
    t = (u - index)[:, None, None].to(poses.dtype)  # [F, 1, 1]
    near = (index + k for k in (-1, 0, 1, 2))
    a, b, c, d = (poses[k % n if closed else k.clamp(0, n - 1)] for k in near)  # [F, 3, 4] each
    mixed = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    # A mean of rotations is no rotation: take the nearest one.
    left, _, right = torch.linalg.svd(mixed[:, :, :3])
    sign = torch.linalg.det(left @ right)[:, None]
    rotation = torch.cat([left[:, :, :2], left[:, :, 2:] * sign[:, None]], dim=-1) @ right
    return torch.cat([rotation, mixed[:, :, 3:]], dim=-1)


def around(poses: Tensor, u: Tensor, closed: bool) -> Tensor:
    """As `along`; but if all poses look at one point, the distance to it changes smoothly between them."""
    target = looked_at(poses)
    if target is None:
        return along(poses, u, closed)
    offset = poses[:, :, 3] - target
    way = offset.norm(dim=-1, keepdim=True).expand(-1, 3)  # [K, 3]
    mixed = along(torch.cat([poses[:, :, :3], (offset / way)[..., None], way[..., None]], dim=-1), u, closed)
    return torch.cat([mixed[:, :, :3], (target + F.normalize(mixed[:, :, 3], dim=-1) * mixed[:, :, 4])[..., None]], -1)


def looked_at(poses: Tensor) -> Tensor | None:
    """The point [3] that all poses [K, 3, 4] look at, within a share AIMED of their ways to it; None of others."""
    eyes, ahead = poses[:, :, 3], -poses[:, :, 2]
    across = torch.eye(3, dtype=poses.dtype) - ahead[:, :, None] * ahead[:, None]  # [K, 3, 3]
    target = torch.linalg.lstsq(across.sum(0), (across @ eyes[..., None]).sum(0), driver="gelsd").solution[:, 0]
    way = ((target - eyes) * ahead).sum(-1)  # [K]
    miss = (eyes + way[:, None] * ahead - target).norm(dim=-1)
    return target if bool((way > 0).all() and (miss <= AIMED * way).all()) else None


def _with_poses(like: Cameras, poses: Tensor) -> Cameras:
    """Cameras at `poses` with the first intrinsics of `like`, without distortion."""
    first = like.pinhole()[[0] * poses.shape[0]]
    return replace(first, camera_to_world=poses)


def pinholes(poses: Any, fovs: Iterable[float], size: tuple[int, int]) -> Cameras:
    """Cameras at poses [V, 3, 4] with vertical fields of view [V, radians], for images of one width and height."""
    width, height = size
    focal = torch.tensor([height / 2 / math.tan(fov / 2) for fov in fovs])[:, None].repeat(1, 2)
    center = torch.tensor([[width / 2, height / 2]]).repeat(len(focal), 1)
    return Cameras(torch.tensor(np.stack(poses), dtype=torch.float32), focal, center, width, height)


def in_files_world(cameras: Cameras, transform: SceneTransform | None) -> Cameras:
    """Cameras of the model's frame in that of the scene's files, in float64: that may lie far from its origin."""
    if transform is None:
        return cameras
    poses = transform.to_input(cameras.camera_to_world.double().numpy())
    return replace(cameras, camera_to_world=torch.from_numpy(poses))


def with_size(cameras: Cameras, width: int, height: int) -> Cameras:
    """The same cameras without distortion for another size: vertical fields of view and shapes of pixels stay."""
    cameras, sizes = cameras.pinhole(), torch.tensor(cameras.sizes())  # [V, 2]
    scale, size = height / sizes[:, 1:], torch.tensor([width, height])
    center = cameras.center * scale + (size - sizes * scale) / 2
    return replace(cameras, focal=cameras.focal * scale, center=center, width=width, height=height)


def seen_around(cameras: Cameras, kind: str, size: tuple[int, int] | None, up: Tensor) -> Cameras:
    """Cameras at the same places that take level panoramas, or fisheyes of 180 degrees across the shorter side."""
    height = max(height for _, height in cameras.sizes())
    width, height = size or (height * (1 + (kind == "equirectangular")), height)
    poses, lens = cameras.camera_to_world, Lens("EQUIRECTANGULAR", (width, height), width, height)
    if kind == "fisheye":
        lens = Lens("SIMPLE_FISHEYE", (min(width, height) / math.pi, width / 2, height / 2), width, height)
    else:  # a camera that looks straight down has its upper edge ahead
        ahead = 1e-3 * poses[:, :, 1] - poses[:, :, 2]
        poses = look_at(poses[:, :, 3], poses[:, :, 3] + ahead - (ahead @ up)[:, None] * up, up)
    return Cameras.from_lenses(poses, [lens] * len(cameras))


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
