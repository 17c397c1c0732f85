# SPDX-License-Identifier: Apache-2.0
"""A capture as the `transforms.json` that nerfstudio reads, and nerfkit reads back equal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nerfkit.data import ply
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.readers.transforms.lens import LISTED, keys_of
from nerfkit.data.readers.transforms.reader import SPLITS
from nerfkit.errors import SceneError
from nerfkit.files import atomic_write
from nerfkit.reading import shown

FAMILIES = (("camera_model", *LISTED), ("w", "h"), ("fl_x", "fl_y"), ("cx",), ("cy",))  # keys that frames give together


def write_transforms(file: Path, capture: Capture) -> None:
    """Write poses, lenses, masks, splits, up and points, these as a PLY file beside `file`.

    Images are named from the file's folder; one that lies there under its own name keeps it. Bounds and which image
    sees which point are not in the format. Raises SceneError naming what cannot be said in it.
    """
    lenses = check_writable(capture)
    names = {image.name: path_from(file.parent, image.file, image.name) for image in capture.images}
    common = {
        key: lenses[0][key] for family in FAMILIES for key in family if all(map(_equal_in(lenses[0], family), lenses))
    }
    content: dict[str, Any] = dict(common)
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
        own = {key: value for key, value in keys.items() if key not in common}
        mask = {} if image.mask is None else {"mask_path": path_from(file.parent, image.mask, "")}
        pose = [*image.camera_to_world.tolist(), [0.0, 0.0, 0.0, 1.0]]
        frames.append({"file_path": names[image.name], **mask, **own, "transform_matrix": pose})
    atomic_write(file, json.dumps({**content, "frames": frames}, indent=1) + "\n")


def check_writable(capture: Capture) -> list[dict[str, Any]]:
    """The keys of every image's lens; raises SceneError naming what cannot be said in the format."""
    _check(capture)
    return _keys(capture.images)


def _keys(images: list[PosedImage]) -> list[dict[str, Any]]:
    """The keys of every image's lens, with all coefficients, so that every frame has the same ones."""
    lenses = [dict.fromkeys(LISTED, 0.0) | keys_of(image.lens, f"image {shown(image.name)}") for image in images]
    if {keys["camera_model"] for keys in lenses} == {"PINHOLE", "OPENCV"}:  # the format has one for all
        lenses = [keys | {"camera_model": "OPENCV"} for keys in lenses]
    return lenses


def _equal_in(first: dict[str, Any], family: tuple[str, ...]) -> Callable[[dict[str, Any]], bool]:
    return lambda keys: all(keys[key] == first[key] for key in family)


def _check(capture: Capture) -> None:
    """Refuse what nerfstudio's files cannot say."""
    if not capture.images:
        raise SceneError(f"capture {shown(capture.name)} has no images to write")
    without = next((image for image in capture.images if image.mask is None), None)
    if any(image.mask for image in capture.images):
        if capture.white_ignores:
            raise SceneError(
                f"capture {shown(capture.name)} has masks whose white pixels are ignored, but in the format "
                "black ones are; write inverted masks"
            )
        if without is not None:
            raise SceneError(f"image {shown(without.name)} has no mask, but others have; the format needs all or none")
    for split in capture.splits:
        if split not in SPLITS:
            raise SceneError(f"split {shown(split)} cannot be written; known: {', '.join(SPLITS)}")


def path_from(folder: Path, file: Path, name: str) -> str:
    """`name` if that leads from `folder` to `file`, or else the relative path to it."""
    if name and os.path.abspath(folder / name) == os.path.abspath(file):
        return name
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:  # on another drive
        return Path(file).absolute().as_posix()
