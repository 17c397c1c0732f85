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
from nerfkit.data.capture import Capture, Points
from nerfkit.data.readers.colmap import binary as colmap_binary
from nerfkit.data.readers.colmap import records as shared
from nerfkit.data.readers.colmap import text as colmap_text
from nerfkit.data.readers.colmap.records import Frames, ImageRecords, PointRecords, Pose, Rigs
from nerfkit.errors import RunError, SceneError
from nerfkit.files import atomic_write
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


def is_model(folder: Path) -> bool:
    """Whether `folder` has a file of a sparse model."""
    return any(os.path.lexists(folder / f"{part}{form}") for part in PARTS[:2] for form in FORMS)


def count_images(folder: Path) -> int:
    """How many images a model holds, 0 if it lacks a file; raises SceneError."""
    form = _form(folder)
    return FORMS[form].count_images(folder / f"images{form}") if form else 0


def read_model(folder: Path) -> Model:
    """The model in `folder`; raises SceneError that names file, record and value."""
    form = _form(folder)
    if form is None:
        found = [f"{part}{form}" for form in FORMS for part in PARTS if os.path.lexists(folder / f"{part}{form}")]
        raise SceneError(
            f"{shown(folder)}: a COLMAP model needs cameras and images files, both .bin or both .txt; "
            f"there is {', '.join(found) or 'none of its files'}"
        )
    cameras = FORMS[form].read_cameras(folder / f"cameras{form}")
    images = FORMS[form].read_images(folder / f"images{form}")
    _check_images(images, cameras, folder / f"images{form}")
    world_to_camera, notes = _poses(images, folder, form)
    order = sorted(range(len(images.ids)), key=images.names.__getitem__)
    camera_to_world = _inverted(world_to_camera)
    model_images = [ModelImage(images.names[i], images.camera_ids[i], camera_to_world[i]) for i in order]
    points, point_notes = _points(folder, form, np.array(images.ids, np.int64)[order])
    return Model(folder, cameras, model_images, points, (*_form_notes(folder, form), *notes, *point_notes))


def _form(folder: Path) -> str | None:
    """The ending of the model's files; .bin if it has both, None if it is not whole."""
    for form in FORMS:
        if all(os.path.lexists(folder / f"{part}{form}") for part in PARTS[:2]):
            return form
    return None


def _form_notes(folder: Path, form: str) -> list[str]:
    """A note if there are files of the other ending."""
    others = [other for other in FORMS if other != form and os.path.lexists(folder / f"images{other}")]
    return [f"images{form} is read, not images{other}, which may differ" for other in others]


def _check_images(images: ImageRecords, cameras: dict[int, Lens], file: Path) -> None:
    """Refuse ids and names that are there twice, and cameras that are not."""
    if not images.ids:
        raise SceneError(f"{shown(file)} holds no images")
    by_id: dict[int, str] = {}
    by_name: dict[str, str] = {}
    rows = zip(images.ids, images.names, images.camera_ids, images.places, strict=True)
    for image_id, name, camera_id, place in rows:
        if by_id.setdefault(image_id, place) is not place:
            raise SceneError(f"{place}: image id {image_id} is there twice")
        if by_name.setdefault(posixpath.normpath(name), place) is not place:
            raise SceneError(f"{place}: image name '{shown(name)}' is there twice; rename one of the images")
        if camera_id not in cameras:
            known = ", ".join(map(str, sorted(cameras)[:5])) + ", ..." * (len(cameras) > 5)
            raise SceneError(f"{place}: image '{shown(name)}' has camera id {camera_id}; there is {known or 'none'}")


def _poses(images: ImageRecords, folder: Path, form: str) -> tuple[np.ndarray, list[str]]:
    """World to camera [N, 3, 4] in OpenCV axes, and notes."""
    stated = _matrices(images.poses)
    usable = np.isfinite(stated).all(axis=(1, 2))  # [N]
    files = [folder / f"{part}{form}" for part in ("rigs", "frames")]
    if all(map(os.path.lexists, files)):
        try:
            composed = _composed(FORMS[form].read_rigs(files[0]), FORMS[form].read_frames(files[1]), images)
        except SceneError as error:
            if not usable.all():
                raise
            return stated, [f"rigs and frames are not used, for the images have poses of their own: {error}"]
    else:
        composed = np.full_like(stated, np.nan)
    found = usable | np.isfinite(composed).all(axis=(1, 2))
    if not found.all():
        raise _no_pose(images, int(found.argmin()), folder / f"frames{form}")
    return np.where(usable[:, None, None], stated, composed), _pose_notes(stated, composed, images, form)


