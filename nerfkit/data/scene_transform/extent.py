# SPDX-License-Identifier: Apache-2.0
"""How far a scene reaches in the model's frame: near, far and the box of a sampler in a box."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nerfkit.data.notes import Note, notes_of
from nerfkit.data.scene_transform.evidence import EXTREME, Evidence
from nerfkit.data.scene_transform.frame import Frame, check_extent, corner_text
from nerfkit.errors import SceneError

NEAR_FACTOR = 0.5  # near: of the least depth
NEAR_RADIUS, NEAR_PATH = 0.05, 0.01  # near without depths [radii]; the radius of a walk is the length of its path
BOUNDS_FACTORS = (0.9, 1.2)  # of the nearest and the farthest bound
FAR_RADIUS = 256.0  # where nothing limits the scene: beyond that nothing moves in a contracted cube
FORWARD_BOX = 4.0  # radii, at most, from the centre to the side of a forward scene's box
UNBOUNDED_BOX = (1.0, 2.0, 4.0)  # half the side of the box [radii]: at least, without points, at most
TRACK = 3  # images that have to see a point which shapes the box of an object
GROWN = 0.1  # share of its side by which the box of an object's points grows, at either end
INSIDE = 0.95  # share of points inside the box below which there is a warning


def with_extent(frame: Frame, evidence: Evidence, lines: list[str | Note]) -> Frame:
    """`frame` with near, far, box and notes."""
    cloud = frame.to_model(evidence.points.positions) if evidence.points is not None else None  # [P, 3]
    near, why = _near(frame, evidence)
    lines.append(f"near {near:.4g} model units: {why}")
    box = None
    if frame.kind == "object":
        box, box_why = _object_box(frame, evidence, cloud)
    elif frame.kind != "forward":
        box, box_why = _unbounded_box(cloud)
    far, far_why = _far(frame, evidence, box)
    if far <= near:
        text = (
            f"near, {near:.4g} model units ({why}), lies beyond all else, which ends at {far:.4g} "
            f"({far_why}); check that sparse points and poses are of one frame and unit, or give sampling.near"
        )
        lines.append(Note("warning", text))
        far, far_why = 2 * near, "twice near, which lies beyond all else"
    lines.append(f"far {far:.4g} model units: {far_why}")
    if box is None:
        box, box_why = _forward_box(frame, evidence, near, far)
    lines.append(f"box {corner_text(box)} in the model's frame: {box_why}")
    check_extent(frame.scale, near, far, box, "frame", SceneError)
    if cloud is not None:
        lines += _inside(cloud, box)
    return replace(frame, near=near, far=far, box=box, notes=notes_of(*lines))


def _near(frame: Frame, evidence: Evidence) -> tuple[float, str]:
    if len(evidence.bounds):
        return float(evidence.bounds[:, 0].min()) * BOUNDS_FACTORS[0] * frame.scale, "0.9 x the nearest bound"
    if len(evidence.depths):
        depth = float(np.quantile(evidence.depths, EXTREME))
        return NEAR_FACTOR * depth * frame.scale, "0.5 x the 0.1 % quantile of depths"
    near = NEAR_PATH if frame.kind == "walk-through" else NEAR_RADIUS
    return near, f"{near:g} of the radius, as there are neither points nor bounds"


def _far(frame: Frame, evidence: Evidence, box: np.ndarray | None) -> tuple[float, str]:
    if len(evidence.bounds):
        return float(evidence.bounds[:, 1].max()) * BOUNDS_FACTORS[1] * frame.scale, "1.2 x the farthest bound"
    if frame.kind == "object" and box is not None:
        eyes = frame.to_model(evidence.rig.positions)
        reach = np.maximum(np.abs(eyes - box[0]), np.abs(eyes - box[1]))  # [V, 3] to the farthest corner
        return float(np.linalg.norm(reach, axis=1).max()), "largest distance of a camera from a corner of the box"
    if frame.kind == "forward" and len(evidence.depths):
        depth = float(np.quantile(evidence.depths, 1 - EXTREME))
        return BOUNDS_FACTORS[1] * depth * frame.scale, "1.2 x the 99.9 % quantile of depths"
    return FAR_RADIUS, f"{FAR_RADIUS:g} radii, as nothing limits the scene"


def _object_box(frame: Frame, evidence: Evidence, cloud: np.ndarray | None) -> tuple[np.ndarray, str]:
    """Around the points; without any, around what the cameras are around."""
    if cloud is not None:
        tracked = cloud[evidence.points.track_lengths >= TRACK]
        used, what = (tracked, f"points seen by {TRACK} or more") if len(tracked) >= 4 else (cloud, "points")
        box = np.quantile(used, (0.005, 0.995), axis=0)
        sides = box[1] - box[0]
        if sides.max() > 0:
            grow = GROWN * np.maximum(sides, GROWN * sides.max())  # of flat things, too, the box is one
            return box + [-grow, grow], f"0.5 to 99.5 % of {what}, longer by {GROWN:.0%} at either end"
    if len(evidence.bounds):
        distances = np.linalg.norm(evidence.rig.positions - frame.center, axis=1)
        reach = frame.scale * max(distances.max() - evidence.bounds[:, 0].min(), 0) * 1.1
        if 0 < reach < 1:
            return _cube(reach), "1.1 x the way from the nearest bound to the center, seen from the farthest camera"
    return _cube(1.0), "the radius, as there are no points"


def _unbounded_box(cloud: np.ndarray | None) -> tuple[np.ndarray, str]:
    """A cube around the centre: nearly all points, and at least the cameras."""
    lowest, unknown, most = UNBOUNDED_BOX
    if cloud is None:
        return _cube(unknown), f"{unknown:g} radii, as there are no points: walls mostly stand behind the cameras"
    reach = float(np.quantile(np.abs(cloud).max(1), 0.99))
    if reach > most:
        return _cube(most), f"{most:g} radii; 99 % of the points would need {reach:.4g}, too coarse for one box"
    half = max(1.1 * reach, lowest)
    return _cube(min(half, most)), f"a cube, 1.1 x the {reach:.3g} that holds 99 % of the points, at least {lowest:g}"


def _forward_box(frame: Frame, evidence: Evidence, near: float, far: float) -> tuple[np.ndarray, str]:
    """Around the training cameras' frusta between `near` and `far`, clipped."""
    poses = frame.to_model(evidence.rig.poses[evidence.training])
    width, height = evidence.tangents[evidence.training].T
    signs = np.array([[-1.0, -1], [-1, 1], [1, -1], [1, 1]])  # of the corners
    rays = np.stack([np.outer(width, signs[:, 0]), np.outer(height, signs[:, 1]), -np.ones((len(poses), 4))], axis=-1)
    rays = np.einsum("vij,vcj->vci", poses[:, :, :3], rays)  # [V, 4, 3] of depth 1
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for depth in (near, min(far, FAR_RADIUS)):
        corners = poses[:, None, :, 3] + depth * rays
        low, high = np.minimum(low, corners.min((0, 1))), np.maximum(high, corners.max((0, 1)))
    box = np.clip(np.stack([low, high]), -FORWARD_BOX, FORWARD_BOX)
    box[1] = np.maximum(box[1], box[0] + 0.1)  # of a near beyond the limit
    return box, f"around the training cameras' frusta from near to far, at most {FORWARD_BOX:g} radii from the center"


def _inside(cloud: np.ndarray, box: np.ndarray) -> list[str | Note]:
    share = float(((cloud >= box[0]) & (cloud <= box[1])).all(1).mean())
    inside = f"inside of the box: {share:.1%} of {len(cloud)} points"
    if share >= INSIDE:
        return [inside]
    return [inside, Note("warning", f"{1 - share:.0%} of the points lie outside of the box; is it the scene's?")]


def _cube(half: float) -> np.ndarray:
    return np.array([[-half] * 3, [half] * 3])
