# SPDX-License-Identifier: Apache-2.0
"""Colors, depths and normals of views as float32 files: EXR, which programs for film read, or NPZ."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.export.writing import optional
from nerfkit.rendering.images import npz_bytes

FORMATS = ("exr", "npz")


def in_files(images: dict[str, np.ndarray], transform: SceneTransform | None) -> dict[str, np.ndarray]:
    """Depths in the units, and normals along the axes, of the scene's files."""
    if transform is None:
        return images
    moved = dict(images)
    for name, values in images.items():
        if name.startswith("depth"):
            moved[name] = transform.distance_to_input(values).astype(np.float32)
        if name == "normal":
            moved[name] = transform.directions_to_input(values.astype(np.float64)).astype(np.float32)
    return moved


def image_bytes(images: dict[str, np.ndarray], format: str, depth: str) -> bytes:
    """The content of a file of one view, `depth` is what Z holds in an EXR file: depth_z or depth_median_z."""
    if format == "npz":
        return npz_bytes(**images)
    rgb, normal = linear(images["rgb"]), images["normal"]
    channels = {"A": images["opacity"], "Z": images[depth]}
    channels |= {name: rgb[..., index] for index, name in enumerate("RGB")}
    channels |= {f"N.{name}": normal[..., index] for index, name in enumerate("XYZ")}
    channels = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in channels.items()}
    exr = optional("OpenEXR", "an EXR file")
    header = {"compression": exr.ZIP_COMPRESSION, "type": exr.scanlineimage}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.exr"
        exr.File(header, channels).write(str(file))
        return file.read_bytes()


def linear(rgb: np.ndarray) -> np.ndarray:
    """sRGB in [0, 1] as linear light."""
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4).astype(np.float32)
