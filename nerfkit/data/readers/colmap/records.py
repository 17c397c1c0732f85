# SPDX-License-Identifier: Apache-2.0
"""What the records of a COLMAP model are, field by field, in binary files as in text.

`Record` is how either form is read; points, which are many, each form reads on its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np

from nerfkit.data.cameras.lens import MODELS, Lens
from nerfkit.errors import SceneError
from nerfkit.reading import shown

NAME_LIMIT = 4096  # bytes
COORDINATE_LIMIT = 1e12  # of points and cameras, in the model's units, which may be metres from the Earth's centre
FILE_LIMIT = 2**40  # bytes; of images, most of which is skipped
POINTS_LIMIT = 2**34  # bytes of points, which are all kept

Pose = tuple[float, ...]  # quaternion w x y z, translation


class Record(Protocol):
    """The values of a record, one after another; one that is missing or none is a SceneError."""

    place: str  # file, record and byte or line, for messages

    def whole(self, what: str, form: str = "I") -> int: ...  # `form` is struct's, of a binary file
    def numbers(self, count: int, what: str) -> tuple[float, ...]: ...  # NaN among them
    def model(self) -> str: ...  # of a camera
    def name(self) -> bytes: ...
    def skip_points(self) -> None: ...  # 2D points of an image


class ImageRecord(NamedTuple):
    """An image of an images file."""

    id: int
    pose: Pose  # world to camera
    camera_id: int
    name: str
    place: str  # for messages


def cameras_of(records: Iterable[Record]) -> dict[int, Lens]:
    """Lenses by the cameras' ids."""
    cameras: dict[int, Lens] = {}
    for record in records:
        camera_id, model = record.whole("the camera id"), record.model()
        if camera_id in cameras:
            raise SceneError(f"{record.place}: camera id {camera_id} is there twice")
        width, height = record.whole("the width", "Q"), record.whole("the height", "Q")
        names = MODELS[model][1] if model in MODELS else ()
        params = record.numbers(len(names), f"a parameter of {model} ({', '.join(names)})")
        try:
            cameras[camera_id] = Lens(model, params, width, height)
        except SceneError as error:
            raise SceneError(f"{record.place}: {error}") from None
    return cameras


def images_of(records: Iterable[Record]) -> list[ImageRecord]:
    """Images; their 2D points are skipped."""
    images = []
    for record in records:
        image_id, pose = record.whole("the image id"), record.numbers(7, "of quaternion and translation, a value")
        camera_id, name = record.whole("the camera id"), image_name(record.name(), record.place)
        images.append(ImageRecord(image_id, pose, camera_id, name, record.place))
        record.skip_points()
    return images


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
