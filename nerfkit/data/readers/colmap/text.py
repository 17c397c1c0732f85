# SPDX-License-Identifier: Apache-2.0
"""COLMAP's text files: a record a line (of images two), values between spaces, # in front of remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.colmap import records as shared
from nerfkit.data.readers.colmap.records import Frames, ImageRecords, PointRecords, Pose, Rigs
from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

LINE_LIMIT = 2**25  # bytes: a million 2D points
BLOCK = 2**15  # points that are converted at a time
CAMERA_SENSOR = b"CAMERA"  # of COLMAP's kinds of sensors


@dataclass(frozen=True)
class _Line:
    """A line of a file, without the spaces around it."""

    path: Path
    number: int
    text: bytes

    @property
    def place(self) -> str:
        """File and line for messages."""
        return f"{shown(self.path)}: line {self.number}"

    def whole(self, value: bytes, what: str) -> int:
        """The whole number `value`; raises SceneError naming `what`."""
        if not value.isdigit() or len(value) > 18:
            raise SceneError(f"{self.place}: {what} must be a whole number, got '{_shown(value)}'")
        return int(value)

    def numbers(self, values: list[bytes], what: str) -> tuple[float, ...]:
        """Numbers, NaN among them; raises SceneError naming `what`."""
        for value in values:
            if not _is_number(value):
                raise SceneError(f"{self.place}: {what} must be numbers, got '{_shown(value)}'")
        return tuple(map(float, values))


def _shown(value: bytes) -> str:
    return shown(value.decode(errors="backslashreplace"), 60)


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return b"_" not in value  # which Python reads over


def _lines(path: Path, limit_bytes: int = shared.FILE_LIMIT) -> Iterator[_Line]:
    """All lines of a file, with empty ones and remarks."""
    with open_regular(path, limit_bytes, "COLMAP file", SceneError) as file:
        number = 0
        while True:
            try:
                text = file.readline(LINE_LIMIT + 1)
            except OSError as problem:
                raise SceneError(f"cannot read {shown(path)}: {problem.strerror}") from None
            if not text:
                return
            number += 1
            if len(text) > LINE_LIMIT:
                raise SceneError(f"{shown(path)}: line {number} is longer than {LINE_LIMIT} bytes")
            yield _Line(path, number, text.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else text.strip())


def _records(path: Path, limit_bytes: int = shared.FILE_LIMIT) -> Iterator[_Line]:
    """The lines that say something."""
    return (line for line in _lines(path, limit_bytes) if line.text and not line.text.startswith(b"#"))


def _image_lines(path: Path) -> Iterator[_Line]:
    """The first line of every image; the second, of its 2D points, is checked and left out."""
    lines = _lines(path)
    for line in lines:
        if not line.text or line.text.startswith(b"#"):
            continue
        yield line
        points = next(lines, None)
        if points is None:  # the last image's line of no points, which an editor has taken off
            return
        fields = points.text.split()
        if len(fields) % 3 or not all(map(_is_number, fields[-3:])):
            raise SceneError(
                f"{points.place}: must be the 2D points of the image on line {line.number}, three numbers each, or "
                f"empty, but has {len(fields)} values and ends in '{_shown(fields[-1])}'"
            )


def count_images(path: Path) -> int:
    """How many images an images file holds."""
    return sum(1 for _ in _image_lines(path))


def read_cameras(path: Path) -> dict[int, Lens]:
    """Lenses by the cameras' ids."""
    cameras: dict[int, Lens] = {}
    for line in _records(path):
        fields = line.text.split()
        if len(fields) < 4:
            raise SceneError(f"{line.place}: a camera has an id, a model, width, height and parameters")
        camera_id = line.whole(fields[0], "the camera id")
        size = line.whole(fields[2], "the width"), line.whole(fields[3], "the height")
        params = line.numbers(fields[4:], "the parameters")
        model = fields[1].decode(errors="backslashreplace")
        shared.add_camera(cameras, camera_id, model, size, params, line.place)
    return cameras


def read_images(path: Path) -> ImageRecords:
    """Images; their 2D points are skipped. A name may hold spaces: it is the rest of its line."""
    images = ImageRecords()
    for line in _image_lines(path):
        fields = line.text.split(None, 9)
        if len(fields) != 10:
            wanted = "an id, a quaternion of 4, a translation of 3, a camera id and a name"
            raise SceneError(f"{line.place}: an image has {wanted}, got {len(fields)} values")
        image_id, pose = line.whole(fields[0], "the image id"), line.numbers(fields[1:8], "quaternion and translation")
        images.add(image_id, pose, line.whole(fields[8], "the camera id"), fields[9], line.place)
    return images


