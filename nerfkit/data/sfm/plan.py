# SPDX-License-Identifier: Apache-2.0
"""How poses of photographs are looked for, and what came of it."""

from __future__ import annotations

import msgspec

from nerfkit.reading import shown

MAX_IMAGE_SIZE, FEATURES = 1600, 4096  # pixels of the longer side; per image
DATABASE = "database.db"  # features and matches
ATTEMPTS = {  # name -> what it says, database, request of its mapping
    "incremental": ("incremental mapping", DATABASE, {"stage": "incremental", "loose": False}),
    "loose": ("incremental mapping, lower thresholds", DATABASE, {"stage": "incremental", "loose": True}),
    "global": ("global mapping", "global.db", {"stage": "global"}),
    "thorough": ("incremental mapping, affine features", "affine.db", {"stage": "incremental", "loose": True}),
}
DISTORTION = {"OPENCV": 4, "SIMPLE_RADIAL": 3}  # which of a camera model's parameters is k1


class Plan(msgspec.Struct, frozen=True):
    """How poses are looked for; with another plan, work does not go on but begins again."""

    mode: str  # who shares a lens: see `photographs.camera_mode`
    model: str  # COLMAP's name of the camera model
    is_sequence: bool  # matched with neighbours only
    n_turned: int = 0  # photographs whose stored pixels are not upright
    max_image_size: int = MAX_IMAGE_SIZE
    features: int = FEATURES


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    registered: int
    total: int
    summary: str  # one line
    missing: list[str]  # photographs without a pose
    notes: list[str]


class Record(msgspec.Struct, frozen=True):
    """The file that says what the folder is made of."""

    photographs: dict[str, int]  # bytes by name
    plan: Plan
    outcome: Outcome | None = None  # None while it is worked on


def outcome_of(model: dict, names: list[str]) -> Outcome:
    """What a stage says of its model, in words, with what looks suspicious."""
    lenses = model["lenses"]
    focals = sorted(params[0] for _, params, _, _ in lenses)
    span = f"{focals[0]:.0f}" if len(focals) == 1 else f"{focals[0]:.0f} to {focals[-1]:.0f}"
    kinds = ", ".join(sorted({name for name, _, _, _ in lenses}))
    registered = set(model["registered"]) & set(names)
    summary = (
        f"registered {len(registered)} of {len(names)} photographs, {model['points']} points, {model['error']:.2f} px, "
        f"{len(lenses)} {'lens' if len(lenses) == 1 else 'lenses'} {kinds} f {span}"
    )
    missing = [name for name in names if name not in registered]
    return Outcome(len(registered), len(names), summary, missing, _suspicions(model))


def _suspicions(model: dict) -> list[str]:
    """What looks wrong with a model, four lines at most."""
    notes = []
    for kind, params, width, _ in model["lenses"]:
        if not 0.3 * width <= params[0] <= 5 * width:
            notes.append(f"suspicious: a focal length of {params[0]:.0f} pixels in images {width} wide")
        k1 = params[DISTORTION[kind]] if kind in DISTORTION else 0.0
        if abs(k1) > 0.5:
            notes.append(f"suspicious: a lens distortion k1 of {k1:.2f}")
    if model["error"] > 1.5:
        notes.append(f"suspicious: a mean reprojection error of {model['error']:.2f} pixels")
    return notes if len(notes) <= 4 else [*notes[:3], f"and {len(notes) - 3} notes more like these"]


def some(names: list[str], limit: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(shown(name) for name in names[:limit]) + more
