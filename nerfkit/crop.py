# SPDX-License-Identifier: Apache-2.0
"""Crop: the part of a scene that is shown, rendered and exported, kept with a run as `crop.json`.

    {"min": [x, y, z], "max": [x, y, z], "frame": "model" or "files", "on": true}

`frame` says in whose coordinates the corners are: the model's, or the scene's files'. Without "on" it counts as on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import RunError
from nerfkit.safe_io import printable, read_json

CROP = "crop.json"  # in a run folder
MAX_BYTES = 2**16

Corner = tuple[float, float, float]


class CropFile(msgspec.Struct, forbid_unknown_fields=True):
    min: Corner
    max: Corner
    frame: Literal["model", "files"]
    on: bool = True


@dataclass(frozen=True)
class Crop:
    """A box along the axes of one of two frames."""

    low: Corner
    high: Corner
    frame: str = "model"  # or files
    to_files: tuple[float, ...] = ()  # [12], rows of [3, 4]: from the model's frame to the files'; none where equal
    where: str = field(default="the crop", compare=False)  # it was given, for messages

    def inside(self, positions: Tensor) -> Tensor:
        """Which of the positions [N, 3] in the model's frame are inside, bool [N]."""
        ends = torch.tensor([self.low, self.high], dtype=torch.float64)
        if self.frame == "files" and self.to_files:  # whose origin may be far away
            matrix = torch.tensor(self.to_files, dtype=torch.float64).view(3, 4)
            positions, ends = positions @ matrix[:, :3].T.to(positions), ends - matrix[:, 3]
        low, high = ends.to(positions)  # not scaled to a cube, which would round what lies on an edge
        return ((positions >= low) & (positions <= high)).all(-1)

    def to_cube(self) -> Tensor:
        """[3, 4] float64, from homogeneous positions in the model's frame to where the crop is -1 to 1 on each axis."""
        ends, rows = torch.tensor([self.low, self.high], dtype=torch.float64), torch.eye(3, 4, dtype=torch.float64)
        if self.frame == "files" and self.to_files:
            rows = torch.tensor(self.to_files, dtype=torch.float64).view(3, 4)
        rows = torch.cat([rows[:, :3], rows[:, 3:] - ends.mean(0)[:, None]], dim=1)
        return rows / ((ends[1] - ends[0]) / 2)[:, None]

    def bounds(self) -> np.ndarray:
        """The smallest box along the axes of the model's frame that holds it, [2, 3] float64."""
        ends = torch.tensor([self.low, self.high], dtype=torch.float64)
        corners = torch.cartesian_prod(*ends.T)  # [8, 3]
        if self.frame == "files" and self.to_files:
            matrix = torch.tensor(self.to_files, dtype=torch.float64).view(3, 4)
            corners = torch.linalg.solve(matrix[:, :3], (corners - matrix[:, 3]).T).T
        return torch.stack([corners.amin(0), corners.amax(0)]).numpy()

    def placed(self, transform: SceneTransform | None) -> Crop:
        """The same where the model's frame lies as `transform` says in the files'."""
        if transform is None:
            return replace(self, to_files=())
        inverse = torch.linalg.inv(torch.from_numpy(transform.matrix()))
        return replace(self, to_files=tuple(inverse[:3].flatten().tolist()))

    def to_json(self, on: bool = True) -> str:
        return json.dumps({"min": list(self.low), "max": list(self.high), "frame": self.frame, "on": on}) + "\n"


def read_crop(run: Path, transform: SceneTransform | None) -> tuple[Crop, bool] | None:
    """The crop of a run folder, placed as its `transform` says, and whether it is on; None if it has none."""
    file = run / CROP
    if not file.exists():
        return None
    content = read_json(file, RunError, "the crop", MAX_BYTES)
    try:
        found = msgspec.convert(content, CropFile)
    except msgspec.ValidationError as error:
        raise RunError(f"{printable(file)} is no crop: {error}; correct it, or delete the file") from None
    return crop_of(found.min, found.max, found.frame, printable(file)).placed(transform), found.on


def crop_of(low: Corner, high: Corner, frame: str, where: str) -> Crop:
    """A crop from its corners and the name of their frame, not placed; raises RunError that begins with `where`."""
    if not all(-1e30 < a < b < 1e30 for a, b in zip(low, high, strict=True)):  # NaN is not
        raise RunError(f"{where}: 'min' {list(low)} must be below 'max' {list(high)} along x, y and z, all finite")
    return Crop(low, high, frame, where=where)


def active_crop(run: Path, transform: SceneTransform | None) -> Crop | None:
    """The crop of a run folder, if it has one that is on."""
    found = read_crop(run, transform)
    return found[0] if found is not None and found[1] else None
