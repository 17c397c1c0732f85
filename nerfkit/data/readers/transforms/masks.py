# SPDX-License-Identifier: Apache-2.0
"""Masks of `transforms.json` captures: pixels to ignore, black in some files and white in others.

Named by `mask_path` (black is ignored), as `dynamic_mask_NAME.png` beside the image NAME (white is ignored), or with
the image's name in a folder `masks` beside the images' folder (black is ignored).
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nerfkit.data.readers import folders
from nerfkit.errors import SceneError
from nerfkit.reading import shown

DYNAMIC = "dynamic_mask_"
Frame = tuple[dict[str, Any], str, Path]  # its values, where it is for messages, and its image


@dataclass(frozen=True)
class Masks:
    """The mask of every frame, if it has one."""

    files: list[Path | None]
    white_ignores: bool = False
    notes: tuple[str, ...] = ()


def path_of(folder: Path, name: Any, key: str, where: str) -> Path:
    """The path of the file `name`, with either slash between folders, as the value of a key."""
    if not isinstance(name, str) or not name:
        raise SceneError(f"{where}: '{key}' must be the name of a file, got {reprlib.repr(name)}")
    return Path(os.path.join(folder, folders.native(name.replace("\\", "/"), f"{where}: '{key}'")))


def find_masks(frames: list[Frame], folder: Path) -> Masks:
    """Masks of the frames of files in `folder`; of one kind, or SceneError."""
    dynamic = _beside(frames)
    names = [own.get("mask_path") for own, _, _ in frames]
    if any(name is not None for name in names):
        if None in names:
            where = frames[names.index(None)][1]
            raise SceneError(f"{where}: key 'mask_path' is missing, but other frames have one; give it to all or none")
        named = [path_of(folder, name, "mask_path", where) for name, (_, where, _) in zip(names, frames, strict=True)]
        found = [file if os.path.isfile(file) else None for file in named]
        if first := next(filter(None, dynamic), None):
            raise SceneError(
                f"{frames[0][1]}: 'mask_path' (black is ignored) and {shown(first)} (white is ignored) are masks of "
                "two kinds; leave one of them"
            )
        if not any(found):
            raise SceneError(
                f"{frames[0][1]}: 'mask_path' names {shown(named[0])}, but neither that nor any other frame's mask is "
                "there; put the masks where the file names them, or remove the key to use all pixels"
            )
        return _masks(found, "of mask_path, black is ignored", named)
    if any(dynamic):
        return _masks(dynamic, f"named {DYNAMIC}NAME.png, white is ignored", white_ignores=True)
    inner = [_within(path, folder) for _, _, path in frames]
    in_folder, notes = folders.find_masks(folder, inner)
    if not in_folder:
        return Masks([None] * len(frames))
    masks = _masks([in_folder.get(name) for name in inner], f"of the folder {folders.MASKS}, black is ignored")
    return replace(masks, notes=(*masks.notes, *notes))


def _masks(found: list[Path | None], kind: str, wanted: Sequence[Path] = (), white_ignores: bool = False) -> Masks:
    """The masks that are there, and a note on how many are, and on the first of those `wanted` that is not."""
    note = f"{sum(file is not None for file in found)} of {len(found)} images have masks {kind}"
    missing = [file for file, there in zip(wanted, found, strict=False) if not there]
    return Masks(found, white_ignores, (note + (f"; missing, first: {shown(missing[0])}" if missing else ""),))


def _beside(frames: list[Frame]) -> list[Path | None]:
    """Dynamic masks that lie beside the images."""
    files = [path.with_name(f"{DYNAMIC}{path.stem}.png") for _, _, path in frames]
    return [file if os.path.exists(file) else None for file in files]


def _within(path: Path, folder: Path) -> str:
    """The name of an image within the folder of images: 0.png of images/0.png."""
    try:
        parts = path.relative_to(folder).parts
    except ValueError:  # elsewhere
        return path.name
    return "/".join(parts[1:] or parts)
