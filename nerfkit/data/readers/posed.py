# SPDX-License-Identifier: Apache-2.0
"""What the small readers share: numbers and images of a folder, and a capture of pinholes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.readers.folders import is_folder, list_images
from nerfkit.data.readers.transforms.cameras_json import pose_of
from nerfkit.data.sfm.photographs import natural_key
from nerfkit.errors import SceneError
from nerfkit.reading import read_json, read_text_utf8, shown

OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])  # of a camera in OpenCV's axes
PHONE_UP = (0.0, 1.0, 0.0)  # of ARKit's world


def first_folder(folder: Path, *names: str) -> Path:
    """The first of the folders of images that is there; raises SceneError."""
    found = next((folder / name for name in names if is_folder(folder / name)), None)
    if found is None:
        raise SceneError(f"{shown(folder)}: there is no folder {' or '.join(names)} with the images")
    return found


def images_in(folder: Path) -> list[Path]:
    """The images in a folder, 2 before 10."""
    return [folder / name for name in sorted(list_images(folder), key=natural_key) if "/" not in name]


def values_in(file: Path, *keys: str) -> list[Any]:
    """Values of a JSON file's keys, all of which have to be there."""
    content = read_json(file, SceneError, "camera file")
    if not isinstance(content, dict) or (missing := [key for key in keys if key not in content]):
        raise SceneError(
            f"{shown(file)}: keys are missing: {', '.join(missing if isinstance(content, dict) else keys)}"
        )
    return [content[key] for key in keys]


def numbers_in(file: Path) -> list[list[float]]:
    """The numbers of every line of a text file."""
    try:
        lines = [line.split() for line in read_text_utf8(file, SceneError, "camera file").splitlines()]
        return [[float(value) for value in line] for line in lines if line]
    except ValueError as error:
        raise SceneError(f"{shown(file)} must hold numbers alone: {shown(str(error))}") from None


def array_of(values: Any, where: str, *shape: int) -> np.ndarray:
    """Finite numbers float64 of a shape, of which -1 is any length; raises SceneError naming `where`."""
    try:
        array = np.array(values, dtype=np.float64)
        if array.ndim != len(shape) or any(side not in (-1, there) for side, there in zip(shape, array.shape)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise SceneError(f"{where} must be numbers of the shape {list(shape)}") from None
    if not np.isfinite(array).all():
        raise SceneError(f"{where} must be finite")
    return array


def posed_image(folder: Path, file: Path, pose: np.ndarray, values: Any, size: Any, where: str, **more) -> PosedImage:
    """An image of a pinhole with `values` fx, fy, cx and cy, at a pose [3 or 4, 4] in OpenGL axes."""
    width, height = (int(side) for side in array_of(size, f"{where}: width and height", 2))
    try:
        lens = Lens("PINHOLE", tuple(array_of(values, "fx, fy, cx and cy", 4).tolist()), width, height)
    except SceneError as error:
        raise SceneError(f"{where}: {error}") from None
    name = Path(os.path.relpath(file, folder)).as_posix()
    return PosedImage(name, file, pose_of(pose.tolist(), where), lens, **more)


def capture_of(folder: Path, format: str, images: Iterable[PosedImage], **more: Any) -> Capture:
    """The capture of a small reader; equal lenses are one object."""
    images = sorted(images, key=lambda image: image.name)
    if not images:
        raise SceneError(f"{shown(folder)}: there are no images with poses")
    return Capture(folder.resolve().name, format, images, **more)