def _no_pose(images: ImageRecords, index: int, frames: Path) -> SceneError:
    what = f"{images.places[index]}: image '{shown(images.names[index])}' has no usable pose"
    quaternion, translation = images.poses[index][:4], images.poses[index][4:]
    why = f"quaternion {quaternion}, translation {translation}, and none in {shown(frames.name)}"
    return SceneError(f"{what} ({why}); leave it out of the model")


def _pose_notes(stated: np.ndarray, composed: np.ndarray, images: ImageRecords, form: str) -> list[str]:
    """What to say of poses [N, 3, 4] of images and of frames."""
    notes = []
    missing = ~np.isfinite(stated).all(axis=(1, 2))
    if missing.any():
        notes.append(
            f"images without a pose in images{form}: {missing.sum()}; theirs are made of those in frames and rigs"
        )
    scale = 1 + np.abs(stated[:, :, 3]).max(axis=1)  # [N]
    differs = np.abs(stated - composed).max(axis=(1, 2)) > AGREEMENT * scale  # not so where one of them is NaN
    if differs.any():
        first = shown(images.names[int(differs.argmax())])
        notes.append(
            f"images with another pose in images{form} than in frames{form}: {differs.sum()} (first: {first}); that of "
            f"images{form} is taken, while COLMAP takes the other: write the model anew if that is wrong"
        )
    return notes


def _composed(rigs: Rigs, frames: Frames, images: ImageRecords) -> np.ndarray:
    """World to camera [N, 3, 4] by way of the rigs; NaN where they do not say it."""
    unknown = (float("nan"),) * 7
    nowhere = (-1, -1, unknown)
    rows = [frames.get(image_id, nowhere) for image_id in images.ids]
    rig_from_world = _matrices([pose for _, _, pose in rows])
    camera_from_rig = _matrices([rigs.get((rig, sensor)) or unknown for rig, sensor, _ in rows])
    composed = camera_from_rig[:, :, :3] @ rig_from_world
    composed[:, :, 3] += camera_from_rig[:, :, 3]
    is_its = np.array([sensor == camera for (_, sensor, _), camera in zip(rows, images.camera_ids, strict=True)])
    return np.where(is_its[:, None, None], composed, np.nan)


def _matrices(poses: Iterable[Pose]) -> np.ndarray:
    """[N, 3, 4] of quaternions w x y z, of any length, and translations; NaN where there is no pose in them."""
    values = np.array(poses, np.float64).reshape(-1, 7)
    low, high = QUATERNION_LIMITS
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(values[:, :4], axis=1)
        usable = (np.abs(values[:, 4:]) <= shared.COORDINATE_LIMIT).all(axis=1) & (length >= low) & (length <= high)
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


def write_model(folder: Path, capture: Capture, text: bool = False) -> None:
    """Write a capture's lenses, poses and points as a model, .bin or .txt; raises RunError.

    Camera, image and point ids count from 1. Every observation has its 2D point, whose place is not known: (-1, -1).
    """
    form = ".txt" if text else ".bin"
    _check_folder(folder, form)
    cameras, images = check_writable(capture, text)
    points, observations, indices = _point_records(capture)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {shown(folder)}: {error.strerror}; choose another") from None
    lenses = {camera_id: lens for lens, camera_id in cameras.items()}
    atomic_write(folder / f"cameras{form}", FORMS[form].cameras_bytes(lenses))
    atomic_write(folder / f"images{form}", FORMS[form].images_bytes(images, observations))
    atomic_write(folder / f"points3D{form}", FORMS[form].points_bytes(points, indices))


