# SPDX-License-Identifier: Apache-2.0
"""COLMAP's text files: a record a line (of images two), values between spaces, # in front of remarks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nerfkit.data.capture import Points
from nerfkit.data.readers.colmap import records as shared
from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

LINE_LIMIT = 2**25  # bytes: a million 2D points


class Records:
    """The records of a file, one after another, each as records.Record; what is no value is an error."""

    def __init__(self, path: Path, kind: str, limit_bytes: int = shared.FILE_LIMIT):
        self.path, self.number, self.rest = path, 0, b""  # number of the line, and what of it is left
        self.lines = _lines(path, limit_bytes)

    def __iter__(self) -> Iterator[Records]:
        for number, line in self.lines:
            self.number, self.rest = number, line
            if self.rest and not self.rest.startswith(b"#"):
                yield self
                if self.rest:
                    raise SceneError(f"{self.place}: '{_shown(self.rest)}' is more than belongs to a record")

    @property
    def place(self) -> str:
        return self.place_of(self.number)

    def place_of(self, number: int) -> str:
        """File and another line."""
        return f"{shown(self.path)}: line {number}"

    def next(self, what: str) -> bytes:
        value, *rest = self.rest.split(None, 1)[:2] or (b"",)
        if not value:
            raise SceneError(f"{self.place}: {what} is missing")
        self.rest = rest[0] if rest else b""
        return value

    def whole(self, what: str, form: str = "") -> int:
        value = self.next(what)
        if not value.isdigit() or len(value) > 18:
            raise SceneError(f"{self.place}: {what} must be a whole number, got '{_shown(value)}'")
        return int(value)

    def numbers(self, count: int, what: str) -> tuple[float, ...]:
        values = [self.next(what) for _ in range(count)]
        for value in values:
            if not _is_number(value):
                raise SceneError(f"{self.place}: {what} must be a number, got '{_shown(value)}'")
        return tuple(map(float, values))

    def model(self) -> str:
        return self.next("the camera model").decode(errors="backslashreplace")

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
                f"{self.place_of(number)}: must be the 2D points of the image on line {self.number}, three numbers "
                f"each, or empty, but has {len(values)} values and ends in '{_shown(values[-1])}'"
            )


def _lines(path: Path, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Number and text of all lines of a file, with empty ones and remarks, without the spaces around them."""
    with open_regular(path, limit_bytes, "COLMAP file", SceneError) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
            if len(line) > LINE_LIMIT:
                raise SceneError(f"{shown(path)}: line {number} is longer than {LINE_LIMIT} bytes")
            yield number, (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()


def _shown(value: bytes) -> str:
    return shown(value.decode(errors="backslashreplace"), 60)


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return b"_" not in value  # which Python reads over


def read_points(path: Path) -> Points:
    """Points, whose views are image ids."""
    positions, colors, lengths, image_ids, numbers = array("d"), bytearray(), array("q"), array("I"), array("q")
    records = Records(path, "point", shared.POINTS_LIMIT)
    for record in records:
        line, record.rest = record.rest, b""
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
            raise SceneError(f"{record.place}: a point has {wanted}, got '{_shown(line)}'") from None
        lengths.append(len(track) // 2)
        image_ids.extend(track[::2])
        numbers.append(record.number)
    points = np.array(positions, np.float64).reshape(-1, 3)
    shared.check_positions(points, lambda index: records.place_of(numbers[index]))
    return Points(
        points, np.array(colors, np.uint8).reshape(-1, 3), np.array(lengths, np.int64), np.array(image_ids, np.int64)
    )
