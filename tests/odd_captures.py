# SPDX-License-Identifier: Apache-2.0
"""Captures that no one would take on purpose, small, in nerfstudio's dialect: what training and inspection say to them.

Each has images of noise of 24x16, which no camera has seen: they are to be refused or remarked on, or begin to train.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from nerfkit.data import ply
from nerfkit.data.capture import Points

WIDTH, HEIGHT, FOCAL = 24, 16, 20.0
SMALL = (  # options with which training takes a second
    "--config cpu --device cpu --model.levels 2 --model.log2_table 8 --model.max_resolution 32 --model.hidden 8 "
    "--sampling.occupancy_resolution 8 --trainer.steps 2 --trainer.max_seconds 0 --trainer.samples 256"
).split()


def noise(index: int) -> np.ndarray:
    """An image [H, W, 3] uint8, for each index another."""
    return np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def write_capture(
    folder: Path,
    poses: np.ndarray,
    picture: Callable[[int], np.ndarray] = noise,
    points: np.ndarray | None = None,
    **keys: object,
) -> Path:
    """Cameras at `poses` [V, 3, 4], what each sees, and sparse points [P, 3], if any; `keys` are the file's own."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    frames = []
    for index, pose in enumerate(poses):
        name = f"images/{index:03d}.png"
        Image.fromarray(picture(index)).save(folder / name)
        frames.append({"file_path": name, "transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]})
    lens = {"fl_x": FOCAL, "fl_y": FOCAL, "cx": WIDTH / 2, "cy": HEIGHT / 2, "w": WIDTH, "h": HEIGHT}
    content = {"camera_model": "PINHOLE", **lens, **keys, "frames": frames}
    if points is not None:
        content["ply_file_path"] = "points.ply"
        nothing = np.zeros(len(points), np.int64)
        ply.write_points(
            folder / "points.ply", Points(points, np.full((len(points), 3), 128, np.uint8), nothing, nothing)
        )
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder
