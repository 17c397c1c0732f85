# SPDX-License-Identifier: Apache-2.0
"""Capture: what a reader finds in a folder, before sizes, splits and the frame of the scene are settled; and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT

ROTATION_TOLERANCE = 1e-3


class Note(NamedTuple):
    """A line of text that a user should know of a scene."""

    kind: Literal["info", "warning"]
    text: str

    def __str__(self) -> str:
        return f"warning: {self.text}" if self.kind == "warning" else self.text


Lines = list[str | Note]  # of which plain text only informs


def notes_of(*lines: str | Note) -> tuple[Note, ...]:
    """Notes of `lines`, of which plain text only informs."""
    return tuple(line if isinstance(line, Note) else Note("info", line) for line in lines)


def as_warnings(lines: Iterable[str]) -> list[Note]:
    return [Note("warning", line) for line in lines]


def texts(notes: Iterable[Note], kind: str) -> list[str]:
    return [note.text for note in notes if note.kind == kind]


class DepthFile(NamedTuple):
    """How far is what the pixels of an image show."""

    file: Path  # PNG, EXR, NPY or NPZ
    confidence: Path | None = None  # how much each pixel counts
    unit: float | None = None  # length of 1 in the file, in the poses' units, if stated


@dataclass(frozen=True)
class PosedImage:
    """One image with its pose and lens, as the files state them."""

    name: str  # as the files write it, with / between folders; unique in its capture
    file: Path  # where it should be on disk
    camera_to_world: np.ndarray  # [3, 4] float64, OpenGL axes (x right, y up, z backwards), in the files' own frame
    lens: Lens  # of the size that the files state; the image on disk may be a resized one
    mask: Path | None = None  # of pixels to ignore, one channel
    bounds: tuple[float, float] | None = None  # nearest and farthest z of what it sees, in the files' units
    depth: DepthFile | None = None  # how far is what it shows
    found: Path | None = None  # the file that is there, see `resolve_files`; none where it is missing

    def depth_in(self, unit: float) -> DepthFile | None:
        """Its depth, in a unit that is stated instead of the file's; 0: none is."""
        return self.depth and self.depth._replace(unit=unit or self.depth.unit)


@dataclass(frozen=True)
class Points:
    """Sparse points of a reconstruction, in the files' own frame."""

    positions: np.ndarray  # [P, 3] float64
    colors: np.ndarray  # [P, 3] uint8
    track_lengths: np.ndarray  # [P] int64, images that see each
    views: np.ndarray  # [T] int64, index of the image of every observation, by point


@dataclass(frozen=True)
class Capture:
    """Posed images in one frame, of one format."""

    name: str
    format: str  # of readers.READERS
    images: list[PosedImage]  # sorted by name
    points: Points | None = None
    up: tuple[float, float, float] | None = None  # world axis that points up, if the files say so
    splits: dict[str, list[str]] = field(default_factory=dict)  # names by split, where the files say so
    paths: dict[str, list[PosedImage]] = field(default_factory=dict)  # splits without any image; see `resolve_files`
    white_ignores: bool = False  # in masks, not black
    notes: tuple[Note, ...] = ()  # what a user should know
    format_again: str = ""  # data.format to read it with later, if not its own

    def of_images(self, images: list[PosedImage]) -> Capture:
        """The capture of some of its images, in any order: who sees a point is told by their new places."""
        points, number = self.points, {image.name: index for index, image in enumerate(images)}
        if points is not None and len(points.views):
            views = np.array([number.get(image.name, -1) for image in self.images], dtype=np.int64)[points.views]
            points = seen_by_some(points, views, views >= 0)
        return replace(self, images=images, points=points)


def seen_by_some(points: Points, views: np.ndarray, known: np.ndarray) -> Points:
    """Points with other `views` [T], and without the observations that are not `known` [T] bool."""
    of_point = np.repeat(np.arange(len(points.positions)), points.track_lengths)
    lengths = np.bincount(of_point[known], minlength=len(points.positions))
    return replace(points, track_lengths=lengths, views=views[known])


def check_positions(positions: np.ndarray, where: str) -> None:
    """Raise SceneError naming `where` if one of the points [P, 3] is nowhere."""
    bad = ~(np.abs(positions) <= COORDINATE_LIMIT).all(axis=1)  # NaN is not
    if bad.any():
        index = int(bad.argmax())
        wanted = f"finite and at most {COORDINATE_LIMIT:g}"
        raise SceneError(f"{where}: point {index} is at {positions[index].tolist()}; positions must be {wanted}")


def rotations_of(quaternions: np.ndarray) -> np.ndarray:
    """Rotations [N, 3, 3] of quaternions w x y z [N, 4] of any length."""
    w, x, y, z = (quaternions / np.linalg.norm(quaternions, axis=1)[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), -1, 0).copy()


def check_rotation(rotation: np.ndarray, where: str) -> None:
    """Raise SceneError naming `where` if a matrix [3, 3] is no rotation."""
    determinant, skew = np.linalg.det(rotation), np.abs(rotation @ rotation.T - np.eye(3)).max()
    if abs(determinant - 1) > ROTATION_TOLERANCE or skew > ROTATION_TOLERANCE:
        cause = "it is mirrored" if determinant < 0 else "it is scaled, or its axes are not orthogonal"
        raise SceneError(f"{where}: the rotation has determinant {determinant:.4g}, and should have 1: {cause}")
