# SPDX-License-Identifier: Apache-2.0
"""Camera paths that are made around cameras or through them, and cameras for images of another size or lens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.scene_transform.transform import SceneTransform

ELEVATION = 25.0  # degrees, of an orbit
STEEPEST = math.radians(89)  # of a path among views
MAX_GAP = 120.0  # degrees between neighbours among cameras that surround a scene
AIMED = 0.05  # of the way to a point, by which cameras that look at it may miss it


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
