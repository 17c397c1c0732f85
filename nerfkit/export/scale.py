# SPDX-License-Identifier: Apache-2.0
"""How long a unit of the scene's files is, kept with a run as `scale.json`, and so its geometry in meters.

    {"meters_per_unit": 0.25, "measured": [x, y, z, x, y, z, meters] or null}

Two points that were measured are in the coordinates of the scene's files.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from nerfkit.data.scene_transform.transform import SceneTransform, identity_transform
from nerfkit.errors import RunError, UserError
from nerfkit.option_types import METERS
from nerfkit.safe_io import printable, read_json
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run

SCALE = "scale.json"  # in a run folder
Measured = tuple[float, float, float, float, float, float, float]


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    meters_per_unit: Annotated[float, msgspec.Meta(ge=METERS.low, le=METERS.high)]
    measured: Measured | None = None

    @classmethod
    def of(cls, measured: Measured) -> Scale:
        """The scale by two points and the meters between them; raises UserError for points that say nothing."""
        distance, meters = math.dist(measured[:3], measured[3:6]), measured[6]
        if not (0 < distance < math.inf and 0 < meters < math.inf):
            raise UserError(
                f"two points {distance:g} units apart cannot be {meters:g} m apart; give x y z of one, of another, and "
                "their distance in meters"
            )
        METERS.check("meters per unit (meters divided by units)", meters / distance)
        return cls(meters / distance, measured)


def scale_of(run: Run, given: float | None, measured: Measured | None) -> Scale | None:
    """The scale of the options, else that of the run folder; None without. Raises UserError or RunError if invalid."""
    if given is not None and measured is not None:
        raise UserError("--scale and --measure both say how long a unit is; leave out one of them")
    if measured is not None:
        try:
            return Scale.of(measured)
        except UserError as error:
            raise UserError(f"--measure: {error}") from None
    if given is not None:
        return Scale(given)
    file = run.folder / SCALE
    if not file.exists():
        return None
    try:
        return msgspec.convert(read_json(file, RunError, "the scale", 2**16), Scale)
    except msgspec.ValidationError as error:
        raise RunError(f"{printable(file)} is not a valid scale file: {error}; correct it or delete it") from None


def keep(folder: RunFolder, scale: Scale) -> None:
    folder.write(SCALE, json.dumps(msgspec.to_builtins(scale)) + "\n")


def in_meters(transform: SceneTransform | None, scale: Scale | None) -> SceneTransform | None:
    """The transform to the model from the files' frame in meters, of which `transform` is in their units."""
    if scale is None:
        return transform
    transform = transform or identity_transform(np.array([[-1.0, -1, -1], [1, 1, 1]]))
    meters = scale.meters_per_unit
    return replace(transform, scale=transform.scale / meters, center=transform.center * meters)
