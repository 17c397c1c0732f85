# SPDX-License-Identifier: Apache-2.0
"""COLMAP reconstructions: a sparse model and the images that it was made of.

The model is in sparse/0 (of several numbered ones the one with most images), colmap/sparse/0, sparse, colmap/sparse, or
the folder itself; the images are in images, or where most of the model's names are found; masks, black where pixels
are ignored, in masks. Poses turn from world-to-camera in OpenCV axes to camera-to-world in OpenGL axes.
"""

import os
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nerfkit.data.cameras.lens import Lens, lens_at
from nerfkit.data.capture import (
    Capture,
    Note,
    Points,
    PosedImage,
    check_positions,
    notes_of,
    rotations_of,
    seen_by_some,
)
from nerfkit.data.readers.colmap.records import FORMS, ImageRecord
from nerfkit.data.readers.folders import IMAGE_FOLDERS, find_masks, list_images
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT
from nerfkit.safe_io import alike, first_of, native_name, printable

PARTS = ("cameras", "images", "points3D", "rigs", "frames")
QUATERNION_LIMITS = (1e-6, 1e6)  # of its length, which should be 1
TO_OPENGL = np.array([1.0, -1.0, -1.0])  # of a camera's axes
PARENTS = ("sparse", "colmap/sparse", "")  # folders that models are in
PROBES = 200  # image names to try in each candidate folder
FOLDERS_LIMIT = 100  # candidate folders of images, at most
MANY_WITHOUT = 0.1  # of the images: that so many have no pose is a warning


class Model(NamedTuple):
    images: list[PosedImage]  # by name; their files are named from the images' folder
    points: Points | None  # whose views are indices into `images`
    notes: list[str | Note]


def recognises(folder: Path) -> bool:
    """Whether there is a sparse model in one of the usual places."""
    return any(_models(folder, parent) for parent in PARENTS)


def read(folder: Path) -> Capture:
    """The images of the sparse model, with or without a file; raises SceneError."""
    try:
        model_folder, notes = _find_model(folder)
        images, points, model_notes = read_model(model_folder)
        place, image_notes = _find_images(folder, [str(image.file) for image in images])
    except OSError as problem:
        raise SceneError(f"cannot read {printable(folder)}: {problem.strerror}") from None
    masks, mask_notes = find_masks(folder, [image.name for image in images])
    images = [replace(image, file=place / image.file, mask=masks.get(image.name)) for image in images]
    notes = notes_of(*notes, *model_notes, *image_notes, *mask_notes)
    return Capture(folder.resolve().name, "colmap", images, points, notes=notes)


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
    first, *others = [models for parent in PARENTS if (models := _models(folder, parent))] or [[]]
    if not first:
        raise SceneError(f"{printable(folder)}: no COLMAP model in sparse/0, colmap/sparse/0, sparse, or itself")
    best, notes = first[0], []
    if len(first) > 1:
        counts = {model: _count(model) for model in first}
        best = max(counts, key=counts.__getitem__)
        rest = first_of((f"{_short(model, folder)} {counts[model]}" for model in first if model != best), 5)
        what = f"{_short(best, folder)} is read, the one of {len(first)} models with most images"
        notes.append(f"{what} ({counts[best]}; {rest})")
    if others:
        listed = first_of(_short(model, folder) for models in others for model in models)
        notes.append(f"{_short(best, folder)} is read; there are also models in {listed}")
    return best, notes


def _count(model: Path) -> int:
    """How many images a model has, 0 if it cannot be read."""
    try:
        return len(_images(model, form)) if (form := _form(model)) else 0
    except SceneError:
        return 0


def _short(path: Path, folder: Path) -> str:
    return printable(path.relative_to(folder)) if path != folder else "the folder itself"


