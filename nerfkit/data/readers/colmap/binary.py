# SPDX-License-Identifier: Apache-2.0
"""COLMAP's binary files: little-endian records behind a count, none of them padded.

Nothing is allocated by what a count says before the file is known to be long enough for it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.colmap import records as shared
from nerfkit.data.readers.colmap.records import Frames, ImageRecords, PointRecords, Pose, Rigs
from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

CAMERA_SENSOR = 0  # of COLMAP's kinds of sensors
IMAGE = 73  # bytes of an image, at least
OBSERVATION = 24  # bytes of a 2D point: x, y, its 3D point
POINT = np.dtype(
    [("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track_length", "<u8")]
)  # then an image id and an index, 4 bytes each, for every observation
TRACK_LENGTH_AT = POINT.fields["track_length"][1]
BLOCK = 2**22  # bytes that are parsed at a time


class _Records:
    """The records of a binary file, one after another; what does not fit into the file is a SceneError."""

    def __init__(self, path: Path, record: str, limit_bytes: int = shared.FILE_LIMIT):
        self.path, self.record, self.index = path, record, -1  # -1: in front of the first record
        self.file = open_regular(path, limit_bytes, "COLMAP file", SceneError)
        self.size = os.fstat(self.file.fileno()).st_size
        self.start = self.at = 0  # bytes: of the record, of what is read next

    def __enter__(self) -> _Records:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.file.close()

    @property
    def place(self) -> str:
        """File, record and byte for messages."""
        return self.place_of(self.index, self.start)

    def place_of(self, index: int, start: int) -> str:
        """File, record and byte of another record."""
        record = f"{self.record} record {index}" if index >= 0 else f"the number of {self.record} records"
        return f"{shown(self.path)}: {record} at byte {start}"

    def whole(self, what: str, form: str = "I") -> int:
        """The next value, a whole number."""
        return self.take(f"<{form}")[0]

    def count(self, what: str, size: int, form: str = "I") -> int:
        """How many things of at least `size` bytes follow."""
        count = self.whole(what, form)
        self.check_room(count, size, what)
        return count

    def is_camera(self) -> bool:
        """Whether the next kind of sensor is a camera."""
        return self.whole("a sensor", "i") == CAMERA_SENSOR

    def pose(self) -> Pose:
        """Quaternion and translation."""
        return self.take("<7d")

    def next(self) -> None:
        """Go on to the next record."""
        self.index, self.start = self.index + 1, self.at

    def take(self, form: str) -> tuple:
        """Values of struct's `form`."""
        wanted = struct.calcsize(form)
        return struct.unpack(form, self.bytes(wanted))

    def bytes(self, wanted: int) -> bytes:
        """The next bytes."""
        content = self.read(min(wanted, self.size - self.at))
        if len(content) != wanted:
            raise self.truncated()
        self.at += wanted
        return content

    def read(self, wanted: int) -> bytes:
        """At most `wanted` bytes, which stay the next ones."""
        try:
            return self.file.read(wanted)
        except OSError as problem:
            raise SceneError(f"cannot read {shown(self.path)}: {problem.strerror}") from None

    def name(self) -> bytes:
        """The bytes up to a zero byte."""
        content = self.read(256)
        if b"\0" not in content:
            content += self.read(shared.NAME_LIMIT)
        length = content.find(b"\0")
        if length < 0 and len(content) <= shared.NAME_LIMIT:
            raise self.truncated()
        if not 0 <= length <= shared.NAME_LIMIT:
            raise SceneError(f"{self.place}: the name is longer than {shared.NAME_LIMIT} bytes; is the file damaged?")
        self._go_to(self.at + length + 1)
        return content[:length]

    def skip(self, count: int, size: int, what: str) -> None:
        """Leave out `count` things of `size` bytes each."""
        self.check_room(count, size, what)
        self._go_to(self.at + count * size)

    def check_room(self, count: int, size: int, what: str) -> None:
        """Raise SceneError if `count` things of `size` bytes do not fit into the rest of the file."""
        left = self.size - self.at
        if count * size > left:
            raise SceneError(
                f"{self.place}: {count} {what} are announced, but only {left} bytes follow; the file is cut or damaged"
            )

    def check_end(self) -> None:
        """Raise SceneError if something follows the last record."""
        if self.at != self.size:
            raise SceneError(
                f"{shown(self.path)}: {self.size - self.at} bytes follow the last of {self.index + 1} {self.record} "
                f"records, at byte {self.at}; the file is damaged"
            )

    def truncated(self) -> SceneError:
        return SceneError(f"{self.place}: the file ends in it, after {self.size} bytes; it is cut or damaged")

    def _go_to(self, offset: int) -> None:
        self.at = offset
        self.file.seek(offset)


def _each(path: Path, record: str, smallest: int) -> Iterator[_Records]:
    """The records of a file, of at least `smallest` bytes each."""
    with _Records(path, record) as records:
        for _ in range(records.count(f"{record} records", smallest, "Q")):
            records.next()
            yield records
        records.check_end()


def count_images(path: Path) -> int:
    """How many images an images file holds."""
    with _Records(path, "image") as records:
        return records.count("image records", IMAGE, "Q")


def read_cameras(path: Path) -> dict[int, Lens]:
    """Lenses by the cameras' ids."""
    cameras: dict[int, Lens] = {}
    for record in _each(path, "camera", 24):
        camera_id, number, width, height = record.take("<IiQQ")
        if not 0 <= number < len(shared.MODEL_NAMES):
            known = ", ".join(f"{index} {name}" for index, name in enumerate(shared.MODEL_NAMES))
            raise SceneError(f"{record.place}: camera model {number} is unknown; known: {known}")
        model = shared.MODEL_NAMES[number]
        params = record.take(f"<{shared.MODELS[model][0]}d")
        shared.add_camera(cameras, camera_id, model, (width, height), params, record.place)
    return cameras


