# SPDX-License-Identifier: Apache-2.0
"""A capture as the `transforms.json` that nerfstudio reads, and nerfkit reads back equal."""

import json
import os
from pathlib import Path
from typing import Any

from nerfkit.data import ply
from nerfkit.data.capture import Capture
from nerfkit.data.readers.transforms.cameras_json import SPLITS, keys_of
from nerfkit.errors import SceneError
from nerfkit.files import atomic_write
from nerfkit.safe_io import printable


def write_transforms(file: Path, capture: Capture) -> None:
    """Write poses, lenses, masks, splits, up and points, these as a PLY file beside `file`; images are named from its
    folder. Raises SceneError naming what cannot be said in the format."""
    lenses = check_writable(capture)
    names = {image.name: path_from(file.parent, image.file, image.name) for image in capture.images}
    is_shared = all(keys == lenses[0] for keys in lenses)
    content: dict[str, Any] = lenses[0] if is_shared else {}
    if capture.up is not None:
        content["up"] = list(capture.up)
    if capture.points is not None:
        points = file.with_name(f"{file.stem}_points.ply")
        ply.write_points(points, capture.points)
        content["ply_file_path"] = points.name
    for split, listed in capture.splits.items():
        content[f"{split}_filenames"] = [names[name] for name in listed]
    frames = []
    for image, keys in zip(capture.images, lenses, strict=True):
        own = {} if is_shared else keys
        mask = {} if image.mask is None else {"mask_path": path_from(file.parent, image.mask, "")}
        pose = [*image.camera_to_world.tolist(), [0.0, 0.0, 0.0, 1.0]]
        frames.append({"file_path": names[image.name], **mask, **own, "transform_matrix": pose})
    atomic_write(file, json.dumps({**content, "frames": frames}, indent=1) + "\n")


def check_writable(capture: Capture) -> list[dict[str, Any]]:
    """The keys of every image's lens, all coefficients among them; raises SceneError naming what cannot be said."""
    where, images = f"capture {printable(capture.name)}", capture.images
    if not images:
        raise SceneError(f"{where} has no images to write")
    without = [image.name for image in images if image.mask is None]
    if len(without) < len(images) and capture.white_ignores:
        raise SceneError(f"{where}: its masks ignore white, this format ignores black; invert the masks")
    if 0 < len(without) < len(images):
        raise SceneError(f"image {printable(without[0])} has no mask, but others have; the format needs all or none")
    if unknown := capture.splits.keys() - set(SPLITS):
        raise SceneError(f"split {printable(min(unknown))} cannot be written; known: {', '.join(SPLITS)}")
    lenses = [keys_of(image.lens, f"image {printable(image.name)}") for image in images]
    if {keys["camera_model"] for keys in lenses} == {"PINHOLE", "OPENCV"}:  # the format has one for all
        lenses = [keys | {"camera_model": "OPENCV"} for keys in lenses]
    return lenses


def path_from(folder: Path, file: Path, name: str) -> str:
    """`name` if that leads from `folder` to `file`, or else the relative path to it."""
    if name and os.path.abspath(folder / name) == os.path.abspath(file):
        return name
    return os.path.relpath(file, folder)
