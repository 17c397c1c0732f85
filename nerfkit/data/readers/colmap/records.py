# SPDX-License-Identifier: Apache-2.0
"""The records of a COLMAP model, field by field: what they are, and how they are read of binary files and of text.

While `BinaryRecords` or `TextRecords` are iterated, `read_int`, `numbers`, `model`, `name` and `skip_points` read the
values of the record that they are at, one after another; one that is missing or none is a SceneError.
"""

from __future__ import annotations

import os
import posixpath
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import Points
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT
from nerfkit.safe_io import open_regular, printable

NAME_LIMIT = 4096  # bytes
FILE_LIMITS = {"camera": 2**40, "image": 2**40, "point": 2**34}  # bytes; of images most are skipped, points all kept
LINE_LIMIT = 2**25  # bytes: a million 2D points
MODEL_NAMES = {model.number: name for name, model in MODELS.items()}
SMALLEST = {"camera": 24, "image": 73, "point": 51}  # bytes of a record, at least
OBSERVATION = 24  # bytes of a 2D point: x, y, its 3D point
# Then a count of observations, 8 bytes, and of each an image id and an index, 4 bytes each.
POSITION = struct.Struct("<3d")  # behind the id
POINT = np.dtype([("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8")])


class BinaryRecords:
    """Reads a .bin file record by record: a count, then little-endian values without padding.

    A count is compared with the length of the file before anything is allocated for it.
    """

    def __init__(self, path: Path, kind: str):
        self.path, self.kind, self.index = path, kind, -1  # -1: in front of the first record
        self.start = self.at = 0  # bytes: of the record, of what is read next

    def __iter__(self) -> Iterator[BinaryRecords]:
        with open_regular(self.path, FILE_LIMITS[self.kind], "COLMAP file", SceneError) as self.file:
            self.size = os.fstat(self.file.fileno()).st_size
            for index in range(self.count(f"{self.kind} records", SMALLEST[self.kind], "Q")):
                self.index, self.start = index, self.at
                yield self
        if self.at != self.size:
            raise SceneError(
                f"{printable(self.path)}: {self.size - self.at} bytes follow the last of {self.index + 1} {self.kind} "
                f"records, at byte {self.at}; the file is damaged"
            )

    @property
    def location(self) -> str:
        record = f"{self.kind} record {self.index}" if self.index >= 0 else f"the number of {self.kind} records"
        return f"{printable(self.path)}: {record} at byte {self.start}"

    def bytes(self, wanted: int) -> bytes:
        content = self.file.read(min(wanted, self.size - self.at))
        if len(content) != wanted:
            raise self._truncated()
        self.at += wanted
        return content

    def read_int(self, what: str, form: str = "I") -> int:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def numbers(self, count: int, what: str) -> tuple[float, ...]:
        return struct.unpack(f"<{count}d", self.bytes(8 * count))

    def count(self, what: str, size: int, form: str = "I") -> int:
        """How many things of at least `size` bytes follow."""
        count, left = self.read_int(what, form), self.size - self.at
        if count * size > left:
            raise SceneError(
                f"{self.location}: {count} {what} are announced, but only {left} bytes follow; the file is cut or "
                "damaged"
            )
        return count

    def model(self) -> str:
        """Name of a camera model, or its number if that is unknown."""
        number = self.read_int("the camera model", "i")
        return MODEL_NAMES.get(number, str(number))

    def name(self) -> bytes:
        """The bytes up to a zero byte."""
        content, zero, _ = self.file.read(NAME_LIMIT + 1).partition(b"\0")
        if not zero and len(content) > NAME_LIMIT:
            raise SceneError(f"{self.location}: the name is longer than {NAME_LIMIT} bytes; is the file damaged?")
        if not zero:
            raise self._truncated()
        self._go_to(self.at + len(content) + 1)
        return content

    def skip_points(self) -> None:
        n_points = self.count("2D points", OBSERVATION, "Q")
        self._go_to(self.at + n_points * OBSERVATION)

    def _go_to(self, offset: int) -> None:
        self.at = offset
        self.file.seek(offset)

    def _truncated(self) -> SceneError:
        return SceneError(f"{self.location}: the file ends in it, after {self.size} bytes; it is cut or damaged")

    def points(self) -> Points:
        """Points, whose views are image ids."""
        heads, tracks, track_lengths = bytearray(), bytearray(), array("q")
        for _ in self:
            heads += self.bytes(POINT.itemsize)
            check_position(POSITION.unpack_from(heads, len(heads) - POINT.itemsize + 8), self)
            track_lengths.append(self.count("observations", 8, "Q"))
            tracks += self.bytes(8 * track_lengths[-1])
        points, lengths = np.frombuffer(heads, POINT), np.array(track_lengths, np.int64)
        positions = points["position"].astype(np.float64)
        image_ids = np.frombuffer(tracks, "<u4")[::2].astype(np.int64)
        return Points(positions, points["color"].copy(), lengths, image_ids)


