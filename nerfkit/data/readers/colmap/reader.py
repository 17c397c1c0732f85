# SPDX-License-Identifier: Apache-2.0
"""COLMAP reconstructions: a sparse model and the images that it was made of.

The model is in sparse/0 (of several numbered ones the one with most images), colmap/sparse/0, sparse, colmap/sparse, or
the folder itself; the images are in images, or where most of the model's names are found; masks, black where pixels
are ignored, in masks.
"""

from __future__ import annotations

import os
from pathlib import Path

from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.notes import notes_of
from nerfkit.data.readers.colmap.model import count_images, files_in, read_model
from nerfkit.data.readers.folders import IMAGE_FOLDERS, find_masks, first_of, is_folder, list_images, native
from nerfkit.errors import SceneError
from nerfkit.reading import in_any_case, shown

PARENTS = ("sparse", "colmap/sparse", "")  # folders that models are in
PROBES = 200  # names that are looked for to find the folder of images
FOLDERS_LIMIT = 100  # in which images are looked for


def recognises(folder: Path) -> bool:
    """Whether there is a sparse model in one of the usual places."""
    return any(_models(folder, parent) for parent in PARENTS)


def read(folder: Path) -> Capture:
    """The images of the sparse model, with or without a file; raises SceneError."""
    model_folder, notes = _find_model(folder)
    model = read_model(model_folder)
    names = [image.name for image in model.images]
    paths = [native(name, shown(model_folder)) for name in names]
    image_folder, image_notes = _find_images(folder, paths)
    masks, mask_notes = find_masks(folder, names)
    images = [
        PosedImage(
            image.name, image_folder / path, image.camera_to_world, model.cameras[image.camera_id],
            masks.get(image.name),
        )
        for image, path in zip(model.images, paths, strict=True)
    ]  # fmt: skip
    notes = notes_of(*notes, *model.notes, *image_notes, *mask_notes)
    return Capture(folder.resolve().name, "colmap", images, model.points, notes=notes)


def _models(folder: Path, parent: str) -> list[Path]:
    """Models in `parent`, numbered ones in order before the one in the folder itself."""
    place = folder / parent
    try:
        numbered = sorted((n for n in os.listdir(place) if n.isdecimal()), key=lambda n: (int(n), n)) if parent else []
    except (OSError, ValueError):  # there is no such folder
        return []
    places = [*(place / name for name in numbered), place]
    return [model for model in places if files_in(model, "cameras", "images")]


def _find_model(folder: Path) -> tuple[Path, list[str]]:
    """The folder of the model, and a note if there are others."""
    first, *others = [models for parent in PARENTS if (models := _models(folder, parent))] or [[]]
    if not first:
        raise SceneError(f"{shown(folder)}: no COLMAP model in sparse/0, colmap/sparse/0, sparse, or the folder itself")
    best, notes = first[0], []
    if len(first) > 1:
        counts = {model: count_images(model) for model in first}
        best = max(counts, key=counts.__getitem__)
        rest = [f"{_short(model, folder)} {count}" for model, count in counts.items() if model != best]
        what = f"{_short(best, folder)} is read, the one of {len(first)} models with most images ({counts[best]}; "
        notes = [f"{what}{', '.join(rest[:5])}{', ...' * (len(rest) > 5)})"]
    if others:
        listed = first_of(_short(model, folder) for models in others for model in models)
        notes.append(f"{_short(best, folder)} is read; there are also models in {listed}")
    return best, notes


def _short(path: Path, folder: Path) -> str:
    """A path below the capture's folder for a note."""
    return shown(path.relative_to(folder)) if path != folder else "the folder itself"


def _find_images(folder: Path, names: list[str]) -> tuple[Path, list[str]]:
    """The folder that `names` of images are in, and notes: if it is not images, and of images without a pose."""
    probes = names[:: -(-len(names) // PROBES)]
    usual = [folder / name for name in IMAGE_FOLDERS if is_folder(folder / name)]
    for candidate in usual:
        if 2 * _n_there(candidate, probes) >= len(probes):
            break
    else:
        candidates = [*usual, *_subfolders(folder), folder]
        counts = [_n_there(candidate, probes) for candidate in candidates]
        if not any(counts):
            place = usual[0] if usual else folder / IMAGE_FOLDERS[0]
            missing = f"no image of the model is in {shown(folder)} (first: {first_of(names, 1)})"
            return place, [f"{missing}; put the folder from which they are named there, as {place.name}"]
        candidate = candidates[counts.index(max(counts))]
    notes = [f"images are taken from {_short(candidate, folder)}"] if candidate.name != IMAGE_FOLDERS[0] else []
    return candidate, notes + _unregistered(candidate, names, within_names=candidate == folder)


def _n_there(folder: Path, names: list[str]) -> int:
    return sum(in_any_case(folder / name) is not None for name in names)


def _subfolders(folder: Path) -> list[Path]:
    """Folders in `folder`, in order of their names."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as problem:
        raise SceneError(f"cannot list {shown(folder)}: {problem.strerror}") from None
    return [folder / name for name in names if is_folder(folder / name)][:FOLDERS_LIMIT]


def _unregistered(folder: Path, names: list[str], within_names: bool) -> list[str]:
    """A note of the images in `folder` that are not among `names`, with `within_names` only in folders of those."""
    known = {os.path.normpath(name) for name in names}
    tops = {name.partition("/")[0] if "/" in name else "" for name in known}
    known |= {os.path.relpath(in_any_case(folder / name) or folder / name, folder) for name in known}
    files = list_images(folder)
    if within_names:
        files = [file for file in files if (file.partition("/")[0] if "/" in file else "") in tops]
    without = [file for file in files if file not in known]
    if not without:
        return []
    return [f"{len(without)} of {len(files)} images in {shown(folder.name)} have no pose ({first_of(without)})"]
