# SPDX-License-Identifier: Apache-2.0
"""COLMAP's sparse models: folders of cameras, images and points3D files, either .bin or .txt.

Poses turn from COLMAP's world-to-camera in OpenCV axes to camera-to-world in OpenGL axes; the world stays as it is.
Models of rigs have rigs and frames files beside them. Their images file states the pose of each image nevertheless,
and that one is taken; where it states none, the pose is made of the frame's and the rig's.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Points
from nerfkit.data.readers.colmap import binary as colmap_binary
from nerfkit.data.readers.colmap import text as colmap_text
from nerfkit.data.readers.colmap.records import (
    COORDINATE_LIMIT,
    Frames,
    ImageRecord,
    Pose,
    Rigs,
    cameras_of,
    frames_of,
    images_of,
    rigs_of,
)
from nerfkit.errors import SceneError
from nerfkit.reading import shown

FORMS: dict[str, ModuleType] = {".bin": colmap_binary, ".txt": colmap_text}
PARTS = ("cameras", "images", "points3D", "rigs", "frames")
QUATERNION_LIMITS = (1e-6, 1e6)  # of its length, which should be 1
AGREEMENT = 1e-4  # between poses of images and of frames
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
    world_to_camera, notes = _poses(images, folder, form)
    order = sorted(range(len(images)), key=lambda index: images[index].name)
    camera_to_world = _inverted(world_to_camera)
    model_images = [ModelImage(images[i].name, images[i].camera_id, camera_to_world[i]) for i in order]
    points, point_notes = _points(folder, form, np.array([images[i].id for i in order], np.int64))
    others = [name for name in files_in(folder, "images") if name != f"images{form}"]
    form_notes = [f"images{form} is read, not {other}, which may differ" for other in others]
    return Model(folder, cameras, model_images, points, (*form_notes, *notes, *point_notes))


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


def _poses(images: list[ImageRecord], folder: Path, form: str) -> tuple[np.ndarray, list[str]]:
    """World to camera [N, 3, 4] in OpenCV axes, and notes."""
    stated = _matrices(image.pose for image in images)
    usable = np.isfinite(stated).all(axis=(1, 2))  # [N]
    composed = np.full_like(stated, np.nan)
    if len(files_in(folder, "rigs", "frames")) == 2:
        rigs, frames = (FORMS[form].Records(folder / f"{part}s{form}", part) for part in ("rig", "frame"))
        try:
            composed = _composed(rigs_of(rigs), frames_of(frames), images)
        except SceneError as error:
            if not usable.all():
                raise
            return stated, [f"rigs and frames are not used, for the images have poses of their own: {error}"]
    found = usable | np.isfinite(composed).all(axis=(1, 2))
    if not found.all():
        image = images[int(found.argmin())]
        raise SceneError(
            f"{image.place}: image '{shown(image.name)}' has no usable pose (quaternion {image.pose[:4]}, translation "
            f"{image.pose[4:]}, and none in frames{form}); leave it out of the model"
        )
    notes = []
    if not usable.all():
        missing = f"images without a pose in images{form}: {(~usable).sum()}"
        notes.append(f"{missing}; theirs are made of those in frames and rigs")
    scale = 1 + np.abs(stated[:, :, 3]).max(axis=1)  # [N]
    differs = np.abs(stated - composed).max(axis=(1, 2)) > AGREEMENT * scale  # not so where one of them is NaN
    if differs.any():
        first = shown(images[int(differs.argmax())].name)
        notes.append(
            f"images with another pose in images{form} than in frames{form}: {differs.sum()} (first: {first}); that of "
            f"images{form} is taken, while COLMAP takes the other: write the model anew if that is wrong"
        )
    return np.where(usable[:, None, None], stated, composed), notes


def _composed(rigs: Rigs, frames: Frames, images: list[ImageRecord]) -> np.ndarray:
    """World to camera [N, 3, 4] by way of the rigs; NaN where they do not say it."""
    unknown = (float("nan"),) * 7
    rows = [frames.get(image.id, (-1, -1, unknown)) for image in images]
    rig_from_world = _matrices(pose for _, _, pose in rows)
    camera_from_rig = _matrices(rigs.get((rig, sensor)) or unknown for rig, sensor, _ in rows)
    composed = camera_from_rig[:, :, :3] @ rig_from_world
    composed[:, :, 3] += camera_from_rig[:, :, 3]
    is_its = np.array([sensor == image.camera_id for (_, sensor, _), image in zip(rows, images, strict=True)])
    return np.where(is_its[:, None, None], composed, np.nan)


def _matrices(poses: Iterable[Pose]) -> np.ndarray:
    """[N, 3, 4] of quaternions w x y z, of any length, and translations; NaN where there is no pose in them."""
    values = np.array(list(poses), np.float64).reshape(-1, 7)
    low, high = QUATERNION_LIMITS
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(values[:, :4], axis=1)
        usable = (np.abs(values[:, 4:]) <= COORDINATE_LIMIT).all(axis=1) & (length >= low) & (length <= high)
    values = np.where(usable[:, None], values, np.nan)
    w, x, y, z = (values[:, :4] / np.where(usable, length, 1)[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w), values[:, 4]],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w), values[:, 5]],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y), values[:, 6]],
    ]
    return np.moveaxis(np.array(rows), -1, 0).copy()


def _inverted(world_to_camera: np.ndarray) -> np.ndarray:
    """Camera to world [N, 3, 4] in OpenGL axes."""
    rotation = world_to_camera[:, :, :3].transpose(0, 2, 1)  # [N, 3, 3]
    center = -rotation @ world_to_camera[:, :, 3:]  # [N, 3, 1]
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
