# SPDX-License-Identifier: Apache-2.0
"""COLMAP reconstructions: a sparse model and the images that it was made of.

The model is in sparse/0 (of several numbered ones the one with most images), colmap/sparse/0, sparse, colmap/sparse, or
the folder itself; the images are in images, or where most of the model's names are found; masks, black where pixels
are ignored, in masks.

A model is cameras, images and points3D files, either .bin or .txt. Poses turn from COLMAP's world-to-camera in OpenCV
axes to camera-to-world in OpenGL axes; the world stays as it is. Models of rigs have rigs and frames files beside them;
their images file states the pose of each image nevertheless.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage, notes_of, rotations_of
from nerfkit.data.readers.colmap.records import BinaryRecords, ImageRecord, TextRecords, cameras_of, images_of
from nerfkit.data.readers.folders import IMAGE_FOLDERS, find_masks, is_folder, list_images, native
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT
from nerfkit.safe_io import alike, first_of, printable

FORMS = {".bin": BinaryRecords, ".txt": TextRecords}
PARTS = ("cameras", "images", "points3D", "rigs", "frames")
QUATERNION_LIMITS = (1e-6, 1e6)  # of its length, which should be 1
TO_OPENGL = np.array([1.0, -1.0, -1.0])  # of a camera's axes
PARENTS = ("sparse", "colmap/sparse", "")  # folders that models are in
PROBES = 200  # image names to try in each candidate folder
FOLDERS_LIMIT = 100  # candidate folders of images, at most


@dataclass(frozen=True)
class ModelImage:
    """One image with its pose."""

    name: str
    camera_id: int
    camera_to_world: np.ndarray  # [3, 4] float64, OpenGL axes


@dataclass(frozen=True)
class Model:
    """A sparse model."""

    cameras: dict[int, Lens]  # by id
    images: list[ModelImage]  # sorted by name
    points: Points | None  # whose views are indices into `images`
    notes: tuple[str, ...] = ()  # what a user should know, one line each


def recognises(folder: Path) -> bool:
    """Whether there is a sparse model in one of the usual places."""
    return any(_models(folder, parent) for parent in PARENTS)


def read(folder: Path) -> Capture:
    """The images of the sparse model, with or without a file; raises SceneError."""
    try:
        model_folder, notes = _find_model(folder)
        model = read_model(model_folder)
        names = [image.name for image in model.images]
        paths = [native(name, printable(model_folder)) for name in names]
        image_folder, image_notes = _find_images(folder, paths)
    except OSError as problem:
        raise SceneError(f"cannot read {printable(folder)}: {problem.strerror}") from None
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
        raise SceneError(
            f"{printable(folder)}: no COLMAP model in sparse/0, colmap/sparse/0, sparse, or the folder itself"
        )
    best, notes = first[0], []
    if len(first) > 1:
        counts = {model: len(_images(model, form)) if (form := _form(model)) else 0 for model in first}
        best = max(counts, key=counts.__getitem__)
        rest = first_of((f"{_short(model, folder)} {counts[model]}" for model in first if model != best), 5)
        what = f"{_short(best, folder)} is read, the one of {len(first)} models with most images"
        notes.append(f"{what} ({counts[best]}; {rest})")
    if others:
        listed = first_of(_short(model, folder) for models in others for model in models)
        notes.append(f"{_short(best, folder)} is read; there are also models in {listed}")
    return best, notes


def _short(path: Path, folder: Path) -> str:
    """A path below the capture's folder for a note."""
    return printable(path.relative_to(folder)) if path != folder else "the folder itself"


