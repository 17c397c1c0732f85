# SPDX-License-Identifier: Apache-2.0
"""Scene formats: one module each with `recognises` and `read`, listed here.

A reader recognises its format from the files in a folder, and reads poses, lenses and the names of images into a
Capture. It opens no image.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nerfkit.data.capture import Capture
from nerfkit.data.readers import colmap, llff, transforms_capture
from nerfkit.errors import SceneError, UserError


class Reader(NamedTuple):
    """One scene format."""

    needs: str  # files that show the format, for error messages
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Capture]


def _is_synthetic(folder: Path) -> bool:
    return any(os.path.lexists(folder / f"transforms_{split}.json") for split in transforms_capture.SPLITS)


READERS = {
    "nerf_synthetic": Reader("transforms_train.json", _is_synthetic, transforms_capture.read_synthetic),
    "transforms": Reader("transforms.json", transforms_capture.recognises, transforms_capture.read),
    "colmap": Reader("sparse/0 (cameras, images, points3D) and images", colmap.recognises, colmap.read),
    "llff": Reader("poses_bounds.npy and images", llff.recognises, llff.read),
}


def _noting(reader: Reader, recognised: list[str]) -> Reader:
    """The reader, which says as what else its folder could be read."""
    if len(recognised) == 1:
        return reader
    note = f"read as {recognised[0]}; --data.format {' or '.join(recognised[1:])} would be possible, too"

    def read(folder: Path) -> Capture:
        capture = reader.read(folder)
        return replace(capture, notes=(note, *capture.notes))

    return reader._replace(read=read)


def _has_points(reader: Reader, folder: Path) -> bool:
    """Whether a reader finds sparse points, which say where the scene is."""
    try:
        points = reader.read(folder).points
    except UserError:
        return False
    return points is not None and len(points.positions) > 0


def formats_of(folder: Path, seeks_points: bool = True) -> list[str]:
    """Names of the readers that recognise a folder, the one to take first; COLMAP's where it alone finds sparse points,
    if they are sought."""
    names = [name for name, reader in READERS.items() if reader.recognises(folder)]
    if names[:1] == ["transforms"] and not os.path.lexists(folder / transforms_capture.MAIN):
        names = [*names[1:], "transforms"]  # other JSON files only where there is nothing better
    if names[:1] == ["transforms"] and "colmap" in names and seeks_points:
        if _has_points(READERS["colmap"], folder) and not _has_points(READERS["transforms"], folder):
            names.sort(key=lambda name: name != "colmap")
    return names


def find_reader(folder: Path, format: str, seeks_points: bool = True) -> Reader:
    """The reader of `format`, or with "auto" the first of `formats_of`."""
    if format != "auto":
        if format not in READERS:
            raise SceneError(f"data.format: unknown format {format!r}; known: auto, {', '.join(READERS)}")
        return READERS[format]
    if names := formats_of(folder, seeks_points):
        return _noting(READERS[names[0]], names)
    expected = "; ".join(f"{name} needs {reader.needs}" for name, reader in READERS.items())
    raise SceneError(f"data.path: no known scene format in {folder} ({expected})")
