# SPDX-License-Identifier: Apache-2.0
"""What a frame is found from: the cameras, the points that they see, and bounds of depths."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nerfkit.data.capture import Points
from nerfkit.data.notes import Note
from nerfkit.data.rig import Rig, measure, observed_depths
from nerfkit.errors import SceneError

TANGENT = 0.6  # half an image's side at depth 1, where no lens is given
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


def gather(poses, points, bounds, training, tangents) -> tuple[Evidence, list[str | Note]]:
    """What there is to look at, and lines that say it; raises SceneError for poses that are none."""
    poses = np.asarray(poses, dtype=np.float64)
    if poses.ndim != 3 or poses.shape[1:] != (3, 4) or not len(poses):
        raise SceneError(f"poses must have the shape [V, 3, 4] with at least one camera, got {list(poses.shape)}")
    if not np.isfinite(poses).all():
        raise SceneError(f"the pose of camera {int(np.flatnonzero(~np.isfinite(poses).all((1, 2)))[0])} is not finite")
    training = np.ones(len(poses), dtype=bool) if training is None else np.asarray(training, dtype=bool)
    tangents = np.full((len(poses), 2), TANGENT) if tangents is None else np.asarray(tangents, dtype=np.float64)
    rig = measure(poses)
    lines: list[str | Note] = [*rig.describe()]
    if not training.any():
        lines.append(Note("warning", "no training images are named; near and far follow from all"))
        training = np.ones(len(poses), dtype=bool)
    depths = np.zeros(0)
    if points is not None and not (len(points.positions) and np.isfinite(points.positions).all()):
        points, text = _usable(points)
        lines.append(text)
    if points is not None:
        depths, what = observed_depths(poses, points, training, tangents)
        lines.append(f"points: {len(points.positions)}, {_depth_text(depths, rig)} over {len(depths)} {what}")
        if rig.distance > 0:
            within = np.linalg.norm(points.positions - rig.focus, axis=1) < 2 * rig.distance
            lines.append(f"points within twice the cameras' distance from the focus: {within.mean():.1%}")
    bounds = np.zeros((0, 2)) if bounds is None else np.asarray(bounds, dtype=np.float64)[training]
    bounds = bounds[np.isfinite(bounds).all(1) & (bounds > 0).all(1)]
    if len(bounds):
        lines.append(f"bounds of {len(bounds)} training images: {bounds[:, 0].min():.4g} to {bounds[:, 1].max():.4g}")
    return Evidence(rig, training, tangents, points, depths, bounds), lines


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