def _find_images(folder: Path, names: list[str]) -> tuple[Path, list[str]]:
    """The folder that `names` of images are in, and notes: if it is not images, and of images without a pose."""
    probes = names[:: -(-len(names) // PROBES)]

    def n_there(place: Path) -> int:
        return sum(alike(place, name) is not None for name in probes)

    usual = [folder / name for name in IMAGE_FOLDERS if is_folder(folder / name)]
    found = next((place for place in usual if 2 * n_there(place) >= len(probes)), None)
    if found is None:
        inner = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_folder(path))
        counts = {place: n_there(place) for place in [*usual, *inner[:FOLDERS_LIMIT], folder]}
        found = max(counts, key=counts.__getitem__)
        if not counts[found]:
            place = usual[0] if usual else folder / IMAGE_FOLDERS[0]
            missing = f"no image of the model is in {printable(folder)} (first: {first_of(names, 1)})"
            return place, [f"{missing}; put the folder from which they are named there, as {place.name}"]
    notes = [f"images are taken from {_short(found, folder)}"] if found.name != IMAGE_FOLDERS[0] else []
    known = {os.path.normpath(name) for name in names}
    tops = {_top(name) for name in known}
    known |= {os.path.relpath(alike(found, name) or found / name, found) for name in known}
    files = [file for file in list_images(found) if found != folder or _top(file) in tops]  # or only beside the images
    if without := [file for file in files if file not in known]:
        notes.append(
            f"{len(without)} of {len(files)} images in {printable(found.name)} have no pose ({first_of(without)})"
        )
    return found, notes


def _top(name: str) -> str:
    """The outermost folder of a name, if it is in one."""
    return name.partition("/")[0] if "/" in name else ""


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
    cameras, images = cameras_of(FORMS[form](folder / f"cameras{form}", "camera")), _images(folder, form)
    if not images:
        raise SceneError(f"{printable(folder / f'images{form}')} holds no images")
    _check_images(images, cameras)
    images.sort(key=lambda image: image.name)
    poses = _camera_to_world(images)
    model_images = [ModelImage(image.name, image.camera_id, pose) for image, pose in zip(images, poses, strict=True)]
    points, notes = _points(folder, form, np.array([image.id for image in images], np.int64))
    others = [name for name in files_in(folder, "images") if name != f"images{form}"]
    form_notes = [f"images{form} is read, not {other}, which may differ" for other in others]
    return Model(cameras, model_images, points, (*form_notes, *notes))


def _form(folder: Path) -> str | None:
    """The ending of the model's files; .bin if it has both, None if it is not whole."""
    there = files_in(folder)
    return next((form for form in FORMS if {f"cameras{form}", f"images{form}"} <= set(there)), None)


def _images(folder: Path, form: str) -> list[ImageRecord]:
    return images_of(FORMS[form](folder / f"images{form}", "image"))


def _check_images(images: list[ImageRecord], cameras: dict[int, Lens]) -> None:
    """Refuse ids and names that are there twice, and cameras that are not."""
    seen: set[int | str] = set()
    for image in images:
        path, where = posixpath.normpath(image.name), f"{image.location}: image '{printable(image.name)}'"
        if image.id in seen:
            raise SceneError(f"{where}: image id {image.id} is there twice")
        if path in seen:
            raise SceneError(f"{where} is there twice; rename one of the images")
        if image.camera_id not in cameras:
            known = ", ".join(map(str, sorted(cameras)[:5])) + ", ..." * (len(cameras) > 5)
            raise SceneError(f"{where} has camera id {image.camera_id}; there is {known or 'none'}")
        seen |= {image.id, path}


def _camera_to_world(images: list[ImageRecord]) -> np.ndarray:
    """Poses [N, 3, 4] in OpenGL axes, of quaternions w x y z, of any length, and translations."""
    values = np.array([image.pose for image in images], np.float64)  # [N, 7]
    low, high = QUATERNION_LIMITS
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(values[:, :4], axis=1)
    usable = (np.abs(values[:, 4:]) <= COORDINATE_LIMIT).all(axis=1) & (length >= low) & (length <= high)
    if not usable.all():
        image = images[int(usable.argmin())]
        raise SceneError(
            f"{image.location}: image '{printable(image.name)}' has no usable pose (quaternion {image.pose[:4]}, "
            f"translation {image.pose[4:]}); leave it out of the model"
        )
    rotation = rotations_of(values[:, :4]).transpose(0, 2, 1)
    center = -rotation @ values[:, 4:, None]  # [N, 3, 1]
    return np.concatenate([rotation * TO_OPENGL, center], axis=2)


def _points(folder: Path, form: str, image_ids: np.ndarray) -> tuple[Points | None, list[str]]:
    """Points of the model, their views as indices into `image_ids` [N], and notes."""
    file = folder / f"points3D{form}"
    if not os.path.lexists(file):
        return None, [f"the model has no points: there is no {file.name}"]
    points = FORMS[form](file, "point").points()
    if not len(points.positions):
        return None, [f"the model has no points: {file.name} holds none"]
    order = np.argsort(image_ids)
    views = order[np.searchsorted(image_ids, points.views, sorter=order).clip(max=len(order) - 1)]
    known = image_ids[views] == points.views  # [T]
    if known.all():
        return replace(points, views=views), []
    of_point = np.repeat(np.arange(len(points.positions)), points.track_lengths)  # [T]
    lengths = np.bincount(of_point[known], minlength=len(points.positions))
    unknown = points.views[~known]
    note = f"{len(unknown)} of {len(known)} observations in {file.name} are left out: their images are not in the model"
    return replace(points, track_lengths=lengths, views=views[known]), [f"{note} (first: id {unknown[0]})"]
