# SPDX-License-Identifier: Apache-2.0
"""What the poses of cameras say of how they were held: what they look at, from how far, and which way is up."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Points
from nerfkit.data.scene_transform.transform import unit

MAX_PAIRED = 2000  # cameras, evenly spaced, of which every pair is compared
MAX_OBSERVATIONS = 2_000_000  # evenly spaced, whose depths are looked at
MAX_UNTRACKED = (64, 20_000)  # cameras and points, where nothing says which sees which
PARALLEL = 1e-10  # mean squared sine below which axes have no nearest point
TINY = 1e-9  # of the coordinates: a length that is rounding
LEVEL = 0.5  # sine of 30 degrees: right axes farther off the horizon say nothing of it
VARIED = 0.17  # sine of 10 degrees: right axes closer together than that do not span the horizon
TURNED = 0.8  # length of the mean up axis of cameras that hardly turn around their right ones
UNDECIDED = 0.1  # length of a mean of unit vectors that cancel
STEEPEST = 3.0  # half an image's side at depth 1, at most


@dataclass(frozen=True, eq=False)
class Rig:
    """V cameras as a whole, in the frame and units of their poses."""

    poses: np.ndarray  # [V, 3, 4] camera-to-world, OpenGL axes
    mean_position: np.ndarray  # [3]
    baseline: float  # largest distance of a camera from the mean position; 0 where it is rounding
    along: float  # of the baseline, the largest share that runs along the mean viewing direction
    alignment: float  # length of the mean viewing direction
    low_dot: float  # 5 % quantile of the dots of all pairs of viewing directions
    focus: np.ndarray | None  # [3] nearest point of the axes that have it in front; none if they are parallel
    in_front: float  # share of all cameras that have the focus in front of them
    distance: float  # mean of the cameras' distances to the focus
    spread: float  # standard deviation of these distances over their mean
    miss: float  # mean distance of the axes from the focus over the mean distance of the cameras

    @property
    def positions(self) -> np.ndarray:
        return self.poses[:, :, 3]

    @property
    def directions(self) -> np.ndarray:
        """[V, 3] viewing directions."""
        return -self.poses[:, :, 2]

    @property
    def baselines_away(self) -> float:
        """Distance to the focus over the baseline; infinite without focus or without baseline."""
        return self.distance / self.baseline if self.focus is not None and self.baseline > 0 else np.inf


class Found(NamedTuple):
    value: np.ndarray | float
    why: str
    is_guess: bool = False  # nothing says it for sure


def measure(poses: np.ndarray) -> Rig:
    """The numbers of cameras with `poses` [V, 3, 4], V >= 1."""
    positions, directions = poses[:, :, 3], -poses[:, :, 2]
    mean = positions.mean(0)
    offsets = positions - mean
    baseline, farthest = float(np.linalg.norm(offsets, axis=1).max()), float(np.abs(positions).max())
    if baseline <= TINY * farthest:
        baseline = 0.0
    tiny = TINY * max(baseline, farthest)
    looking = directions.mean(0)
    alignment = float(np.linalg.norm(looking))
    along = float(np.abs(offsets @ looking).max()) / (alignment * baseline) if alignment * baseline > 0 else 0.0
    focus = _focus(positions, directions, tiny)
    in_front = distance = spread = miss = 0.0
    if focus is not None:
        depths = np.einsum("ij,ij->i", directions, focus - positions)
        in_front = float((depths > tiny).mean())
        distances = np.linalg.norm(focus - positions, axis=1)
        distance = float(distances.mean())
        if distance > 0:
            spread = float(distances.std()) / distance
            miss = float(np.sqrt(np.maximum(distances**2 - depths**2, 0)).mean()) / distance
    some, low_dot = directions[evenly(len(directions), MAX_PAIRED)], 1.0
    if len(some) > 1:
        low_dot = float(np.quantile((some @ some.T)[np.triu_indices(len(some), 1)], 0.05))
    return Rig(poses, mean, baseline, along, alignment, low_dot, focus, in_front, distance, spread, miss)


def find_up(rig: Rig) -> Found:
    """The unit vector [3] that points up: the direction that right axes are most at right angles to, for cameras are
    mostly held level; where all of these point the same way, the mean of up axes, at right angles to them."""
    right, up, back = (rig.poses[:, :, column] for column in range(3))  # [V, 3] each
    mean = up.mean(0)
    values, vectors = np.linalg.eigh(right.T @ right / len(right))  # ascending, and their sum is 1
    tilt, variety = np.sqrt(np.maximum(values[:2], 0))
    if tilt > LEVEL:
        if np.linalg.norm(mean) > UNDECIDED:
            return Found(unit(mean), f"mean of the cameras' up axes, not held level ({tilt:.2f})")
        return Found(unit(up[0]), "the first camera's, as the cameras' up axes cancel; check it", True)
    if variety > VARIED:
        hints = mean, back.mean(0), up[0], back[0]  # cameras that look along the vertical mostly look down
        degrees = np.degrees(np.arcsin(min(tilt, 1.0)))
        why = f"the cameras are held level, to within {degrees:.1f} degrees"
        return Found(_signed(vectors[:, 0], hints, UNDECIDED), why)
    common = vectors[:, 2]
    flat = mean - common * (mean @ common)
    if np.linalg.norm(flat) > TURNED:
        return Found(unit(flat), "mean of the cameras' up axes, as their right axes point the same way")
    why = "the cameras' right axis, which they turn around: rolled by 90 degrees; check it"
    return Found(_signed(common, (back.mean(0), right[0]), UNDECIDED / 2), why, is_guess=True)


def _signed(axis: np.ndarray, hints: Iterable[np.ndarray], least: float) -> np.ndarray:
    """`axis` [3] or its opposite: the one that the first of the `hints` with a share along it points to."""
    return axis * np.sign(next((hint @ axis for hint in hints if abs(hint @ axis) > least), 1.0))


def half_angles(lens: Lens) -> tuple[float, float]:
    """Angles [radians] from the axis to the middles of an image's sides, of planes without distortion."""
    if lens.is_flat:
        return tuple(math.atan(n / 2 / f) for n, f in zip((lens.width, lens.height), lens.focal, strict=True))
    sides = torch.tensor([[lens.width / 2, 0], [0, lens.height / 2]]) + torch.tensor(lens.center)
    across, down = lens.unproject(sides)[0][:, 2].clamp(-1, 1).acos().nan_to_num(math.pi).tolist()
    return across, down