def read_points(path: Path) -> PointRecords:
    """Points and their tracks, a block of lines at a time."""
    lines = _records(path, shared.POINTS_LIMIT)
    return shared.joined(_parse_points(block) for block in iter(lambda: list(islice(lines, BLOCK)), []))


def _parse_points(lines: list[_Line]) -> PointRecords:
    """The points of some lines."""
    positions: list[float] = []
    colors: list[int] = []
    lengths: list[int] = []
    image_ids: list[int] = []
    for line in lines:
        point_id, *fields = line.text.split()
        try:
            positions += map(float, fields[:3])
            color, track = list(map(int, fields[3:6])), list(map(int, fields[7:]))
            if len(fields) < 7 or len(track) % 2 or b"_" in line.text or not all(0 <= value < 256 for value in color):
                raise ValueError
            if not point_id.isdigit() or not 0 <= min(track, default=0) <= max(track, default=0) < 2**32:
                raise ValueError
            float(fields[6])
        except ValueError:
            wanted = "an id, x, y, z, red, green, blue up to 255, an error, and pairs of an image id and an index"
            raise SceneError(f"{line.place}: a point has {wanted}, got '{_shown(line.text)}'") from None
        colors += color
        lengths.append(len(track) // 2)
        image_ids += track[::2]
    points = np.array(positions, np.float64).reshape(-1, 3)
    shared.check_positions(points, lambda index: lines[index].place)
    numbers = np.array(colors, np.uint8).reshape(-1, 3), np.array(lengths, np.int64), np.array(image_ids, np.int64)
    return PointRecords(points, *numbers)


def read_rigs(path: Path) -> Rigs:
    """Cameras of rigs."""
    return shared.rigs_of(map(_Fields, _records(path)))


def read_frames(path: Path) -> Frames:
    """Poses of rigs by the images that were taken there."""
    return shared.frames_of(map(_Fields, _records(path)))


class _Fields:
    """The values of a line, one after another."""

    def __init__(self, line: _Line):
        self.line, self.left = line, line.text.split()[::-1]

    def next(self) -> bytes:
        """The next value."""
        if not self.left:
            raise SceneError(f"{self.line.place}: values are missing at its end")
        return self.left.pop()

    def whole(self, what: str, form: str = "") -> int:
        """The next value, a whole number."""
        return self.line.whole(self.next(), what)

    def count(self, what: str, size: int) -> int:
        """How many things follow."""
        return self.whole(f"the number of {what}")

    def is_camera(self) -> bool:
        """Whether the next kind of sensor is a camera."""
        return self.next() == CAMERA_SENSOR

    def pose(self) -> Pose:
        """Quaternion and translation."""
        return self.line.numbers([self.next() for _ in range(7)], "quaternion and translation")


def cameras_bytes(cameras: dict[int, Lens]) -> bytes:
    """The content of a cameras file."""
    lines = ["# camera id, model, width, height, parameters"]
    for camera_id, lens in cameras.items():
        lines.append(f"{camera_id} {lens.model} {lens.width} {lens.height} {_joined(map(float, lens.params))}")
    return _joined_lines(lines)


def images_bytes(images: ImageRecords, observations: list[np.ndarray]) -> bytes:
    """The content of an images file; `observations` are the ids of the 3D points [M] int64 that each image sees."""
    lines = ["# image id, quaternion w x y z, translation, camera id, name; then 2D points: x, y, point id"]
    rows, pixel = images.with_observations(observations), shared.UNKNOWN_PIXEL
    for image_id, pose, camera_id, name, seen in rows:
        lines.append(f"{image_id} {_joined(pose)} {camera_id} {name}")
        lines.append(" ".join(f"{pixel:g} {pixel:g} {point_id}" for point_id in seen.tolist()))
    return _joined_lines(lines)


def points_bytes(points: PointRecords, indices: np.ndarray) -> bytes:
    """The content of a points file; `indices` [T] say which of its image's 2D points an observation is."""
    lines = ["# point id, x, y, z, red, green, blue, error (-1: not known), track of image id and index"]
    tracks = np.stack([points.image_ids, indices], axis=1).ravel().tolist()
    ends, start = (2 * np.cumsum(points.track_lengths)).tolist(), 0
    rows = zip(points.positions.tolist(), points.colors.tolist(), ends, strict=True)
    for point_id, (position, color, end) in enumerate(rows, 1):
        lines.append(f"{point_id} {_joined(position)} {_joined(color)} -1 {_joined(tracks[start:end])}".rstrip())
        start = end
    return _joined_lines(lines)


def _joined(values: Iterable[float]) -> str:
    return " ".join(map(repr, values))  # repr: all digits of a float


def _joined_lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
