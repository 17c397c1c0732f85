# SPDX-License-Identifier: Apache-2.0
"""Masks of `transforms.json` captures: pixels to ignore, black in some files and white in others.

Named by `mask_path` (black is ignored), as `dynamic_mask_NAME.png` beside the image NAME (white is ignored), or with
the image's name in a folder `masks` beside the images' folder (black is ignored).
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown

DYNAMIC = "dynamic_mask_"
FOLDER = "masks"
RESIZED = tuple(f"{FOLDER}_{factor}" for factor in (2, 4, 8))  # nerfstudio's reductions, beside images_2 and the like
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
Frame = tuple[dict[str, Any], str, Path]  # its values, where it is for messages, and its image


@dataclass(frozen=True)
class Masks:
    """The mask of every frame, if it has one."""

    files: list[Path | None]
    white_ignores: bool = False
    notes: tuple[str, ...] = ()


def find_masks(frames: list[Frame], folder: Path) -> Masks:
    """Masks of the frames of files in `folder`; of one kind, or SceneError."""
    names = _names_beside(frames)
    named = _named(frames, folder)
    dynamic = _dynamic(frames, names)
    if named and dynamic:
        first = next(file for file in dynamic if file)
        raise SceneError(
            f"{frames[0][1]}: 'mask_path' (black is ignored) and {shown(first)} (white is ignored) are masks of two "
            "kinds; leave one of them"
        )
    if named:
        found = [_on_disk(file) for file in named]
        if not any(found):
            raise SceneError(
                f"{frames[0][1]}: 'mask_path' names {shown(named[0])}, but neither that nor any other frame's mask is "
                "there; put the masks where the file names them, or remove the key to use all pixels"
            )
        return _masks(named, found, "of mask_path, black is ignored")
    if dynamic:
        return _masks(dynamic, dynamic, f"named {DYNAMIC}NAME.png, white is ignored", white_ignores=True)
    in_folder = _in_folder(frames, folder)
    if in_folder:
        return _masks(in_folder, in_folder, f"of the folder {FOLDER}, black is ignored")
    return Masks([None] * len(frames))


def _masks(wanted: Sequence[Path | None], found: list[Path | None], kind: str, white_ignores: bool = False) -> Masks:
    """The masks that are there, and a note on how many are."""
    note = f"{sum(file is not None for file in found)} of {len(found)} images have masks {kind}"
    missing = next((file for file, there in zip(wanted, found, strict=True) if file is not None and not there), None)
    return Masks(found, white_ignores, (note + (f"; missing, first: {shown(missing)}" if missing else ""),))


def _on_disk(file: Path) -> Path | None:
    """`file`, or the same mask in a folder of resized ones: masks_2 instead of masks."""
    if os.path.isfile(file):
        return file
    parts = file.parts
    for depth in reversed(range(len(parts) - 1)):
        for folder in RESIZED if parts[depth] == FOLDER else ():
            other = Path(*parts[:depth], folder, *parts[depth + 1 :])
            if os.path.isfile(other):
                return other
    return None


def _names_beside(frames: list[Frame]) -> dict[Path, set[str]]:
    """What is in the images' folders and has a meaning beside an image, by folder; refuses what is not supported."""
    names = {folder: _special_names(folder) for folder in {path.parent for _, _, path in frames}}
    is_special = any(not name.startswith(DYNAMIC) for inside in names.values() for name in inside)
    for _, where, path in frames if is_special else []:
        for name in (f"rays_{path.stem}.dat", f"{path.stem}.alpha{path.suffix}"):
            if name in names[path.parent]:
                raise SceneError(
                    f"{where}: {shown(path.parent / name)} is not supported; move it away, and give images of a camera "
                    "with their alpha"
                )
    return names


def _special_names(folder: Path) -> set[str]:
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # ValueError: what the file system cannot spell
        return set()
    return {name for name in names if name.startswith((DYNAMIC, "rays_")) or ".alpha." in name}


def _named(frames: list[Frame], folder: Path) -> list[Path]:
    """Files of `mask_path`, of all frames or none."""
    names = [own.get("mask_path") for own, _, _ in frames]
    if all(name is None for name in names):
        return []
    files: list[Path] = []
    for name, (_, where, _) in zip(names, frames, strict=True):
        if name is None:
            raise SceneError(f"{where}: key 'mask_path' is missing, but other frames have one; give it to all or none")
        if not isinstance(name, str) or not name or "\0" in name:
            raise SceneError(f"{where}: 'mask_path' must be the name of an image, got {reprlib.repr(name)}")
        try:
            files.append(folder / native_name(name.replace("\\", "/")))
        except ValueError:
            raise SceneError(f"{where}: 'mask_path' {shown(name)} cannot be the name of a file") from None
    return files


def _dynamic(frames: list[Frame], names: dict[Path, set[str]]) -> list[Path | None]:
    """Files that lie beside the images, if any does."""
    if not any(name.startswith(DYNAMIC) for inside in names.values() for name in inside):
        return []
    wanted = [path.with_name(f"{DYNAMIC}{path.stem}.png") for _, _, path in frames]
    found = [file if file.name in names[file.parent] else None for file in wanted]
    return found if any(found) else []


def _in_folder(frames: list[Frame], folder: Path) -> list[Path | None]:
    """Files in the folder beside the images' own that have the images' names, but for extensions, if any has."""
    if not os.path.isdir(folder / FOLDER):
        return []
    found: list[Path | None] = []
    for _, where, path in frames:
        stem = _place(path, folder)
        beside = [stem + extension for extension in EXTENSIONS] + [f"{stem}{path.suffix}.png"]
        files = [Path(file) for file in beside if os.path.isfile(file)]
        if len(files) > 1:
            raise SceneError(f"{where}: {shown(files[0])} and {shown(files[1].name)} are both masks of one image")
        found.append(files[0] if files else None)
    return found if any(found) else []


def _place(path: Path, folder: Path) -> str:
    """Where the mask of the image `path` would be, without extension: images/left/0.png has masks/left/0."""
    try:
        inner = path.relative_to(folder).parts
    except ValueError:  # elsewhere
        inner = (path.name,)
    return os.path.join(folder, FOLDER, *inner[1:-1], path.stem)
