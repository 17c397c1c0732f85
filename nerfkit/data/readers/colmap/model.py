# SPDX-License-Identifier: Apache-2.0
"""COLMAP's sparse models: folders of cameras, images and points3D files, either .bin or .txt.

Poses turn from COLMAP's world-to-camera in OpenCV axes to camera-to-world in OpenGL axes; the world stays as it is.
Models of rigs have rigs and frames files beside them. Their images file states the pose of each image nevertheless.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Points
from nerfkit.data.readers.colmap import binary as colmap_binary
from nerfkit.data.readers.colmap import text as colmap_text
from nerfkit.data.readers.colmap.records import COORDINATE_LIMIT, ImageRecord, cameras_of, images_of
from nerfkit.errors import SceneError
from nerfkit.reading import shown

FORMS: dict[str, ModuleType] = {".bin": colmap_binary, ".txt": colmap_text}
PARTS = ("cameras", "images", "points3D", "rigs", "frames")
QUATERNION_LIMITS = (1e-6, 1e6)  # of its length, which should be 1
TO_OPENGL = np.array([1.0, -1.0, -1.0])  # of a camera's axes


@dataclass(frozen=True)
class ModelImage:
    """One image with its pose."""

    name: str
    camera_id: int
    camera_to_world: np.ndarray  # [3, 4] float64, OpenGL axes


@dataclass(frozen=True)
class Model:
    """A sparse model."""

    folder: Path
    cameras: dict[int, Lens]  # by id
    images: list[ModelImage]  # sorted by name
    points: Points | None  # whose views are indices into `images`
    notes: tuple[str, ...] = ()  # what a user should know, one line each


def files_in(folder: Path, *parts: str) -> list[str]:
    """Names of a model's files that are there, .bin or .txt: of all parts, or of some."""
    names = (f"{part}{form}" for form in FORMS for part in parts or PARTS)
    return [name for name in names if os.path.lexists(folder / name)]


def count_images(folder: Path) -> int:
    """How many images a model holds, 0 if it lacks a file; raises SceneError."""
    form = _form(folder)
    return len(_images(folder, form)) if form else 0


def read_model(folder: Path) -> Model:
    """The model in `folder`; raises SceneError that names file, record and value."""
    form = _form(folder)
    if form is None:
        raise SceneError(
            f"{shown(folder)}: a COLMAP model needs cameras and images files, both .bin or both .txt; "
            f"there is {', '.join(files_in(folder)) or 'none of its files'}"
        )
    cameras = cameras_of(FORMS[form].Records(folder / f"cameras{form}", "camera"))
    images = _images(folder, form)
    if not images:
        raise SceneError(f"{shown(folder / f'images{form}')} holds no images")
    _check_images(images, cameras)
    images.sort(key=lambda image: image.name)
    poses = _camera_to_world(images)
    model_images = [ModelImage(image.name, image.camera_id, pose) for image, pose in zip(images, poses, strict=True)]
    points, notes = _points(folder, form, np.array([image.id for image in images], np.int64))
    others = [name for name in files_in(folder, "images") if name != f"images{form}"]
    form_notes = [f"images{form} is read, not {other}, which may differ" for other in others]
    return Model(folder, cameras, model_images, points, (*form_notes, *notes))


def _form(folder: Path) -> str | None:
    """The ending of the model's files; .bin if it has both, None if it is not whole."""
    there = files_in(folder)
    return next((form for form in FORMS if {f"cameras{form}", f"images{form}"} <= set(there)), None)


def _images(folder: Path, form: str) -> list[ImageRecord]:
    return images_of(FORMS[form].Records(folder / f"images{form}", "image"))


def _check_images(images: list[ImageRecord], cameras: dict[int, Lens]) -> None:
    """Refuse ids and names that are there twice, and cameras that are not."""
    ids: set[int] = set()
    names: set[str] = set()
    for image in images:
        place, name = image.place, posixpath.normpath(image.name)
        if image.id in ids:
            raise SceneError(f"{place}: image id {image.id} is there twice")
        if name in names:
            raise SceneError(f"{place}: image name '{shown(image.name)}' is there twice; rename one of the images")
        if image.camera_id not in cameras:
            known = ", ".join(map(str, sorted(cameras)[:5])) + ", ..." * (len(cameras) > 5)
            where = f"{place}: image '{shown(image.name)}'"
            raise SceneError(f"{where} has camera id {image.camera_id}; there is {known or 'none'}")
        ids.add(image.id)
        names.add(name)


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
            f"{image.place}: image '{shown(image.name)}' has no usable pose (quaternion {image.pose[:4]}, translation "
            f"{image.pose[4:]}); leave it out of the model"
        )
    w, x, y, z = (values[:, :4] / length[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    world_to_camera = np.moveaxis(np.array(rows), -1, 0).copy()  # [N, 3, 3]
    rotation = world_to_camera.transpose(0, 2, 1)
    center = -rotation @ values[:, 4:, None]  # [N, 3, 1]
    return np.concatenate([rotation * TO_OPENGL, center], axis=2)


def _points(folder: Path, form: str, image_ids: np.ndarray) -> tuple[Points | None, list[str]]:
    """Points of the model, their views as indices into `image_ids` [N], and notes."""
    file = folder / f"points3D{form}"
    if not os.path.lexists(file):
        return None, [f"the model has no points: there is no {file.name}"]
    records = FORMS[form].read_points(file)
    if not len(records.positions):
        return None, [f"the model has no points: {file.name} holds none"]
    order = np.argsort(image_ids)
    at = np.searchsorted(image_ids, records.image_ids, sorter=order).clip(max=len(order) - 1)
    views = order[at]
    known = image_ids[views] == records.image_ids  # [T]
    if known.all():
        return Points(records.positions, records.colors, records.track_lengths, views), []
    of_point = np.repeat(np.arange(len(records.positions)), records.track_lengths)  # [T]
    lengths = np.bincount(of_point[known], minlength=len(records.positions))
    unknown = records.image_ids[~known]
    note = f"{len(unknown)} of {len(known)} observations in {file.name} are left out: their images are not in the model"
    return Points(records.positions, records.colors, lengths, views[known]), [f"{note} (first: id {unknown[0]})"]
