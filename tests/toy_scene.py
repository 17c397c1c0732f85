# SPDX-License-Identifier: Apache-2.0
"""A small scene made with numpy alone: colored balls over nothing, traced exactly, in NeRF-synthetic format.

Its images are no squares, and every frame has focal lengths and a principal point of its own: what takes width for
height, x for y, or one frame's camera for another's, sees something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from nerfkit import config as config_module

BOX, STEPS = (-0.8, -0.8, -0.7, 0.8, 0.8, 0.9), 60  # of the options below, which train within a second
ANGLE_X = 0.7
WIDTH, HEIGHT = 26, 22
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


def drawn_eye(generator: np.random.Generator) -> np.ndarray:
    """Where a camera stands at a distance of 1: anywhere around, from a little below to high above."""
    azimuth, elevation = generator.uniform(0, 2 * math.pi), generator.uniform(-0.3, 1.2)
    flat = math.cos(elevation)
    return np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)])


def plain_intrinsics(width: int, height: int) -> dict[str, float]:
    """Focal lengths and principal point of `ANGLE_X` [pixels]."""
    focal = 0.5 * width / math.tan(0.5 * ANGLE_X)
    return {"fl_x": focal, "fl_y": focal, "cx": width / 2, "cy": height / 2}


def drawn_intrinsics(generator: np.random.Generator, width: int, height: int) -> dict[str, float]:
    """Others: pixels that are no squares, and a principal point beside the middle."""
    plain = plain_intrinsics(width, height)
    factors = dict(zip(plain, generator.uniform((0.85, 0.95, 0.92, 0.92), (1.05, 1.15, 1.08, 1.08)), strict=True))
    return {key: value * factors[key] for key, value in plain.items()}


def trace(pose: np.ndarray, width: int, height: int, intrinsics: dict[str, float] | None = None) -> np.ndarray:
    """RGBA image [height, width, 4] uint8: the nearest ball, shaded by its normal."""
    row, column = np.mgrid[0:height, 0:width] + 0.5
    fl_x, fl_y, cx, cy = (intrinsics or plain_intrinsics(width, height)).values()
    return trace_directions(pose, np.stack([(column - cx) / fl_x, -(row - cy) / fl_y, -np.ones_like(row)], axis=-1))


def trace_directions(pose: np.ndarray, local: np.ndarray) -> np.ndarray:
    """RGBA image [H, W, 4] uint8 along the directions `local` [H, W, 3] in camera axes."""
    height, width = local.shape[:2]
    directions = local @ pose[:3, :3].T
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    image, nearest = np.zeros((height, width, 4)), np.full((height, width), np.inf)
    for center, radius, color in zip(BALLS, RADII, COLORS, strict=True):
        offset = pose[:3, 3] - center
        b = directions @ offset
        under_root = b * b - offset @ offset + radius**2
        t = -b - np.sqrt(np.maximum(under_root, 0))
        hit = (under_root > 0) & (t > 0) & (t < nearest)
        normal = (pose[:3, 3] + t[..., None] * directions - center) / radius
        shade = 0.6 + 0.4 * normal[..., 2:]
        image[hit] = np.concatenate([color * shade, np.ones_like(shade)], axis=-1)[hit]
        nearest[hit] = t[hit]
    return (image * 255 + 0.5).astype(np.uint8)


def write_scene(
    folder: Path, size: tuple[int, int] = (WIDTH, HEIGHT), counts: dict[str, int] | None = None,
    extension: str = "png", one_camera: bool = False,
) -> Path:  # fmt: skip
    """Write train and test views to `folder`, of `size` width and height.

    Frames have intrinsics of their own, or of `one_camera` the file's, as Blender writes it: its angle of view.
    """
    width, height = size
    generator, of_intrinsics = np.random.default_rng(0), np.random.default_rng(1)
    for split, count in (counts or {"train": 12, "test": 2}).items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        frames = []
        for index in range(count):
            pose = look_at(3 * drawn_eye(generator))
            own = {} if one_camera else drawn_intrinsics(of_intrinsics, width, height)
            image = Image.fromarray(trace(pose, width, height, own))
            (image.convert("RGB") if extension == "jpg" else image).save(folder / split / f"r_{index}.{extension}")
            frames.append({"file_path": f"./{split}/r_{index}", **own, "transform_matrix": pose.tolist()})
        content = ({"camera_angle_x": ANGLE_X} if one_camera else {}) | {"frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))
    return folder


def change(folder: Path, edit: Callable[[dict], object], name: str = "transforms_train.json") -> None:
    file = folder / name
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def small_options(scene: Path) -> config_module.ResolvedConfig:
    config = config_module.Config(size="large", device="cpu")  # but for what follows, whatever the device
    config.data.path, config.data.box = str(scene), (-0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
    config.model.levels, config.model.log2_hashmap_size, config.model.max_resolution = 3, 12, 48
    config.model.mlp_width = 16
    config.sampling.step_size, config.sampling.occupancy_resolution, config.sampling.alpha_threshold = 0.04, 24, 0.01
    config.trainer.steps, config.trainer.samples_per_step, config.trainer.learning_rate = 60, 4096, 0.03
    config.trainer.weight_decay = 0.0
    config.trainer.save_every, config.trainer.distortion = 0, 0.0
    return config.resolved()


def write_options(folder: Path) -> Path:
    """The toy scene in `folder`/scene, and a file of options for it."""
    config = config_module.Config(device="cpu")
    config.data.path, config.data.box = str(write_scene(folder / "scene", size=(15, 13))), BOX
    config.model.levels, config.model.log2_hashmap_size, config.model.max_resolution = 2, 10, 24
    config.model.mlp_width = 16
    config.sampling.step_size, config.sampling.occupancy_resolution = 0.08, 8
    config.trainer.steps, config.trainer.samples_per_step, config.trainer.learning_rate = STEPS, 1024, 0.03
    config.trainer.weight_decay = 0.0
    config.eval.comparison_images = 1
    config_module.dump(config, folder / "options.toml")
    return folder / "options.toml"
