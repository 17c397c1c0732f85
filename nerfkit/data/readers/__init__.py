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
    """The reader, which says as what else its folder could be read, and whether that knows more."""
    if len(recognised) == 1:
        return reader

    def read(folder: Path) -> Capture:
        capture = reader.read(folder)
        note = f"read as {recognised[0]}; --data.format {' or '.join(recognised[1:])} would be possible, too"
        if recognised[0] == "transforms" and capture.points is None and "colmap" in recognised and _has_points(folder):
            note = (
                "read as transforms, which has no sparse points; the COLMAP model beside it has some: "
                "--data.format colmap knows better where the scene is"
            )
        return replace(capture, notes=(note, *capture.notes))

    return reader._replace(read=read)


def _has_points(folder: Path) -> bool:
    """Whether the folder's COLMAP model can be read and has points."""
    try:
        points = colmap.read(folder).points
    except UserError:
        return False
    return points is not None and len(points.positions) > 0


def find_reader(folder: Path, format: str) -> Reader:
    """The reader of `format`, or with "auto" the first that recognises `folder`."""
    if format != "auto":
        if format not in READERS:
            raise SceneError(f"data.format: unknown format {format!r}; known: auto, {', '.join(READERS)}")
        return READERS[format]
    recognised = [name for name, reader in READERS.items() if reader.recognises(folder)]
    if recognised == ["transforms", *recognised[1:]] and not os.path.lexists(folder / transforms_capture.MAIN):
        recognised = [*recognised[1:], "transforms"]  # other JSON files only where there is nothing better
    if recognised:
        return _noting(READERS[recognised[0]], recognised)
    expected = "; ".join(f"{name} needs {reader.needs}" for name, reader in READERS.items())
    raise SceneError(f"data.path: no known scene format in {folder} ({expected})")
