# SPDX-License-Identifier: Apache-2.0
"""Files of images and masks in the folders of a capture."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown

IMAGE_EXTENSIONS = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".heic", ".heif", ".avif", ".exr", ".jp2", ".ppm")
)
IMAGE_FOLDERS = ("images", "images_2", "images_4", "images_8")  # the original, and its usual reductions
MASKS = "masks"
DEPTH_LIMIT = 16  # folders within one another
FILES_LIMIT = 2_000_000


def list_images(folder: Path) -> list[str]:
    """Names of the images below `folder`, / between folders, sorted; hidden files and folders are left out."""
    names: list[str] = []
    seen: set[tuple[int, int]] = set()  # folders, which links may lead back to
    pending = [""]
    while pending:
        below = pending.pop()
        for name, is_folder in _entries(folder / below, seen):
            path = posixpath.join(below, name)
            if not is_folder:
                names += [path] * (posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS)
            elif path.count("/") < DEPTH_LIMIT:
                pending.append(path)
        if len(names) > FILES_LIMIT:
            raise SceneError(f"{shown(folder)} holds more than {FILES_LIMIT} images; is it the right folder?")
    return sorted(names)


def _entries(folder: Path, seen: set[tuple[int, int]]) -> list[tuple[str, bool]]:
    """Names in `folder`, and whether each is a folder; none if the folder is in `seen`, which it is put into."""
    try:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            return []
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            return [(entry.name, _is_folder(entry)) for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as problem:
        raise SceneError(f"cannot list {shown(folder)}: {getattr(problem, 'strerror', None) or problem}") from None


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round in a circle
        return False


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder that can be looked at."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def native(name: str, where: str) -> str:
    """`name` as the system's calls take it; raises SceneError naming `where`."""
    try:
        return native_name(name)
    except ValueError:
        raise SceneError(f"{where}: '{shown(name)}' cannot be the name of a file") from None


def find_masks(folder: Path, names: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
    """Masks in `folder`/masks of the images `names`, and notes.

    The mask of a/b.jpg is a/b.jpg, a/b.jpg.png, or a/b with any extension of an image: the first that is there.
    """
    masks = folder / MASKS
    files = list_images(masks)
    if not files:
        return {}, [f"{shown(masks)} holds no images"] if is_folder(masks) else []
    there = set(files)
    by_stem = {posixpath.splitext(file)[0]: file for file in reversed(files)}
    found: dict[str, str] = {}
    for name in names:
        key = native(name, shown(masks))
        file = next((f for f in (key, f"{key}.png") if f in there), by_stem.get(posixpath.splitext(key)[0]))
        if file is not None:
            found[name] = file
    return {name: masks / file for name, file in found.items()}, _mask_notes(found, set(names), there)


def _mask_notes(found: dict[str, str], names: set[str], files: set[str]) -> list[str]:
    """What to say of masks that are missing, and of files that are nobody's mask."""
    notes = []
    if without := names - found.keys():
        notes.append(f"{len(without)} of {len(names)} images have no mask in {MASKS} ({first_of(without)})")
    if unused := files - set(found.values()):
        notes.append(f"{len(unused)} of {len(files)} files in {MASKS} belong to no image ({first_of(unused)})")
    return notes


def first_of(names: Iterable[str], count: int = 3) -> str:
    """The first names in order, for a note."""
    ordered = sorted(names)
    return ", ".join(shown(name, 60) for name in ordered[:count]) + ", ..." * (len(ordered) > count)
