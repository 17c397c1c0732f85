# SPDX-License-Identifier: Apache-2.0
"""The room as a capture in nerfstudio's dialect: transforms.json, photographs, sparse points, true ranges."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from nerfkit.data.capture import Points
from nerfkit.data.lens import Lens
from nerfkit.data.ply import write_points
from nerfkit.files import atomic_write
from orrery import room_views
from orrery.cameras import View
from orrery.room_render import LensRenderer, centers, directions_of, to_photo

JPEG = {"format": "JPEG", "quality": 95, "subsampling": 0}
POINTS = 3000  # at most
SEEN_BY = 3  # views that see a point, at least
LEAST_ANGLE = 1.5  # degrees between two of the rays to a point, COLMAP's default: the far land has few points
PIXEL_NOISE = 0.4  # standard deviation of a point's projection [pixels]


class Shot(NamedTuple):
    """One view as it was rendered."""

    view: View
    photo: bytes  # the JPEG file
    image: np.ndarray  # [H, W, 3] uint8, as decoded from it: who has the files can find the same points
    ranges: np.ndarray  # [H, W] along the ray of a pixel's center [scene units]; infinite where the sky is


def image_name(view: View) -> str:
    return f"images/{room_views.file_stem(view)}.jpg"


def range_name(view: View) -> str:
    return f"depth/{room_views.file_stem(view)}.npz"


def shoot(renderer: LensRenderer, view: View) -> Shot:
    """Render a view."""
    content = io.BytesIO()
    to_photo(renderer.image(view.camera_to_world, view.seed)).save(content, **JPEG)
    return shot_of(renderer, view, content.getvalue())


def shot_of(renderer: LensRenderer, view: View, photo: bytes) -> Shot:
    """A view of which there is a photograph."""
    return Shot(view, photo, np.asarray(Image.open(io.BytesIO(photo))), renderer.ranges(view.camera_to_world))


def write_shot(folder: Path, shot: Shot) -> None:
    """The photograph, and of a test view the true ranges in the files' units, float16."""
    for part in ("images", "depth"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    atomic_write(folder / image_name(shot.view), shot.photo)
    if shot.view.split == "test":
        content = io.BytesIO()
        np.savez_compressed(content, depth_ray=(shot.ranges * room_views.FILE_SCALE).astype(np.float16))
        atomic_write(folder / range_name(shot.view), content.getvalue())


def write_transforms(folder: Path, lens: Lens, views: list[View]) -> None:
    """Cameras of the views; the keys are nerfstudio's."""
    named = dict(zip(("fl_x", "fl_y", "cx", "cy", *room_views.DISTORTION), lens.params, strict=True))
    frames = [
        {"file_path": image_name(view), "transform_matrix": room_views.to_files(view.camera_to_world).tolist()}
        for view in views
    ]
    content = {"camera_model": lens.model, "w": lens.width, "h": lens.height, **named}
    content |= {"ply_file_path": "points.ply", "frames": frames}
    atomic_write(folder / "transforms.json", json.dumps(content, indent=1).encode() + b"\n")


def write_cloud(folder: Path, lens: Lens, shots: list[Shot]) -> int:
    """Sparse points as structure from motion finds them, in the files' frame; returns how many."""
    positions, colors = sparse_points(lens, shots)
    nothing = np.zeros(0, np.int64)
    points = Points(room_views.points_to_files(positions), colors, np.zeros(len(positions), np.int64), nothing)
    write_points(folder / "points.ply", points)
    return len(positions)


def sparse_points(lens: Lens, shots: list[Shot], seed: int = 11) -> tuple[np.ndarray, np.ndarray]:
    """Positions [P, 3] in the world and colors [P, 3] uint8.

    They lie where an image has contrast, are seen by several views at an angle, and are off by what a fraction of a
    pixel means at their distance: along the ray more than across, by how small the angle is.
    """
    rng = np.random.default_rng(seed)
    local = directions_of(lens, centers(lens))  # [H, W, 3]
    kept, colors = [], []
    for shot in shots:
        pixels = _corners(shot, rng, count=3 * POINTS // len(shots))
        rotation, eye = shot.view.camera_to_world[:3, :3], shot.view.camera_to_world[:3, 3]
        rays = local[pixels[:, 0], pixels[:, 1]].astype(float) @ rotation.T  # [K, 3]
        ranges = shot.ranges[pixels[:, 0], pixels[:, 1]]
        positions = eye + ranges[:, None] * rays
        count, angle = _tracks(positions, rays, lens, shots)
        good = (count >= SEEN_BY) & (angle > np.radians(LEAST_ANGLE))
        across = PIXEL_NOISE / lens.focal[0] * ranges  # [K] standard deviation
        noise = rng.normal(size=positions.shape) * across[:, None]
        noise += rays * (rng.normal(size=len(rays)) * across / np.maximum(np.sin(angle), 1e-3))[:, None]
        kept.append((positions + noise)[good])
        colors.append(shot.image[pixels[:, 0], pixels[:, 1]][good])
    chosen = rng.permutation(sum(map(len, kept)))[:POINTS]
    return np.concatenate(kept)[chosen], np.concatenate(colors)[chosen]


def _corners(shot: Shot, rng: np.random.Generator, count: int) -> np.ndarray:
    """Pixels [count, 2] (row, column) that are not the sky's, drawn by the contrast around them."""
    gray = shot.image.mean(-1)
    contrast = np.hypot(*np.gradient(gray)) * np.isfinite(shot.ranges)
    chance = contrast.ravel() / contrast.sum()
    return np.stack(np.unravel_index(rng.choice(chance.size, count, replace=False, p=chance), contrast.shape), -1)


def _tracks(positions: np.ndarray, rays: np.ndarray, lens: Lens, shots: list[Shot]) -> tuple[np.ndarray, np.ndarray]:
    """How many views see each of the points [K, 3], and the largest angle [K] of theirs to the rays [K, 3]."""
    count, largest = np.zeros(len(positions), int), np.zeros(len(positions))
    for shot in shots:
        offset = positions - shot.view.camera_to_world[:3, 3]
        distance = np.linalg.norm(offset, axis=1)
        camera = offset @ shot.view.camera_to_world[:3, :3] * np.array([1.0, -1, -1])  # OpenCV's axes
        pixels = lens.project(torch.from_numpy(camera)).numpy()
        column, row = (np.nan_to_num(np.floor(side), nan=-1).clip(-1, 2**20).astype(int) for side in pixels.T)
        inside = (column >= 0) & (column < lens.width) & (row >= 0) & (row < lens.height)
        true = shot.ranges[np.where(inside, row, 0), np.where(inside, column, 0)]
        seen = inside & (np.abs(true - distance) < 0.02 * distance)
        angle = np.arccos(np.clip((offset * rays).sum(1) / distance, -1, 1))
        largest = np.where(seen, np.maximum(largest, angle), largest)
        count += seen
    return count, largest
