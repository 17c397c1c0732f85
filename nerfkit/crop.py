# SPDX-License-Identifier: Apache-2.0
"""Crop: the part of a scene that a user wants, an axis-aligned box kept in the run folder.

RUN/crop.json   {"min": [x, y, z], "max": [x, y, z], "frame": "files" or "model"}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.data.frame import Frame
from nerfkit.errors import RunError
from nerfkit.reading import read_json, shown

CROP = "crop.json"
FRAMES = ("files", "model")


@dataclass(frozen=True, eq=False)
class Crop:
    """A box with sides along the axes of the files' frame or of the model's."""

    box: np.ndarray  # [2, 3] float64, lowest and highest corner
    frame: str  # of FRAMES

    def contains(self, points: np.ndarray, frame: Frame | None) -> np.ndarray:
        """Which points [P, 3] of the model's frame lie inside, [P] bool; `frame` is the run's."""
        if self.frame == "files" and frame is not None:
            points = frame.to_input(points)
        return ((points >= self.box[0]) & (points <= self.box[1])).all(axis=-1)

    def bounds(self, frame: Frame | None) -> np.ndarray:
        """The smallest box [2, 3] along the axes of the model's frame that holds it."""
        corners = np.stack(np.meshgrid(*self.box.T, indexing="ij"), axis=-1).reshape(8, 3)
        if self.frame == "files" and frame is not None:
            corners = frame.to_model(corners)
        return np.stack([corners.min(axis=0), corners.max(axis=0)])

    def to_json(self) -> dict[str, Any]:
        """As `crop.json` holds it."""
        return {"min": self.box[0].tolist(), "max": self.box[1].tolist(), "frame": self.frame}


def crop_of(low: Any, high: Any, frame: Any, where: str) -> Crop:
    """A crop from two corners; raises RunError that names `where`."""
    if frame not in FRAMES:
        raise RunError(f"{where}: 'frame' must be {' or '.join(FRAMES)}, got {frame!r:.80}")
    try:
        box = np.array([low, high], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        box = np.zeros(0)
    if box.shape != (2, 3) or not np.isfinite(box).all() or not (box[0] < box[1]).all():
        raise RunError(
            f"{where}: 'min' must hold three numbers below those of 'max', got {shown(f'{low!r} and {high!r}')}"
        )
    return Crop(box, frame)


def read_crop(folder: Path) -> Crop | None:
    """The crop of a run folder; None where it has none. Raises RunError if the file is broken."""
    file = folder / CROP
    if not file.exists():
        return None
    content = read_json(file, RunError, "the crop")
    if not isinstance(content, dict):
        raise RunError(f"{shown(file)} must be an object with keys, got {content!r:.80}")
    return crop_of(content.get("min"), content.get("max"), content.get("frame", "files"), shown(file))
