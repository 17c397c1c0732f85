# SPDX-License-Identifier: Apache-2.0
"""The records of a COLMAP model, as binary files and text have them; what is none is a SceneError that says where."""

import os
import posixpath
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import Points
from nerfkit.errors import SceneError
from nerfkit.safe_io import open_regular, printable

NAME_LIMIT = 4096  # bytes
FILE_LIMIT, POINTS_LIMIT = 2**40, 2**34  # bytes; of images most are skipped, points all kept
LINE_LIMIT = 2**25  # bytes: a million 2D points
MODEL_NAMES = {model.number: name for name, model in MODELS.items()}
POINT = np.dtype([("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track", "<u8")])
OBSERVATION = 8  # bytes of an element of a track: image id, index
POINT_2D = 24  # bytes: x, y, id of its point


class ImageRecord(NamedTuple):
    where: str  # file and place, for messages
    id: int
    pose: tuple[float, ...]  # quaternion w x y z, translation; world to camera
    camera_id: int
    name: str


class Form(NamedTuple):
    """How a model is written."""

    cameras: Callable[[Path], Iterator[tuple[str, int, tuple]]]  # where, id, and what a Lens is made of
    images: Callable[[Path], Iterator[ImageRecord]]  # whose 2D points are skipped
    points: Callable[[Path], Points]  # whose views are image ids


class _BinaryFile:
    """A count, then as many records, little-endian and without padding; no more is read than there is."""

    def __init__(self, file: BinaryIO, name: str):
        self.file, self.name, self.size = file, name, os.fstat(file.fileno()).st_size
        self.where = f"{name}: the number of records"

    def records(self) -> Iterator[str]:
        (count,) = self.read("Q")
        for index in range(count):
            self.where = f"{self.name}: record {index} of {count} at byte {self.file.tell()}"
            yield self.where
        if (end := self.file.tell()) != self.size:
            raise SceneError(f"{self.name} is damaged: {self.size - end} bytes follow its last record, at byte {end}")

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise SceneError(f"{self.where}: the file ends in it, after {self.size} bytes; it is cut or damaged")
        return self.file.read(count)

    def read(self, form: str) -> tuple:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))

    def text(self) -> bytes:
        """The bytes up to a zero byte."""
        start = self.file.tell()
        content = self.file.read(NAME_LIMIT + 1).partition(b"\0")[0]  # a longer one is no name
        self.file.seek(start)
        return self.bytes(len(content) + 1)[:-1]


@contextmanager
def _binary(path: Path, limit: int = FILE_LIMIT) -> Iterator[_BinaryFile]:
    with open_regular(path, limit, "COLMAP file", SceneError) as file:
        yield _BinaryFile(file, printable(path))


def _binary_cameras(path: Path) -> Iterator[tuple[str, int, tuple]]:
    with _binary(path) as file:
        for where in file.records():
            camera_id, number, width, height = file.read("IiQQ")
            model = MODEL_NAMES.get(number, str(number))
            params = file.read(f"{len(MODELS[model].names) if model in MODELS else 0}d")
            yield where, camera_id, (model, params, width, height)


def _binary_images(path: Path) -> Iterator[ImageRecord]:
    with _binary(path) as file:
        for where in file.records():
            image_id, *pose, camera_id = file.read("I7dI")
            yield ImageRecord(where, image_id, tuple(pose), camera_id, image_name(file.text(), where))
            file.bytes(POINT_2D * file.read("Q")[0])


def _binary_points(path: Path) -> Points:
    heads, tracks = bytearray(), bytearray()
    with _binary(path, POINTS_LIMIT) as file:
        for _ in file.records():
            head = file.bytes(POINT.itemsize)
            heads += head
            tracks += file.bytes(OBSERVATION * int.from_bytes(head[-8:], "little"))
    points = np.frombuffer(heads, POINT)
    image_ids = np.frombuffer(tracks, "<u4")[::2].astype(np.int64)
    positions, lengths = points["position"].astype(np.float64), points["track"].astype(np.int64)
    return Points(positions, points["color"].copy(), lengths, image_ids)


