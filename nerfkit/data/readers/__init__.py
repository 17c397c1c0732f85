# SPDX-License-Identifier: Apache-2.0
"""Scene formats: one module each with `recognises` and `read`, listed here."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nerfkit.data.capture import Capture, Note, notes_of
from nerfkit.data.readers import colmap, transforms
from nerfkit.data.readers import small_formats as small
from nerfkit.data.readers.folders import first_there, with_depth
from nerfkit.errors import SceneError


class Reader(NamedTuple):
    """One scene format."""

    needs: str  # files that show the format, for error messages
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Capture]


def _has(*signs: Iterable[str]) -> Callable[[Path], bool]:
    return lambda folder: all(first_there(folder, names) for names in signs)  # one of each


READERS = {
    "nerf_synthetic": Reader("transforms_train.json", _has(transforms.SPLIT_FILES), transforms.read_synthetic),
    "transforms": Reader("transforms.json", _has([transforms.MAIN]), transforms.read),
    "colmap": Reader("folders sparse/0 (with cameras, images, points3D) and images", colmap.recognises, colmap.read),
    "llff": Reader("poses_bounds.npy and images", _has([small.LLFF]), small.read_llff),
    "polycam": Reader("keyframes/cameras and keyframes/images", _has(small.CORRECTED), small.read_polycam),
    "record3d": Reader("metadata.json and rgb", _has(["metadata.json"], ["rgb"]), small.read_record3d),
    "nsvf": Reader("pose, intrinsics.txt and rgb", _has(["pose"], small.INTRINSICS), small.read_nsvf),
    "idr": Reader("cameras.npz and image", _has(small.NPZ), small.read_idr),
}


def formats_of(folder: Path) -> list[str]:
    """Names of the readers that recognise a folder, the one to take first."""
    return [name for name, reader in READERS.items() if reader.recognises(folder)]


def read(folder: Path, formats: list[str], seeks_points: bool = True) -> Capture:
    """The capture in a folder of `formats`, as the first of them whose files are whole; but as COLMAP's, whose sparse
    points say where the scene is, where these are sought and no splits or masks of a transforms.json are lost."""
    found, errors, notes = {}, [], []
    for format in formats:
        if found and not (format == "colmap" and seeks_points):
            continue
        try:
            found[format] = READERS[format].read(folder)
        except SceneError as error:
            errors.append(error)
            notes += [] if found else [Note("warning", f"not read as {format}: {error}")]
    if not found:
        raise errors[0]
    capture, model = next(iter(found.values())), found.get("colmap")
    if capture.format == "transforms" and model is not None:
        loses_masks = any(image.mask for image in capture.images) and not any(image.mask for image in model.images)
        if model.points is not None and capture.points is None and not capture.splits and not loses_masks:
            capture = model
    if others := [name for name in formats if name != capture.format]:
        notes.append(f"read as {capture.format}; --data.format {' or '.join(others)} would be possible as well")
    capture = replace(capture, notes=notes_of(*notes, *capture.notes))
    return capture if capture.format == "nerf_synthetic" else with_depth(folder, capture)  # whose images show depth
