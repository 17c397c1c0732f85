# SPDX-License-Identifier: Apache-2.0
"""What the files of a COLMAP model hold, whether binary or text, before the records are put together."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.errors import SceneError
from nerfkit.reading import shown

MODELS = {  # name, number of parameters, how many of them are focal lengths; an index is COLMAP's number of the model
    "SIMPLE_PINHOLE": (3, 1),
    "PINHOLE": (4, 2),
    "SIMPLE_RADIAL": (4, 1),
    "RADIAL": (5, 1),
    "OPENCV": (8, 2),
    "OPENCV_FISHEYE": (8, 2),
    "FULL_OPENCV": (12, 2),
    "FOV": (5, 2),
    "SIMPLE_RADIAL_FISHEYE": (4, 1),
    "RADIAL_FISHEYE": (5, 1),
    "THIN_PRISM_FISHEYE": (12, 2),
    "RAD_TAN_THIN_PRISM_FISHEYE": (16, 2),
    "SIMPLE_DIVISION": (4, 1),
    "DIVISION": (5, 2),
    "SIMPLE_FISHEYE": (3, 1),
    "FISHEYE": (4, 2),
    "EUCM": (6, 2),
    "EQUIRECTANGULAR": (2, 0),
}
MODEL_NAMES = tuple(MODELS)
NAME_LIMIT = 4096  # bytes
SIDE_LIMIT = 100_000  # pixels
FOCAL_LIMITS = (1e-3, 1e7)  # pixels
PARAMETER_LIMIT = 1e9
CENTER_MARGIN = 10  # sides of the image that the principal point may lie outside of it: images may be cropped
COORDINATE_LIMIT = 1e12  # of points and cameras, in the model's units, which may be metres from the Earth's centre
FILE_LIMIT = 2**40  # bytes; of images, most of which is skipped
POINTS_LIMIT = 2**34  # bytes of points, which are all kept
UNKNOWN_PIXEL = -1.0  # x and y of 2D points of which no more is known than what they see

Pose = tuple[float, ...]  # quaternion w x y z, translation
Rigs = dict[tuple[int, int], Pose | None]  # rig to camera, by rig and camera; None where the file states none
Frames = dict[int, tuple[int, int, Pose]]  # rig, camera, and world to rig, by image
IDENTITY: Pose = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # of a rig's first camera


@dataclass
class ImageRecords:
    """The records of an images file, in its order."""

    ids: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    camera_ids: list[int] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)  # world to camera
    places: list[str] = field(default_factory=list)  # file, record and byte or line, for messages

    def add(self, image_id: int, pose: Pose, camera_id: int, name: bytes, place: str) -> None:
        """Append a record."""
        self.names.append(image_name(name, place))
        self.ids.append(image_id)
        self.poses.append(pose)
        self.camera_ids.append(camera_id)
        self.places.append(place)

    def with_observations(self, observations: list[np.ndarray]) -> Iterable[tuple[int, Pose, int, str, np.ndarray]]:
        """Id, pose, camera id and name of each image, and the ids of the 3D points [M] that it sees."""
        return zip(self.ids, self.poses, self.camera_ids, self.names, observations, strict=True)


class PointRecords(NamedTuple):
    """The records of a points file, in its order."""

    positions: np.ndarray  # [P, 3] float64
    colors: np.ndarray  # [P, 3] uint8
    track_lengths: np.ndarray  # [P] int64
    image_ids: np.ndarray  # [T] int64, of every observation, ordered by point


NO_POINTS = PointRecords(np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))


def joined(blocks: Iterable[PointRecords]) -> PointRecords:
    """Blocks of points, one after another."""
    return PointRecords(*map(np.concatenate, zip(NO_POINTS, *blocks, strict=True)))


class Values(Protocol):
    """The values of a record of a rigs or frames file, one after another."""

    def whole(self, what: str, form: str = "I") -> int: ...  # `form` is struct's, of a binary file
    def count(self, what: str, size: int) -> int: ...  # of things of at least `size` bytes in a binary file
    def is_camera(self) -> bool: ...  # and no other kind of sensor
    def pose(self) -> Pose: ...


def rigs_of(records: Iterable[Values]) -> Rigs:
    """Cameras of rigs; other sensors are left out."""
    rigs: Rigs = {}
    for record in records:
        rig_id, n_sensors = record.whole("the rig id"), record.count("sensors", 8)
        for index in range(n_sensors):
            is_camera, sensor_id = record.is_camera(), record.whole("the sensor id")
            has_pose = index > 0 and record.whole("whether there is a pose", "B")
            pose = IDENTITY if index == 0 else record.pose() if has_pose else None
            if is_camera:
                rigs[rig_id, sensor_id] = pose
    return rigs


def frames_of(records: Iterable[Values]) -> Frames:
    """Poses of rigs by the images that were taken there."""
    frames: Frames = {}
    for record in records:
        record.whole("the frame id")
        rig_id, pose, n_images = record.whole("the rig id"), record.pose(), record.count("images", 16)
        for _ in range(n_images):
            is_camera, sensor_id = record.is_camera(), record.whole("the sensor id")
            image_id = record.whole("the image id", "Q")
            if is_camera:
                frames[image_id] = (rig_id, sensor_id, pose)
    return frames


def add_camera(
    cameras: dict[int, Lens], camera_id: int, model: str, size: tuple[int, int], params: tuple[float, ...], where: str
) -> None:
    """Add the lens of a camera record; raises SceneError naming `where`."""
    if camera_id in cameras:
        raise SceneError(f"{where}: camera id {camera_id} is there twice")
    cameras[camera_id] = _lens(model, size, params, where)


def _lens(model: str, size: tuple[int, int], params: tuple[float, ...], where: str) -> Lens:
    if model not in MODELS:
        raise SceneError(f"{where}: camera model '{shown(model)}' is unknown; known: {', '.join(MODELS)}")
    n_params, n_focal = MODELS[model]
    if len(params) != n_params:
        raise SceneError(f"{where}: {model} has {n_params} parameters, got {len(params)}")
    for side, value in zip(("width", "height"), size, strict=True):
        if not 1 <= value <= SIDE_LIMIT:
            raise SceneError(f"{where}: {side} must be from 1 to {SIDE_LIMIT} pixels, got {shown(str(value), 40)}")
    for value in params:
        if not abs(value) <= PARAMETER_LIMIT:  # NaN is not
            raise SceneError(f"{where}: parameters of {model} must be finite and at most {PARAMETER_LIMIT:g}: {params}")
    low, high = FOCAL_LIMITS
    for focal in params[:n_focal]:
        if not low <= focal <= high:
            raise SceneError(f"{where}: the focal length must lie between {low:g} and {high:g} pixels, got {focal:g}")
    if n_focal:
        _check_center(params[n_focal : n_focal + 2], size, where)
    try:
        return Lens(model, params, *size)
    except SceneError as error:  # a model that nerfkit has no equations of
        raise SceneError(f"{where}: {error}") from None


def _check_center(center: tuple[float, ...], size: tuple[int, int], where: str) -> None:
    for value, side in zip(center, size, strict=True):
        if not -CENTER_MARGIN * side <= value <= (1 + CENTER_MARGIN) * side:
            place = f"({center[0]:g}, {center[1]:g})"
            raise SceneError(f"{where}: the principal point {place} lies far outside of {size[0]}x{size[1]} images")


def image_name(name: bytes, where: str) -> str:
    """The name of an image, a path below its folder; raises SceneError naming `where`."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise SceneError(f"{where}: image name '{shown(repr(name)[2:-1])}' is not UTF-8; rename the image") from None
    if not text.strip() or "\0" in text or len(name) > NAME_LIMIT or posixpath.basename(text) in ("", "."):
        raise SceneError(f"{where}: '{shown(text)}' cannot be the name of an image")
    if posixpath.isabs(text) or ".." in text.split("/"):
        raise SceneError(f"{where}: image name '{shown(text)}' leads out of the folder of images; use names within it")
    return text


def check_positions(positions: np.ndarray, where: Callable[[int], str]) -> None:
    """Raise SceneError for the first of the points [P, 3] that is nowhere; `where` names a record by its index."""
    bad = ~(np.abs(positions) <= COORDINATE_LIMIT).all(axis=1)  # [P]; NaN is not
    if bad.any():
        index = int(bad.argmax())
        limit = f"finite and at most {COORDINATE_LIMIT:g}"
        raise SceneError(f"{where(index)}: the position must be {limit}, got {positions[index].tolist()}")