def _lines(path: Path, limit: int = FILE_LIMIT) -> Iterator[tuple[str, bytes]]:
    """Place and text of all lines, with empty ones and remarks, without the spaces around them."""
    name = printable(path)
    with open_regular(path, limit, "COLMAP file", SceneError) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
            if len(line) > LINE_LIMIT:
                raise SceneError(f"{name}: line {number} is longer than {LINE_LIMIT} bytes")
            yield f"{name}: line {number}", (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()


def _records(path: Path, limit: int = FILE_LIMIT) -> Iterator[tuple[str, bytes]]:
    return ((where, line) for where, line in _lines(path, limit) if line and not line.startswith(b"#"))


@contextmanager
def _wanting(what: str, where: str, line: bytes) -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, OverflowError):
        shown = printable(line.decode(errors="backslashreplace"), 60)
        raise SceneError(f"{where} must be {what}, got '{shown}'") from None


def _whole(word: bytes) -> int:
    if not word.isdigit() or len(word) > 18:
        raise ValueError
    return int(word)


def _text_cameras(path: Path) -> Iterator[tuple[str, int, tuple]]:
    for where, line in _records(path):
        with _wanting("a camera's id, model, width, height and parameters", where, line):
            camera_id, model, width, height, *params = line.split()
            lens = model.decode(), tuple(map(float, params)), _whole(width), _whole(height)
            number = _whole(camera_id)
        yield where, number, lens


def _text_images(path: Path) -> Iterator[ImageRecord]:
    """Two lines each; an editor may have taken off the last one, of 2D points, where there are none."""
    lines = _lines(path)
    for where, line in lines:
        if line and not line.startswith(b"#"):
            with _wanting("an image's id, quaternion, translation, camera id and name", where, line):
                words = line.split(None, 9)  # a name may have spaces
                pose, name = tuple(map(float, words[1:8])), words[9]
                numbers = _whole(words[0]), pose, _whole(words[8])
            yield ImageRecord(where, *numbers, image_name(name, where))
            below, seen = next(lines, ("", b""))
            with _wanting(f"the 2D points of the image above, {where}, three numbers each, or empty", below, seen):
                values = seen.split()
                if len(values) % 3:
                    raise ValueError
                list(map(float, values[-3:]))


def _text_points(path: Path) -> Points:
    positions, colors, lengths, image_ids = array("d"), bytearray(), array("q"), array("I")
    wanted = "a point's id, x, y, z, red, green, blue up to 255, error, and pairs of an image id and an index"
    for where, line in _records(path, POINTS_LIMIT):
        with _wanting(wanted, where, line):
            point_id, *values = line.split()
            positions.extend(map(float, values[:3]))
            colors.extend(map(int, values[3:6]))
            track = array("I", map(int, values[7:]))
            if len(values) < 7 or len(track) % 2:
                raise ValueError
            _whole(point_id)
        lengths.append(len(track) // 2)
        image_ids.extend(track[::2])
    points = np.array(positions, np.float64).reshape(-1, 3)
    track_lengths, views = (np.array(values, np.int64) for values in (lengths, image_ids))
    return Points(points, np.array(colors, np.uint8).reshape(-1, 3), track_lengths, views)


FORMS = {
    ".bin": Form(_binary_cameras, _binary_images, _binary_points),
    ".txt": Form(_text_cameras, _text_images, _text_points),
}


def image_name(name: bytes, where: str) -> str:
    """The name of an image, a path below its folder; raises SceneError naming `where`."""
    try:
        text = name.decode().replace("\\", "/")  # as Windows has it between folders
    except UnicodeDecodeError:
        shown = printable(repr(name)[2:-1])
        raise SceneError(f"{where}: image name '{shown}' is not UTF-8; rename the image") from None
    parts = text.split("/")
    if not text.strip() or "\0" in text or len(name) > NAME_LIMIT or parts[-1] in ("", "."):
        raise SceneError(f"{where}: '{printable(text)}' cannot be the name of an image, of {NAME_LIMIT} bytes at most")
    if posixpath.isabs(text) or ".." in parts:
        raise SceneError(f"{where}: image name '{printable(text)}' leads out of the folder of images; use names in it")
    return text
