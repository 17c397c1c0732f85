# SPDX-License-Identifier: Apache-2.0
"""How long a unit of the scene's files is, kept with a run as `scale.json`, and so its geometry in metres.

    {"metres_per_unit": 0.25, "measured": [x, y, z, x, y, z, metres] or null}

Two points that were measured are in the coordinates of the scene's files.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import numpy as np

from nerfkit.data.scene_transform.transform import SceneTransform, identity_transform
from nerfkit.errors import RunError, UserError
from nerfkit.safe_io import printable, read_json
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run

SCALE = "scale.json"  # in a run folder
MAX_BYTES = 2**16
UNKNOWN = (
    "lengths are in units of the scene's files, which may be of any length, as COLMAP's are; for metres give --scale, "
    "or --measure two points and their distance"
)

Measured = tuple[float, float, float, float, float, float, float]


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """The content of its file."""

    metres_per_unit: float
    measured: Measured | None = None


def given(scale: float | None, measured: Measured | None) -> Scale | None:
    """The scale that options state; raises UserError for points that say nothing."""
    if scale is not None and measured is not None:
        raise UserError("--scale and --measure both say how long a unit is; leave out one of them")
    if measured is None:
        return None if scale is None else Scale(scale)
    distance = math.dist(measured[:3], measured[3:6])
    if not (0 < distance < math.inf and 0 < measured[6] < math.inf):
        raise UserError(
            f"--measure: two points {distance:g} units apart cannot be {measured[6]:g} m apart; give x y z of one, of "
            "another, and their distance in metres"
        )
    return Scale(measured[6] / distance, measured)


def keep(run: Run, scale: Scale) -> None:
    RunFolder.existing(run.folder).write(SCALE, json.dumps(msgspec.to_builtins(scale)) + "\n")


def kept(run: Run) -> Scale | None:
    """The scale of a run folder; None if it has none. Raises RunError if the file is broken."""
    file = run.folder / SCALE
    if not file.exists():
        return None
    try:
        scale = msgspec.convert(read_json(file, RunError, "the scale", MAX_BYTES), Scale)
    except msgspec.ValidationError as error:
        raise RunError(f"{printable(file)} is no scale: {error}; correct it, or delete the file") from None
    if not 0 < scale.metres_per_unit < math.inf:
        raise RunError(f"{printable(file)}: 'metres_per_unit' must be above 0; correct it, or delete the file")
    return scale


def in_metres(transform: SceneTransform | None, scale: Scale) -> SceneTransform:
    """The transform to the model from the files' frame in metres, of which `transform` is in their units."""
    transform = transform or identity_transform(np.array([[-1.0, -1, -1], [1, 1, 1]]))
    metres = scale.metres_per_unit
    return replace(transform, scale=transform.scale / metres, center=transform.center * metres)
