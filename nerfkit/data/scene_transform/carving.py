# SPDX-License-Identifier: Apache-2.0
"""The box of an object from its silhouettes: around all that the cameras which see it have in theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from nerfkit.data.capture import Note, PosedImage
from nerfkit.data.scene_transform.doubts import Silhouettes, share_of_rays
from nerfkit.data.scene_transform.frame import Frame, corner_text
from nerfkit.data.scene_transform.rig import Rig, half_tangents, measure

HELD = 0.99  # share of an object's rays that its box has to meet
SMALL = 0.25  # of the sides of a box, below which an object is of another unit
USUAL_SIDE, FAR = 2.4, 1e10  # of an object in the model's frame, where its box is found here; the box ends all rays
CELLS, PASSES = 32, 4  # along a side; each pass looks closer
SEEN, MISSED = 0.5, 0.1  # share of the cameras that have to see a place, and of these that may see nothing there


def with_its_box(frame: Frame, images: Sequence[PosedImage], silhouettes: Silhouettes) -> Frame:
    """`frame` of an object, or one in which its box holds what the `silhouettes` of some of the images show.

    It stays as it is where its box does, and is not of another unit.
    """
    seen = [image for image in images if image.name in silhouettes and silhouettes[image.name].any()]
    seen = [replace(image, camera_to_world=frame.to_model(image.camera_to_world)) for image in seen]
    rig = measure(np.stack([image.camera_to_world for image in seen])) if seen else None
    if rig is None or rig.focus is None:
        return frame
    held, side = share_of_rays(seen, frame.box, silhouettes), np.ptp(frame.box, axis=0).max()
    if held >= HELD and max(_size(image, silhouettes[image.name], rig.focus) for image in seen) >= SMALL * side:
        return frame
    hull = _hull(seen, silhouettes, rig)
    if hull is None or share_of_rays(seen, hull, silhouettes) < HELD:
        text = f"the box meets {held:.1%} of the object's rays, and alpha leads to no other; give data.box"
        return replace(frame, notes=(*frame.notes, Note("warning", text)))
    center, scale = hull.mean(0), USUAL_SIDE / np.ptp(hull, axis=0).max()
    box = scale * (hull - center)
    unit = {"center": frame.to_input(center), "scale": scale * frame.scale, "near": scale * frame.near, "far": FAR}
    text = (
        f"box {corner_text(box)} instead, found from alpha in {len(seen)} images; one model unit is "
        f"{1 / unit['scale']:.4g} input units: the box above meets {held:.1%} of the object's rays, and is "
        f"{side / np.ptp(hull, axis=0).max():.2g} times as long as the object"
    )
    return replace(frame, **unit, box=box, notes=(*frame.notes, Note("info", text)))


def _size(image: PosedImage, silhouette: np.ndarray, focus: np.ndarray) -> float:
    """How long the object is that an image shows, if it is at the `focus`; up to its diagonal."""
    distance = np.linalg.norm(image.camera_to_world[:, 3] - focus)
    extents = [np.ptp(np.flatnonzero(silhouette.any(axis))) + 1 for axis in (0, 1)]  # columns, rows
    tangents = 2 * np.array(half_tangents(image.lens))
    return float(np.linalg.norm(tangents * extents) / len(silhouette) * distance)


def _hull(images: Sequence[PosedImage], silhouettes: Silhouettes, rig: Rig) -> np.ndarray | None:
    """The box [2, 3] of the visual hull, in the frame of the poses; none where the cameras do not enclose one."""
    reach = np.linalg.norm(rig.positions - rig.focus, axis=1).max()
    box = rig.focus + np.array([[-reach], [reach]])
    for _ in range(PASSES):
        steps = (np.arange(CELLS) + 0.5) / CELLS
        unit = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
        centers, cell = box[0] + unit * np.ptp(box, axis=0), np.ptp(box, axis=0) / CELLS
        seen, missed = sum(_looks_at(image, silhouettes[image.name], centers, cell).astype(int) for image in images)
        kept = centers[(seen >= SEEN * len(images)) & (missed <= MISSED * seen)]
        if not len(kept):
            return None
        box = np.stack([kept.min(0) - cell / 2, kept.max(0) + cell / 2])
    return box


def _looks_at(image: PosedImage, silhouette: np.ndarray, centers: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Which cells, by their centers [N, 3], are in the image, and which of these are not in its silhouette, [2, N]."""
    lens, side = image.lens, len(silhouette)
    local = (centers - image.camera_to_world[:, 3]) @ image.camera_to_world[:, :3] * [1.0, -1, -1]
    sides = np.array([lens.width, lens.height])
    x, y = (lens.project(torch.from_numpy(local)).numpy() / sides * side).T
    is_in = (x >= 0) & (x < side) & (y >= 0) & (y < side)  # which NaN is not
    depth = np.maximum(local[:, 2], 1e-9 * np.abs(local).max())
    half = max(np.array(lens.focal) / sides) * side * np.linalg.norm(cell) / 2 / depth  # of a cell, in the image
    sums = np.pad(silhouette.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    x, y = np.nan_to_num([x, y])
    left, top, right, bottom = np.clip([x - half, y - half, x + half + 1, y + half + 1], 0, side).astype(int)
    count = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return np.stack([is_in, is_in & (count == 0)])
