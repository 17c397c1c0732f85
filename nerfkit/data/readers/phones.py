# SPDX-License-Identifier: Apache-2.0
"""Captures of phones: Record3D's metadata.json with rgb, and Polycam's keyframes. Their axes are OpenGL's, y is up."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nerfkit.data.capture import Capture, rotations_of
from nerfkit.data.readers.folders import is_folder
from nerfkit.data.readers.posed import PHONE_UP, array_of, capture_of, first_folder, images_in, posed_image, values_in
from nerfkit.errors import SceneError
from nerfkit.reading import shown

RECORD3D = "metadata.json"
CAMERAS = ("corrected_cameras", "cameras")  # of Polycam's keyframes
POLYCAM_KEYS = (
    "fx",
    "fy",
    "cx",
    "cy",
    "width",
    "height",
    *(f"t_{row}{column}" for row in range(3) for column in range(4)),
)


def is_record3d(folder: Path) -> bool:
    return os.path.lexists(folder / RECORD3D) and is_folder(folder / "rgb")


def read_record3d(folder: Path) -> Capture:
    """Poses x y z w and position of the images rgb/0, 1, 2, ...; K is listed column by column."""
    file = folder / RECORD3D
    k, poses, *size = values_in(file, "K", "poses", "w", "h")
    poses = array_of(poses, f"{shown(file)}: 'poses'", -1, 7)
    if not (np.linalg.norm(poses[:, :4], axis=1) > 1e-6).all():
        raise SceneError(f"{shown(file)}: 'poses' holds a quaternion of no length")
    k = array_of(k, f"{shown(file)}: 'K'", 9)
    rotations = rotations_of(poses[:, [3, 0, 1, 2]])
    images, files = [], images_in(folder / "rgb")
    if len(files) != len(poses):
        raise SceneError(f"{shown(file)} has {len(poses)} poses, but {shown(folder / 'rgb')} {len(files)} images")
    for index, (image, rotation, position) in enumerate(zip(files, rotations, poses[:, 4:], strict=True)):
        pose = np.concatenate([rotation, position[:, None]], axis=1)
        images.append(posed_image(folder, image, pose, k[[0, 4, 6, 7]], size, f"{shown(file)}: pose {index}"))
    return capture_of(folder, "record3d", images, up=PHONE_UP)


def is_polycam(folder: Path) -> bool:
    return any(is_folder(folder / "keyframes" / name) for name in CAMERAS)


def read_polycam(folder: Path) -> Capture:
    """A JSON file for each image, of poses that Polycam has corrected where it has."""
    inner = folder / "keyframes"
    cameras, pictures = first_folder(inner, *CAMERAS), first_folder(inner, "corrected_images", "images")
    of_stem = {image.stem: image for image in images_in(pictures)}
    images = []
    for file in sorted(cameras.glob("*.json")):
        values = array_of(values_in(file, *POLYCAM_KEYS), shown(file), len(POLYCAM_KEYS))
        image = of_stem.get(file.stem, pictures / f"{file.stem}.jpg")
        images.append(posed_image(folder, image, values[6:].reshape(3, 4), values[:4], values[4:6], shown(file)))
    return capture_of(folder, "polycam", images, up=PHONE_UP)
