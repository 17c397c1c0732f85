# SPDX-License-Identifier: Apache-2.0
"""A small scene made with numpy alone: colored balls over nothing, traced exactly, in NeRF-synthetic format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

ANGLE_X = 0.7
BALLS = np.array([[0.0, 0, 0], [0.45, 0.1, 0.2], [-0.3, 0.4, -0.2]])  # centres
RADII = np.array([0.35, 0.18, 0.22])
COLORS = np.array([[0.85, 0.3, 0.2], [0.2, 0.5, 0.9], [0.3, 0.8, 0.3]])


def look_at(eye: np.ndarray) -> np.ndarray:
    """Camera-to-world 4x4, OpenGL axes, looking at the origin with z up."""
    z = eye / np.linalg.norm(eye)
    x = np.cross([0, 0, 1.0], z)
    x /= np.linalg.norm(x)
    pose = np.eye(4)
    pose[:3] = np.stack([x, np.cross(z, x), z, eye], axis=1)
    return pose


def trace(pose: np.ndarray, width: int, height: int) -> np.ndarray:
    """RGBA image [height, width, 4] uint8: the nearest ball, shaded by its normal."""
    row, column = np.mgrid[0:height, 0:width] + 0.5
    focal = 0.5 * width / math.tan(0.5 * ANGLE_X)
    local = np.stack([(column - width / 2) / focal, -(row - height / 2) / focal, -np.ones_like(row)], axis=-1)
    directions = local @ pose[:3, :3].T
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    image, nearest = np.zeros((height, width, 4)), np.full((height, width), np.inf)
    for center, radius, color in zip(BALLS, RADII, COLORS, strict=True):
        offset = pose[:3, 3] - center
        b = directions @ offset
        under_root = b * b - offset @ offset + radius**2
        t = -b - np.sqrt(np.maximum(under_root, 0))
        hit = (under_root > 0) & (t < nearest)
        normal = (pose[:3, 3] + t[..., None] * directions - center) / radius
        shade = 0.6 + 0.4 * normal[..., 2:]
        image[hit] = np.concatenate([color * shade, np.ones_like(shade)], axis=-1)[hit]
        nearest[hit] = t[hit]
    return (image * 255 + 0.5).astype(np.uint8)


def write_scene(
    folder: Path,
    size: int | tuple[int, int] = 24,
    counts: dict[str, int] | None = None,
    extension: str = "png",
) -> Path:
    """Write train and test views to `folder`; `size` is width and height, or both at once."""
    width, height = (size, size) if isinstance(size, int) else size
    generator = np.random.default_rng(0)
    for split, count in (counts or {"train": 12, "test": 2}).items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        frames = []
        for index in range(count):
            azimuth, elevation = generator.uniform(0, 2 * math.pi), generator.uniform(-0.3, 1.2)
            eye = 3 * np.array(
                [
                    math.cos(elevation) * math.cos(azimuth),
                    math.cos(elevation) * math.sin(azimuth),
                    math.sin(elevation),
                ]
            )
            pose = look_at(eye)
            image = Image.fromarray(trace(pose, width, height))
            (image.convert("RGB") if extension == "jpg" else image).save(folder / split / f"r_{index}.{extension}")
            frames.append({"file_path": f"./{split}/r_{index}", "transform_matrix": pose.tolist()})
        content = {"camera_angle_x": ANGLE_X, "frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))
    return folder


def change(folder: Path, edit: Callable[[dict], object]) -> None:
    """Apply edit(content) to transforms_train.json."""
    file = folder / "transforms_train.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))
