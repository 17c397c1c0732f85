# SPDX-License-Identifier: Apache-2.0
"""COLMAP's binary files: little-endian records behind a count, none of them padded.

Nothing is allocated by what a count says before the file is known to be long enough for it.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import MODELS, UNSUPPORTED
from nerfkit.data.capture import Points
from nerfkit.data.readers.colmap import records as shared
from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

MODEL_NAMES = {number: name for name, (number, _) in MODELS.items()} | {n: name for name, n in UNSUPPORTED.items()}
SMALLEST = {"camera": 24, "image": 73, "point": 51}  # bytes of a record, at least
OBSERVATION = 24  # bytes of a 2D point: x, y, its 3D point
# Then a count of observations, 8 bytes, and of each an image id and an index, 4 bytes each.
POINT = np.dtype([("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8")])


class Records:
    """The records of a file, one after another, each as records.Record; what does not fit into the file is an error."""

    def __init__(self, path: Path, kind: str, limit_bytes: int = shared.FILE_LIMIT):
        self.path, self.kind, self.index = path, kind, -1  # -1: in front of the first record
        self.limit_bytes = limit_bytes
        self.start = self.at = 0  # bytes: of the record, of what is read next

    def __iter__(self) -> Iterator[Records]:
        with open_regular(self.path, self.limit_bytes, "COLMAP file", SceneError) as self.file:
            self.size = os.fstat(self.file.fileno()).st_size
            for index in range(self.count(f"{self.kind} records", SMALLEST[self.kind], "Q")):
                self.index, self.start = index, self.at
                yield self
        if self.at != self.size:
            raise SceneError(
                f"{shown(self.path)}: {self.size - self.at} bytes follow the last of {self.index + 1} {self.kind} "
                f"records, at byte {self.at}; the file is damaged"
            )

    @property
    def place(self) -> str:
        return self.place_of(self.index, self.start)

    def place_of(self, index: int, start: int) -> str:
        """File, record and byte of another record."""
        record = f"{self.kind} record {index}" if index >= 0 else f"the number of {self.kind} records"
        return f"{shown(self.path)}: {record} at byte {start}"

    def bytes(self, wanted: int) -> bytes:
        content = self.file.read(min(wanted, self.size - self.at))
        if len(content) != wanted:
            raise self._truncated()
        self.at += wanted
        return content

    def whole(self, what: str, form: str = "I") -> int:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def numbers(self, count: int, what: str) -> tuple[float, ...]:
        return struct.unpack(f"<{count}d", self.bytes(8 * count))

    def count(self, what: str, size: int, form: str = "I") -> int:
        """How many things of at least `size` bytes follow."""
        count, left = self.whole(what, form), self.size - self.at
        if count * size > left:
            raise SceneError(
                f"{self.place}: {count} {what} are announced, but only {left} bytes follow; the file is cut or damaged"
            )
        return count

    def model(self) -> str:
        """Name of a camera model, or its number if that is unknown."""
        number = self.whole("the camera model", "i")
        return MODEL_NAMES.get(number, str(number))

    def name(self) -> bytes:
        """The bytes up to a zero byte."""
        content, zero, _ = self.file.read(shared.NAME_LIMIT + 1).partition(b"\0")
        if not zero and len(content) > shared.NAME_LIMIT:
            raise SceneError(f"{self.place}: the name is longer than {shared.NAME_LIMIT} bytes; is the file damaged?")
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
        return SceneError(f"{self.place}: the file ends in it, after {self.size} bytes; it is cut or damaged")


def read_points(path: Path) -> Points:
    """Points, whose views are image ids."""
    heads, tracks, track_lengths = bytearray(), bytearray(), array("q")
    records = Records(path, "point", shared.POINTS_LIMIT)
    for record in records:
        heads += record.bytes(POINT.itemsize)
        track_lengths.append(record.count("observations", 8, "Q"))
        tracks += record.bytes(8 * track_lengths[-1])
    points, lengths = np.frombuffer(heads, POINT), np.array(track_lengths, np.int64)
    positions = points["position"].astype(np.float64)
    starts = SMALLEST["point"] * np.arange(len(points)) + 8 * (1 + np.cumsum(lengths) - lengths)
    shared.check_positions(positions, lambda index: records.place_of(index, starts[index]))
    image_ids = np.frombuffer(tracks, "<u4")[::2].astype(np.int64)
    return Points(positions, points["color"].copy(), lengths, image_ids)