def check_writable(capture: Capture, text: bool) -> tuple[dict[Lens, int], ImageRecords]:
    """Ids of the lenses and records of the images; raises RunError for what a model cannot hold."""
    cameras = _camera_ids(capture)
    return cameras, _image_records(capture, cameras, text)


def _check_folder(folder: Path, form: str) -> None:
    """Refuse a folder in which other files of a model would contradict the new ones."""
    for part in PARTS:
        for other in FORMS:
            file = folder / f"{part}{other}"
            if (other != form or part in ("rigs", "frames")) and os.path.lexists(file):
                raise RunError(f"{shown(file)} is there, of another model; choose another folder")


def _camera_ids(capture: Capture) -> dict[Lens, int]:
    """An id for every lens; raises RunError for one that COLMAP does not know."""
    ids: dict[Lens, int] = {}
    for image in capture.images:
        if image.lens.model not in shared.MODELS:
            raise RunError(f"image '{shown(image.name)}': COLMAP has no camera model {image.lens.model!r}")
        ids.setdefault(image.lens, len(ids) + 1)
    return ids


def _image_records(capture: Capture, cameras: dict[Lens, int], text: bool) -> ImageRecords:
    """Records of a capture's images."""
    for image in capture.images:
        try:
            shared.image_name(image.name.encode(), "COLMAP model")
        except (SceneError, UnicodeEncodeError) as error:
            raise RunError(f"image '{shown(image.name)}' cannot be written: {error}") from None
        if text and image.name.split() != [image.name]:
            raise RunError(f"image '{shown(image.name)}': a .txt model cannot hold spaces in names; write .bin")
    poses = np.array([image.camera_to_world for image in capture.images], np.float64).reshape(-1, 3, 4)
    rotation = (poses[:, :, :3] * TO_OPENGL).transpose(0, 2, 1)  # [N, 3, 3] world to camera
    translation = -rotation @ poses[:, :, 3:]
    values = np.concatenate([_quaternions(rotation), translation[:, :, 0]], axis=1)
    return ImageRecords(
        ids=list(range(1, len(poses) + 1)),
        names=[image.name for image in capture.images],
        camera_ids=[cameras[image.lens] for image in capture.images],
        poses=[tuple(row) for row in values.tolist()],
    )


def _quaternions(rotation: np.ndarray) -> np.ndarray:
    """w x y z [N, 4], w not negative, of rotations [N, 3, 3]."""
    r = np.moveaxis(rotation, 0, -1)
    # Four times the outer product of the quaternion with itself: its longest row is the most exact.
    outer = np.empty((len(rotation), 4, 4))
    signs = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    for index in range(4):
        outer[:, index, index] = 1 + signs[index] @ np.stack([r[0, 0], r[1, 1], r[2, 2]])
    for i, (j, k) in enumerate([(1, 2), (2, 0), (0, 1)]):
        outer[:, 0, i + 1] = outer[:, i + 1, 0] = r[k, j] - r[j, k]
        outer[:, j + 1, k + 1] = outer[:, k + 1, j + 1] = r[j, k] + r[k, j]
    longest = outer[np.arange(len(outer)), np.einsum("nii->ni", outer).argmax(axis=1)]  # [N, 4]
    unit = longest / np.linalg.norm(longest, axis=1, keepdims=True)
    return np.where(unit[:, :1] < 0, -unit, unit)


def _point_records(capture: Capture) -> tuple[PointRecords, list[np.ndarray], np.ndarray]:
    """Points, the ids [M] of the points that each image sees, and which of them each observation is [T]."""
    n_images = len(capture.images)
    if capture.points is None:
        return shared.NO_POINTS, [shared.NO_POINTS.image_ids] * n_images, shared.NO_POINTS.image_ids
    lengths, views = capture.points.track_lengths, capture.points.views
    order = np.argsort(views, kind="stable")
    counts = np.bincount(views, minlength=n_images)
    starts = np.cumsum(counts) - counts
    indices = np.empty_like(views)
    indices[order] = np.arange(len(views)) - np.repeat(starts, counts)
    point_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)[order]
    observations = np.split(point_ids, starts[1:])
    return PointRecords(capture.points.positions, capture.points.colors, lengths, views + 1), observations, indices