def half_tangents(lens: Lens) -> tuple[float, float]:
    """About half the width and half the height of an image at depth 1: distortion is left out."""
    return tuple(math.tan(min(angle, math.atan(STEEPEST))) for angle in half_angles(lens))


def observed_depths(poses: np.ndarray, points: Points, training: np.ndarray, lenses: Sequence[Lens]) -> np.ndarray:
    """Depths z > 0 [K] of points in the views `training` [V, bool] that see them, or without tracks may see them;
    distances where these may see beyond 90 degrees."""
    wide = np.array([lens.is_wide for lens in lenses])
    if len(points.views):
        index = evenly(len(points.views), MAX_OBSERVATIONS)
        point, view = np.searchsorted(np.cumsum(points.track_lengths), index, side="right"), points.views[index]
        used = training[view]
        point, view = point[used], view[used]
        ways = points.positions[point] - poses[view, :, 3]
        depths = -np.einsum("ij,ij->i", ways, poses[view, :, 2])
        depths[wide[view]] = np.linalg.norm(ways[wide[view]], axis=1)
        return depths[depths > 0]
    cloud = points.positions[evenly(len(points.positions), MAX_UNTRACKED[1])]
    views = np.flatnonzero(training)[evenly(int(training.sum()), MAX_UNTRACKED[0])]
    seen = ((view, seen_by(cloud, poses[view], lenses[view])) for view in views)
    return np.concatenate([np.linalg.norm(local, axis=1) if wide[view] else -local[:, 2] for view, local in seen])


def seen_by(points: np.ndarray, pose: np.ndarray, lens: Lens) -> np.ndarray:
    """Those of `points` [P, 3] that lie inside the edges of a camera's image, in its axes, [K, 3]."""
    local = (points - pose[:, 3]) @ pose[:, :3]
    if not lens.is_flat:
        pixels = lens.project(torch.from_numpy(local * [1.0, -1, -1])).numpy()
        return local[((pixels >= 0) & (pixels <= [lens.width, lens.height])).all(axis=1)]  # NaN is not
    (x, y, z), tangents = local.T, half_tangents(lens)
    return local[(z < 0) & (np.abs(x) < -z * tangents[0]) & (np.abs(y) < -z * tangents[1])]


def _focus(positions: np.ndarray, directions: np.ndarray, tiny: float) -> np.ndarray | None:
    """Point [3] nearest to the axes, again and again without those that have it behind them; none if parallel."""
    active, focus = np.ones(len(positions), dtype=bool), None
    for _ in range(50):
        along, mean = directions[active], positions[active].mean(0)
        offsets = positions[active] - mean
        across = np.eye(3) - along.T @ along / len(along)
        if np.linalg.eigvalsh(across)[0] < PARALLEL:
            break
        target = (offsets - along * np.einsum("ij,ij->i", along, offsets)[:, None]).mean(0)
        focus = mean + np.linalg.solve(across, target)  # of least squared distance
        now = np.einsum("ij,ij->i", directions, focus - positions) > tiny
        if now.sum() < 2 or (now == active).all():
            break
        active = now
    return focus


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` indices below `count`, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
