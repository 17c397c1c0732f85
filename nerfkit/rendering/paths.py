# SPDX-License-Identifier: Apache-2.0
"""Camera paths for novel views."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras

ELEVATION = 25.0  # degrees, of an orbit


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
    radius = (like.positions - target).norm(dim=-1).mean()
    helper = torch.eye(3)[up.abs().argmin()]
    east = F.normalize(torch.linalg.cross(helper, up), dim=-1)
    north = torch.linalg.cross(up, east)
    flat = torch.cos(azimuths)[:, None] * east + torch.sin(azimuths)[:, None] * north  # [V, 3]
    eyes = target + radius * (torch.cos(elevations)[:, None] * flat + torch.sin(elevations)[:, None] * up)
    return _with_poses(like, look_at(eyes, target, up))


def interpolate(like: Cameras, n_frames: int) -> Cameras:
    """A closed smooth path through the cameras `like`, in their order: Catmull-Rom splines of position and axes."""
    n = len(like)
    return _with_poses(like, along(like.camera_to_world, torch.arange(n_frames) / n_frames * n, closed=True))


def along(poses: Tensor, u: Tensor, closed: bool) -> Tensor:
    """Poses [F, 3, 4] at `u` [F] on a smooth curve through `poses` [K, 3, 4], where u = k is pose k.

    Catmull-Rom splines of position and axes; a closed curve goes on from the last pose to the first.
    """
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


def _with_poses(like: Cameras, poses: Tensor) -> Cameras:
    """Cameras at `poses` with the first intrinsics of `like`, without distortion."""
    first = like.pinhole()[[0] * poses.shape[0]]
    return replace(first, camera_to_world=poses)