def _find_images(folder: Path, names: list[str]) -> tuple[Path, list[str | Note]]:
    """The folder that `names` of images are in, and notes: if it is not images, and of images without a pose."""
    probes = names[:: -(-len(names) // PROBES)]

    def n_there(place: Path) -> int:
        return sum(alike(place, name) is not None for name in probes)

    usual = [folder / name for name in IMAGE_FOLDERS if os.path.isdir(folder / name)]
    found = next((place for place in usual if 2 * n_there(place) >= len(probes)), None)
    if found is None:
        inner = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and os.path.isdir(path))
        counts = {place: n_there(place) for place in [*usual, *inner[:FOLDERS_LIMIT], folder]}
        found = max(counts, key=counts.__getitem__)
        if not counts[found]:
            place = usual[0] if usual else folder / IMAGE_FOLDERS[0]
            missing = f"no image of the model is in {printable(folder)} (first: {first_of(names, 1)})"
            return place, [f"{missing}; put the folder from which they are named there, as {place.name}"]
    notes: list[str | Note] = [f"images are taken from {_short(found, folder)}"] * (found.name != IMAGE_FOLDERS[0])
    known = {os.path.normpath(name) for name in names}
    tops = {os.path.dirname(name).partition("/")[0] for name in known}
    known |= {os.path.relpath(alike(found, name) or found / name, found) for name in known}
    files = list_images(found)
    if found == folder:  # only those beside the model's
        files = [file for file in files if os.path.dirname(file).partition("/")[0] in tops]
    if without := [file for file in files if file not in known]:
        what = f"{len(without)} of {len(files)} images in {printable(found.name)} have no pose ({first_of(without)})"
        is_many = len(without) > MANY_WITHOUT * len(files)
        notes.append(Note("warning", f"{what}; what only they show will be missing") if is_many else what)
    return found, notes


def files_in(folder: Path, *parts: str) -> list[str]:
    """Names of a model's files that are there, .bin or .txt: of all parts, or of some."""
    names = (f"{part}{form}" for form in FORMS for part in parts or PARTS)
    return [name for name in names if os.path.lexists(folder / name)]


def read_model(folder: Path) -> Model:
    """The model in `folder`; raises SceneError that names file, record and value."""
    form = _form(folder)
    if form is None:
        raise SceneError(
            f"{printable(folder)}: a COLMAP model needs cameras and images files, both .bin or both .txt; "
            f"there is {', '.join(files_in(folder)) or 'none of its files'}"
        )
    lenses = _lenses(folder, form)
    records = _images(folder, form)
    if not records:
        raise SceneError(f"{printable(folder / f'images{form}')} holds no images")
    seen: set[int | str] = set()
    for record in records:
        path, where = posixpath.normpath(record.name), f"{record.where}: image '{printable(record.name)}'"
        if record.id in seen or path in seen:
            raise SceneError(f"{where}: its id {record.id} or its name is there twice; leave out one of the images")
        if record.camera_id not in lenses:
            known = ", ".join(map(str, sorted(lenses)[:5])) or "none"
            raise SceneError(f"{where} has camera id {record.camera_id}; known: {known}")
        seen |= {record.id, path}
    records.sort(key=lambda record: record.name)
    images = [
        PosedImage(record.name, Path(native_name(record.name)), pose, lenses[record.camera_id])
        for record, pose in zip(records, _camera_to_world(records), strict=True)
    ]
    points, notes = _points(folder, form, np.array([record.id for record in records], np.int64))
    others = [name for name in files_in(folder, "images") if name != f"images{form}"]
    notes = [*(f"images{form} is read, not {other}, which may differ" for other in others), *notes]
    return Model(images, points, notes)


def _form(folder: Path) -> str | None:
    """The ending of the model's files; .bin if it has both, None if it is not whole."""
    there = files_in(folder)
    return next((form for form in FORMS if {f"cameras{form}", f"images{form}"} <= set(there)), None)


def _images(folder: Path, form: str) -> list[ImageRecord]:
    return list(FORMS[form].images(folder / f"images{form}"))


def _lenses(folder: Path, form: str) -> dict[int, Lens]:
    lenses: dict[int, Lens] = {}
    for where, camera_id, lens in FORMS[form].cameras(folder / f"cameras{form}"):
        if camera_id in lenses:
            raise SceneError(f"{where}: camera id {camera_id} is there twice")
        lenses[camera_id] = lens_at(where, *lens)
    return lenses


def _camera_to_world(records: list[ImageRecord]) -> np.ndarray:
    """Poses [N, 3, 4] in OpenGL axes, of quaternions w x y z, of any length, and translations."""
    values = np.array([record.pose for record in records], np.float64)  # [N, 7]
    low, high = QUATERNION_LIMITS
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(values[:, :4], axis=1)
    usable = (np.abs(values[:, 4:]) <= COORDINATE_LIMIT).all(axis=1) & (length >= low) & (length <= high)
    if not usable.all():
        record = records[int(usable.argmin())]
        raise SceneError(
            f"{record.where}: image '{printable(record.name)}' has no usable pose (quaternion {record.pose[:4]}, "
            f"translation {record.pose[4:]}); remove it from COLMAP's model"
        )
    rotation = rotations_of(values[:, :4]).transpose(0, 2, 1)
    center = -rotation @ values[:, 4:, None]  # [N, 3, 1]
    return np.concatenate([rotation * TO_OPENGL, center], axis=2)


def _points(folder: Path, form: str, image_ids: np.ndarray) -> tuple[Points | None, list[str | Note]]:
    file = folder / f"points3D{form}"
    points = FORMS[form].points(file) if os.path.lexists(file) else None
    if points is None or not len(points.positions):
        what = f"the model has no points: there is no {file.name}, or it is empty"
        return None, [Note("warning", f"{what}; so near and far are guessed from the cameras")]
    check_positions(points.positions, printable(file))
    order = np.argsort(image_ids)
    views = order[np.searchsorted(image_ids, points.views, sorter=order).clip(max=len(order) - 1)]
    known = image_ids[views] == points.views  # [T]
    if known.all():
        return replace(points, views=views), []
    unknown = points.views[~known]
    note = f"{len(unknown)} of {len(known)} observations in {file.name} are left out: their images are not in the model"
    return seen_by_some(points, views, known), [f"{note} (first: id {unknown[0]})"]
