# SPDX-License-Identifier: Apache-2.0
"""What a frame is found from: the cameras, the points that they see, and bounds of depths."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points
from nerfkit.data.notes import Note
from nerfkit.data.scene_transform.rig import Rig, measure, observed_depths
from nerfkit.errors import SceneError
from nerfkit.reading import shown

STEEPEST = 3.0  # half an image's side at depth 1, at most: of a fisheye it may be anything
EXTREME = 0.001  # quantile of depths that stands for the least, and for the greatest


@dataclass(frozen=True, eq=False)
class Evidence:
    """What `find_frame` looks at, in the input's frame and units."""

    rig: Rig
    training: np.ndarray  # [V] bool
    tangents: np.ndarray  # [V, 2] half the width and height of an image at depth 1
    points: Points | None  # at least one, all finite
    depths: np.ndarray  # [K] of points in training images, > 0
    bounds: np.ndarray  # [B, 2] of training images

    @property
    def middle(self) -> tuple[float, str] | None:
        """Typical depth of the content, and where it is from; none if nothing says it."""
        if len(self.depths):
            return float(np.median(self.depths)), "median depth of the points"
        if len(self.bounds):
            return math.sqrt(self.bounds[:, 0].min() * self.bounds[:, 1].max()), "geometric mean of the bounds"
        return None


def half_tangents(lens: Lens) -> tuple[float, float]:
    """About half the width and half the height of an image at depth 1: distortion is left out."""
    halves = [side / 2 / focal for side, focal in zip((lens.width, lens.height), lens.focal, strict=True)]
    if lens.is_fisheye:  # angles instead of tangents
        halves = [math.tan(min(half, math.atan(STEEPEST))) for half in halves]
    return min(halves[0], STEEPEST), min(halves[1], STEEPEST)


def gather(capture: Capture, training: Collection[str] | None) -> tuple[Evidence, list[str | Note]]:
    """What there is to look at, and lines that say it; `training` as in `find_frame`."""
    images, points = capture.images, capture.points
    if not images:
        raise SceneError(f"capture {shown(capture.name)} has no images")
    poses = np.array([image.camera_to_world for image in images], dtype=np.float64)  # [V, 3, 4]
    if not np.isfinite(poses).all():
        raise SceneError(f"the pose of camera {int(np.flatnonzero(~np.isfinite(poses).all((1, 2)))[0])} is not finite")
    names = {image.name for image in images} if training is None else set(training)
    used = np.array([image.name in names for image in images])
    tangents_of = {lens: half_tangents(lens) for lens in {image.lens for image in images}}
    tangents = np.array([tangents_of[image.lens] for image in images])
    rig = measure(poses)
    lines: list[str | Note] = [*rig.describe()]
    if not used.any():
        lines.append(Note("warning", "no training images are named; near and far follow from all"))
        used[:] = True
    depths = np.zeros(0)
    if points is not None and not (len(points.positions) and np.isfinite(points.positions).all()):
        points, text = _usable(points)
        lines.append(text)
    if points is not None:
        depths, what = observed_depths(poses, points, used, tangents)
        lines.append(f"points: {len(points.positions)}, {_depth_text(depths, rig)} over {len(depths)} {what}")
        if rig.distance > 0:
            within = np.linalg.norm(points.positions - rig.focus, axis=1) < 2 * rig.distance
            lines.append(f"points within twice the cameras' distance from the focus: {within.mean():.1%}")
    bounds = [image.bounds for image, counts in zip(images, used, strict=True) if counts and image.bounds]
    bounds = np.array(bounds, dtype=np.float64).reshape(-1, 2)
    bounds = bounds[np.isfinite(bounds).all(1) & (bounds > 0).all(1)]
    if len(bounds):
        lines.append(f"bounds of {len(bounds)} training images: {bounds[:, 0].min():.4g} to {bounds[:, 1].max():.4g}")
    return Evidence(rig, used, tangents, points, depths, bounds), lines


def _usable(points: Points) -> tuple[Points | None, str | Note]:
    """`points` without those at no place; their tracks go, too."""
    finite = np.isfinite(points.positions).all(1)
    if not finite.any():
        return None, "points: none"
    left = Points(points.positions[finite], points.colors[finite], points.track_lengths[finite], np.zeros(0, np.int64))
    count = f"{int((~finite).sum())} of {len(finite)} points"
    return left, Note("warning", f"{count} have no finite position; they are left out")


def _depth_text(depths: np.ndarray, rig: Rig) -> str:
    if not len(depths):
        return "none of them in front of a training image,"
    low, middle, high = np.quantile(depths, (EXTREME, 0.5, 1 - EXTREME))
    text = f"depths 0.1 % {low:.4g}, 50 % {middle:.4g}, 99.9 % {high:.4g}"
    return f"{text} (50 % is {middle / rig.distance:.2f} of the distance to the focus)" if rig.distance > 0 else text