def read_images(path: Path) -> ImageRecords:
    """Images; their 2D points are skipped."""
    images = ImageRecords()
    for record in _each(path, "image", IMAGE):
        image_id, *pose, camera_id = record.take("<I7dI")
        images.add(image_id, tuple(pose), camera_id, record.name(), record.place)
        record.skip(record.whole("2D points", "Q"), OBSERVATION, "2D points")
    return images


def read_points(path: Path) -> PointRecords:
    """Points and their tracks, a block of the file at a time."""
    blocks = []
    with _Records(path, "point", shared.POINTS_LIMIT) as records:
        left, data, missing = records.count("point records", POINT.itemsize, "Q"), b"", 0
        records.next()
        while left:
            more = records.read(max(BLOCK, missing))
            data += more
            starts, end, missing = _point_starts(data, left, records)
            if not starts and not more:
                raise records.truncated()
            blocks.append(_parse_points(data[:end], starts, records))
            left, data = left - len(starts), data[end:]
            records.index, records.at = records.index + len(starts), records.at + end
            records.start = records.at
        records.index -= 1  # the last one
        records.check_end()
    return shared.joined(blocks)


def _point_starts(data: bytes, most: int, records: _Records) -> tuple[list[int], int, int]:
    """Of the points that lie in `data` as a whole, at most `most`: their starts, the end of the last one.

    The third value is how many bytes the first point lacks where it is not whole.
    """
    starts: list[int] = []
    start, length_at, unpack = 0, TRACK_LENGTH_AT, struct.Struct("<Q").unpack_from
    while len(starts) < most and start + POINT.itemsize <= len(data):
        track_length = unpack(data, start + length_at)[0]
        end = start + POINT.itemsize + 8 * track_length
        if end > len(data):
            if records.at + end > records.size:
                place = records.place_of(records.index + len(starts), records.at + start)
                raise SceneError(
                    f"{place}: a track of {track_length} observations is announced, but the file ends after "
                    f"{records.size} bytes; it is cut or damaged"
                )
            return starts, start, end - len(data)
        starts.append(start)
        start = end
    return starts, start, 0


def _parse_points(data: bytes, starts: list[int], records: _Records) -> PointRecords:
    """The whole points of `data`, which start at `starts`."""
    content = np.frombuffer(data, np.uint8)
    heads = np.array(starts, np.int64)[:, None] + np.arange(POINT.itemsize)  # [P, 51] places of their bytes
    points = content[heads].view(POINT)[:, 0]
    in_track = np.ones(len(content), bool)
    in_track[heads] = False
    image_ids = content[in_track].view("<u4").reshape(-1, 2)[:, 0].astype(np.int64)
    positions = points["position"].astype(np.float64)
    shared.check_positions(positions, lambda index: records.place_of(records.index + index, records.at + starts[index]))
    return PointRecords(positions, points["color"].copy(), points["track_length"].astype(np.int64), image_ids)


def read_rigs(path: Path) -> Rigs:
    """Cameras of rigs."""
    return shared.rigs_of(_each(path, "rig", 8))


def read_frames(path: Path) -> Frames:
    """Poses of rigs by the images that were taken there."""
    return shared.frames_of(_each(path, "frame", 68))


def cameras_bytes(cameras: dict[int, Lens]) -> bytes:
    """The content of a cameras file."""
    parts = [struct.pack("<Q", len(cameras))]
    for camera_id, lens in cameras.items():
        parts.append(struct.pack("<IiQQ", camera_id, shared.MODEL_NAMES.index(lens.model), lens.width, lens.height))
        parts.append(struct.pack(f"<{len(lens.params)}d", *lens.params))
    return b"".join(parts)


def images_bytes(images: ImageRecords, observations: list[np.ndarray]) -> bytes:
    """The content of an images file; `observations` are the ids of the 3D points [M] int64 that each image sees."""
    parts = [struct.pack("<Q", len(images.ids))]
    for image_id, pose, camera_id, name, seen in images.with_observations(observations):
        parts.append(struct.pack("<I7dI", image_id, *pose, camera_id) + name.encode() + b"\0")
        points = np.empty(len(seen), [("position", "<f8", 2), ("point_id", "<i8")])
        points["position"], points["point_id"] = shared.UNKNOWN_PIXEL, seen
        parts.append(struct.pack("<Q", len(seen)) + points.tobytes())
    return b"".join(parts)


def points_bytes(points: PointRecords, indices: np.ndarray) -> bytes:
    """The content of a points file; `indices` [T] say which of its image's 2D points an observation is."""
    heads = np.empty(len(points.positions), POINT)
    heads["id"] = np.arange(1, len(heads) + 1)
    heads["position"], heads["color"], heads["error"] = points.positions, points.colors, -1  # -1: not known
    heads["track_length"] = points.track_lengths
    tracks = np.stack([points.image_ids, indices], axis=1).astype("<u4").tobytes()
    ends = (8 * np.cumsum(points.track_lengths)).tolist()
    head_bytes, size, start = heads.tobytes(), POINT.itemsize, 0
    parts = [struct.pack("<Q", len(heads))]
    for index, end in enumerate(ends):
        parts += (head_bytes[size * index : size * (index + 1)], tracks[start:end])
        start = end
    return b"".join(parts)
