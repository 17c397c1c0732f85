# SPDX-License-Identifier: Apache-2.0
"""Whether the scene is in a box that was stated: the sparse points, the rays of the images, and what they look at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.scene_transform.frame import corner_text
from nerfkit.data.scene_transform.rig import evenly, measure, vector_text
from nerfkit.errors import SceneError
from nerfkit.ops.march import box_span

FEW = 0.01  # share of the points inside, or of the rays that meet the box, below which there is a warning
NEXT_TO_NONE = 1e-4  # of the rays: nothing can be trained
VIEWS, SIDE = 256, 17  # evenly spaced, whose rays are tried; rays of each, both ways
FOCUSED, NEAR_AXES = 0.9, 0.3  # share of cameras before their common point; mean distance of their axes from it


def doubts_of_box(capture: Capture, images: Sequence[PosedImage], box: np.ndarray) -> list[str]:
    """A line if hardly any sparse point is in the `box` [2, 3], or hardly any ray of the training `images` meets it."""
    if not images:
        return []
    rays, inside, focus = share_of_rays(images, box), _inside(_points(capture), box), common_point(images)
    missed = focus is not None and not _inside(focus[None], box)
    if rays >= FEW and (not missed if inside is None else inside >= FEW):
        return []
    return [_found(capture, focus, box, rays, inside)]


def check_met(capture: Capture, images: Sequence[PosedImage], box: np.ndarray) -> None:
    """Raise SceneError if next to no ray of the training `images` meets the `box` [2, 3]."""
    rays, points = share_of_rays(images, box), _points(capture)
    if rays < NEXT_TO_NONE:
        raise SceneError(_found(capture, common_point(images), box, rays, _inside(points, box)))


def share_of_rays(images: Sequence[PosedImage], box: np.ndarray) -> float:
    """Share of the rays of `images`, in the files' frame, that meet the `box` [2, 3]."""
    chosen = [images[k] for k in evenly(len(images), VIEWS)]
    local = {lens: _directions(lens) for lens in {image.lens for image in chosen}}
    met = []
    for image in chosen:
        rotation, position = np.split(image.camera_to_world, [3], axis=1)
        directions = torch.from_numpy(local[image.lens] @ rotation.T)
        origins = torch.from_numpy(position.T).expand_as(directions)
        enter, leave = box_span(origins, directions, torch.from_numpy(box), 0.0, math.inf)
        met.append((enter < leave).numpy())
    return float(np.concatenate(met).mean())


def common_point(images: Sequence[PosedImage]) -> np.ndarray | None:
    """The point [3] that the cameras look at; none if they look at no one point."""
    rig = measure(np.stack([image.camera_to_world for image in images]))
    if rig.focus is None or rig.in_front < FOCUSED or rig.miss > NEAR_AXES:
        return None
    return rig.focus


def _directions(lens: Lens) -> np.ndarray:
    """Unit directions [R, 3] of rays all over the image, in OpenGL axes."""
    across, down = (torch.arange(SIDE, dtype=torch.float64) + 0.5) / SIDE * torch.tensor([[lens.width], [lens.height]])
    directions, _ = lens.unproject(torch.cartesian_prod(across, down))
    directions = directions.numpy() * [1.0, -1, -1]
    return directions[np.isfinite(directions).all(1)]


def _points(capture: Capture) -> np.ndarray:
    """Sparse points [P, 3] at a place."""
    positions = capture.points.positions if capture.points is not None else np.zeros((0, 3))
    return positions[np.isfinite(positions).all(1)]


def _inside(points: np.ndarray, box: np.ndarray) -> float | None:
    """Share of `points` [P, 3] in the box; none without any."""
    return float(((points >= box[0]) & (points <= box[1])).all(1).mean()) if len(points) else None


def _found(capture: Capture, focus: np.ndarray | None, box: np.ndarray, rays: float, inside: float | None) -> str:
    parts = [f"{_percent(rays)} of the rays of the training views meet it"]
    if inside is not None:
        points = _points(capture)
        middle = corner_text(np.quantile(points, (0.05, 0.95), axis=0))
        parts += [f"{_percent(inside)} of {len(points)} sparse points are inside, most lie from {middle}"]
    if focus is not None:
        parts.append(f"the cameras look at {vector_text(focus)}")
    return (
        f"data.box {corner_text(box)}: {', '.join(parts)}; set data.box around what is to be modelled, in the "
        "coordinates of the files, or leave it out"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