class TextRecords:
    """The records of a .txt file: one a line (of images two), values between spaces, # in front of remarks."""

    def __init__(self, path: Path, kind: str):
        self.path, self.number, self.rest = path, 0, b""  # number of the line, and what of it is left
        self.lines = self._lines(FILE_LIMITS[kind])

    def __iter__(self) -> Iterator[TextRecords]:
        for number, line in self.lines:
            self.number, self.rest = number, line
            if self.rest and not self.rest.startswith(b"#"):
                yield self
                if self.rest:
                    raise SceneError(f"{self.location}: '{_shown(self.rest)}' is more than belongs to a record")

    @property
    def location(self) -> str:
        return f"{printable(self.path)}: line {self.number}"

    def next_word(self, what: str) -> bytes:
        value, *rest = self.rest.split(None, 1)[:2] or (b"",)
        if not value:
            raise SceneError(f"{self.location}: {what} is missing")
        self.rest = rest[0] if rest else b""
        return value

    def read_int(self, what: str, form: str = "") -> int:
        value = self.next_word(what)
        if not value.isdigit() or len(value) > 18:
            raise SceneError(f"{self.location}: {what} must be a whole number, got '{_shown(value)}'")
        return int(value)

    def numbers(self, count: int, what: str) -> tuple[float, ...]:
        values = [self.next_word(what) for _ in range(count)]
        for value in values:
            if not _is_number(value):
                raise SceneError(f"{self.location}: {what} must be a number, got '{_shown(value)}'")
        return tuple(map(float, values))

    def model(self) -> str:
        return self.next_word("the camera model").decode(errors="backslashreplace")

    def name(self) -> bytes:
        """The name of an image: the rest of its line, in which spaces are."""
        name, self.rest = self.rest, b""
        return name

    def skip_points(self) -> None:
        """Leave out the line of an image's 2D points; an editor may have taken off the last one, if there are none."""
        number, line = next(self.lines, (0, b""))
        values = line.split()
        if len(values) % 3 or not all(map(_is_number, values[-3:])):
            raise SceneError(
                f"{printable(self.path)}: line {number}: must be the 2D points of the image on line {self.number}, "
                f"three numbers each, or empty, but has {len(values)} values and ends in '{_shown(values[-1])}'"
            )

    def points(self) -> Points:
        """Points, whose views are image ids."""
        positions, colors, lengths, image_ids = array("d"), bytearray(), array("q"), array("I")
        for _ in self:
            line, self.rest = self.rest, b""
            point_id, *values = line.split()
            try:
                positions.extend(map(float, values[:3]))
                colors.extend(map(int, values[3:6]))
                track = array("I", map(int, values[7:]))
                if len(values) < 7 or len(track) % 2 or b"_" in line or not point_id.isdigit():
                    raise ValueError
                float(values[6])  # the error
            except (ValueError, OverflowError):
                wanted = "an id, x, y, z, red, green, blue up to 255, an error, and pairs of an image id and an index"
                raise SceneError(f"{self.location}: a point has {wanted}, got '{_shown(line)}'") from None
            check_position(positions[-3:], self)
            lengths.append(len(track) // 2)
            image_ids.extend(track[::2])
        points = np.array(positions, np.float64).reshape(-1, 3)
        track_lengths, views = (np.array(values, np.int64) for values in (lengths, image_ids))
        return Points(points, np.array(colors, np.uint8).reshape(-1, 3), track_lengths, views)

    def _lines(self, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Number and text of all lines of a file, with empty ones and remarks, without the spaces around them."""
        with open_regular(self.path, limit_bytes, "COLMAP file", SceneError) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
                if len(line) > LINE_LIMIT:
                    raise SceneError(f"{printable(self.path)}: line {number} is longer than {LINE_LIMIT} bytes")
                yield number, (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()


def _shown(value: bytes) -> str:
    return printable(value.decode(errors="backslashreplace"), 60)


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return b"_" not in value  # which Python reads over


class ImageRecord(NamedTuple):
    """An image of an images file."""

    id: int
    pose: tuple[float, ...]  # quaternion w x y z, translation; world to camera
    camera_id: int
    name: str
    location: str  # for messages


def cameras_of(records: BinaryRecords | TextRecords) -> dict[int, Lens]:
    """Lenses by the cameras' ids."""
    cameras: dict[int, Lens] = {}
    for record in records:
        camera_id, model = record.read_int("the camera id"), record.model()
        if camera_id in cameras:
            raise SceneError(f"{record.location}: camera id {camera_id} is there twice")
        width, height = record.read_int("the width", "Q"), record.read_int("the height", "Q")
        names = MODELS[model].names if model in MODELS else ()
        params = record.numbers(len(names), f"a parameter of {model} ({', '.join(names)})")
        try:
            cameras[camera_id] = Lens(model, params, width, height)
        except SceneError as error:
            raise SceneError(f"{record.location}: {error}") from None
    return cameras


def images_of(records: BinaryRecords | TextRecords) -> list[ImageRecord]:
    """Images; their 2D points are skipped."""
    images = []
    for record in records:
        image_id, pose = record.read_int("the image id"), record.numbers(7, "of quaternion and translation, a value")
        camera_id, name = record.read_int("the camera id"), image_name(record.name(), record.location)
        images.append(ImageRecord(image_id, pose, camera_id, name, record.location))
        record.skip_points()
    return images


def image_name(name: bytes, where: str) -> str:
    """The name of an image, a path below its folder; raises SceneError naming `where`."""
    try:
        text = name.decode().replace("\\", "/")  # as Windows has it between folders
    except UnicodeDecodeError:
        raise SceneError(
            f"{where}: image name '{printable(repr(name)[2:-1])}' is not UTF-8; rename the image"
        ) from None
    if not text.strip() or "\0" in text or len(name) > NAME_LIMIT or posixpath.basename(text) in ("", "."):
        raise SceneError(f"{where}: '{printable(text)}' cannot be the name of an image")
    if posixpath.isabs(text) or ".." in text.split("/"):
        raise SceneError(
            f"{where}: image name '{printable(text)}' leads out of the folder of images; use names within it"
        )
    return text


def check_position(position: Sequence[float], record: BinaryRecords | TextRecords) -> None:
    """Raise SceneError for a point of a record that is nowhere."""
    if not all(abs(value) <= COORDINATE_LIMIT for value in position):  # NaN is not
        limit = f"finite and at most {COORDINATE_LIMIT:g}"
        raise SceneError(f"{record.location}: the position must be {limit}, got {list(position)}")
