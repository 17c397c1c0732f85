# SPDX-License-Identifier: Apache-2.0
"""The frame of cameras: the kind of scene, and from that its centre, radius and axes.

The scene is one of four kinds; the first whose test holds:

    object         the images have alpha, or are cut out: nothing matters outside of the box
    forward        the cameras look the same way, at something far compared to how far they moved
    inward         most cameras have a common point in front of them, at similar distances
    walk-through   anything else
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from nerfkit.data.capture import Capture
from nerfkit.data.notes import Note
from nerfkit.data.scene_transform.evidence import Evidence, gather
from nerfkit.data.scene_transform.extent import with_extent
from nerfkit.data.scene_transform.frame import Frame, unit_of
from nerfkit.data.scene_transform.rig import Found, Rig, find_up, vector_text

UP = np.array([0.0, 0, 1])  # of the model's frame
FORWARD_DOT, FORWARD_BASELINES = 0.5, 2.0  # above which a scene is forward
INWARD_SHARE, INWARD_SPREAD = 0.9, 0.5  # cameras with the focus in front; spread of their distances
CENTER_BASELINES = 5.0  # a focus farther away than that is too uncertain to be the centre
GUESSED_BASELINES = 4.0  # to the content of a forward scene of which nothing says how far it is
RADIUS_QUANTILE = 0.9  # of the cameras' distances from the centre


def find_frame(capture: Capture, training: Collection[str] | None = None, has_alpha: bool = False) -> Frame:
    """The frame of a capture; near and far follow from the images called `training` alone, from all if None.

    Poses that leave something open are no error: a note says what was assumed.
    """
    evidence, lines = gather(capture, training)
    kind, why = _kind(evidence, has_alpha)
    lines.append(f"kind {kind}: {why}")
    upward = find_up(evidence.rig) if capture.up is None else Found(unit_of(capture.up, "up"), "given")
    lines.append(f"up {vector_text(upward.value)} in the input: {upward.why}")
    if upward.is_guess:
        lines.append(Note("warning", "the cameras do not say for sure which way is up; check up, or give it"))
    center = _center(evidence, kind)
    lines.append(f"center {vector_text(center.value)} in the input: {center.why}")
    radius = _radius(evidence, kind, center.value)
    lines.append(f"radius (1 model unit) {radius.value:.4g} input units: {radius.why}")
    if center.is_guess or radius.is_guess:
        text = (
            "neither poses nor points say how far the scene is, so its size is a guess; "
            "give sparse points, or data.box around what the cameras see"
        )
        lines.append(Note("warning", text))
    rotation = _rotation(evidence.rig, upward.value)
    frame = Frame(rotation, center.value, 1 / radius.value, kind, 0.0, math.inf, np.zeros((2, 3)), UP.copy())
    return with_extent(frame, evidence, lines)


def _kind(evidence: Evidence, has_alpha: bool) -> tuple[str, str]:
    """The kind, and the test that decided."""
    if has_alpha:
        return "object", "the images have alpha, or are cut out"
    rig, away = evidence.rig, evidence.rig.baselines_away
    if rig.focus is None and rig.baseline > 0 and evidence.middle is not None:
        away = evidence.middle[0] / rig.baseline
    moved = rig.focus is not None or rig.along < 0.9  # not only along parallel axes
    if rig.low_dot > FORWARD_DOT and away > FORWARD_BASELINES and moved:
        return "forward", (
            f"5 % quantile of dots {rig.low_dot:.2f} > {FORWARD_DOT} and distance/baseline {_ratio(away)} > "
            f"{FORWARD_BASELINES:g}"
        )
    not_forward = f"not forward (dots {rig.low_dot:.2f}, distance/baseline {_ratio(away)})"
    numbers = f"focus in front of {rig.in_front:.0%}, std/mean {rig.spread:.2f}"
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.spread < INWARD_SPREAD:
        return "inward", f"{numbers}: at least {INWARD_SHARE:.0%}, below {INWARD_SPREAD}; {not_forward}"
    return "walk-through", f"not inward ({numbers}); {not_forward}"


def _center(evidence: Evidence, kind: str) -> Found:
    """The centre [3] in the input's frame."""
    rig = evidence.rig
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.baselines_away < CENTER_BASELINES:
        return Found(rig.focus, "focus point")
    if kind != "forward" or rig.alignment < 1e-6:
        return Found(rig.mean_position, "mean position of the cameras")
    ahead = rig.directions.mean(0) / rig.alignment
    if evidence.middle is not None:
        depth, what = evidence.middle
        return Found(rig.mean_position + depth * ahead, f"on the mean axis at {depth:.4g}, {what}")
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.baseline > 0:
        return Found(rig.focus, "focus point")
    if rig.baseline > 0:
        depth = GUESSED_BASELINES * rig.baseline
        why = f"a guess, {GUESSED_BASELINES:g} baselines ahead on the mean axis"
    else:
        depth, why = 1.0, "a guess, one input unit ahead, as the cameras are all at one point"
    return Found(rig.mean_position + depth * ahead, why, is_guess=True)


def _radius(evidence: Evidence, kind: str, center: np.ndarray) -> Found:
    """What is 1 in the model's frame [input units]."""
    distances = np.linalg.norm(evidence.rig.positions - center, axis=1)
    tiny = 1e-9 * np.abs(evidence.rig.positions).max()
    depth, what = evidence.middle or (float(distances.mean()), "distance of the center")
    if kind == "forward" and depth > tiny:
        tangent = float(np.median(evidence.tangents[:, 0]))
        return Found(tangent * depth, f"half an image's width ({tangent:.2f} at depth 1) at {depth:.4g}, {what}")
    reach = float(np.quantile(distances, RADIUS_QUANTILE))
    if reach > tiny:
        return Found(reach, f"{RADIUS_QUANTILE:.0%} quantile of the cameras' distances from the center")
    if depth > tiny:
        return Found(depth, f"{what}, as the cameras are all at the center")
    why = "a guess, as the cameras are all at the center and nothing says how far the scene is"
    return Found(1.0, why, is_guess=True)


def _rotation(rig: Rig, up: np.ndarray) -> np.ndarray:
    """Rows east, north, up [3, 3]: north is where the cameras look, or the longer side of the ground they cover."""
    mean = rig.directions.mean(0)
    flat = mean - up * (mean @ up)
    if np.linalg.norm(flat) > 0.3:
        return _axes(np.cross(flat, up), up)
    offsets = rig.positions - rig.mean_position
    offsets = offsets - np.outer(offsets @ up, up)
    values, vectors = np.linalg.eigh(offsets.T @ offsets)
    if rig.baseline > 0 and values[1] < 0.5 * values[2]:
        along = offsets @ vectors[:, 2]
        start = along[np.argmax(np.abs(along) > 1e-3 * rig.baseline)]  # the first camera that is not in the middle
        return _axes(vectors[:, 2] * (-1.0 if start > 0 else 1.0), up)
    axis = next(rig.poses[0, :, k] for k in range(2) if abs(rig.poses[0, :, k] @ up) < 0.87)  # right, else up
    return _axes(axis, up)


def _axes(east: np.ndarray, up: np.ndarray) -> np.ndarray:
    """A rotation [3, 3] of determinant 1 with rows near `east` (made orthogonal), north, `up`."""
    east = east - up * (east @ up)
    east = east / np.linalg.norm(east)
    return np.stack([east, np.cross(up, east), up])


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "unlimited"
