# SPDX-License-Identifier: Apache-2.0
"""Frame: the one similarity between the files' coordinates and the model's, and how far the scene reaches.

    model = scale * rotation @ (input - center)

In the model's frame +z is up, the centre of interest is the origin, and its radius is 1. Every number that decided
something is in `Frame.text`. The scene is one of four kinds; the first whose test holds:

    object         the images have alpha, or a box is given: nothing matters outside of the box
    forward        the cameras look the same way, at something far compared to how far they moved
    inward         most cameras have a common point in front of them, at similar distances
    walk-through   anything else
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nerfkit.data.capture import Capture, Points
from nerfkit.data.lens import Lens
from nerfkit.data.rig import Rig, find_up, measure, observed_depths, vector_text
from nerfkit.errors import RunError, SceneError

KINDS = ("object", "forward", "inward", "walk-through")
UP = np.array([0.0, 0, 1])  # of the model's frame
FORWARD_DOT, FORWARD_BASELINES = 0.5, 2.0  # above which a scene is forward
INWARD_SHARE, INWARD_SPREAD = 0.9, 0.5  # cameras with the focus in front; spread of their distances
CENTER_BASELINES = 5.0  # a focus farther away than that is too uncertain to be the centre
GUESSED_BASELINES = 4.0  # to the content of a forward scene of which nothing says how far it is
RADIUS_QUANTILE = 0.9  # of the cameras' distances from the centre
NEAR_QUANTILE, NEAR_FACTOR = 0.001, 0.5  # near: factor x quantile of depths
NEAR_RADIUS, NEAR_PATH = 0.05, 0.01  # near without depths [radii]; the radius of a walk is the length of its path
BOUNDS_FACTORS = (0.9, 1.2)  # of the nearest and the farthest bound
FAR_RADIUS = 256.0  # where nothing limits the scene: beyond that nothing moves in a contracted cube
FORWARD_BOX = 4.0  # radii, at most, from the centre to the side of a forward scene's box
UNBOUNDED_BOX = (1.0, 2.0, 4.0)  # half the side of the box [radii]: at least, without points, at most
TRACK = 3  # images that have to see a point which shapes the box of an object
GROWN = 0.1  # share of its side by which the box of an object's points grows, at either end
INSIDE = 0.95  # share of points inside the box below which there is a warning
TANGENT = 0.6  # half an image's side at depth 1, where no lens is given
STEEPEST = 3.0  # half an image's side at depth 1, at most: of a fisheye it may be anything
WARNING = "warning: "  # before lines of text that ask for something

SHAPES = {"rotation": (3, 3), "center": (3,), "scale": (), "near": (), "far": (), "box": (2, 3), "up": (3,)}


@dataclass(frozen=True, eq=False)
class Frame:
    """A similarity, and the scene in the frame that it leads to (lengths there are called model units)."""

    rotation: np.ndarray  # [3, 3] float64, of determinant 1
    center: np.ndarray  # [3] float64, input frame: the model's origin
    scale: float  # model units of one input unit
    kind: str  # of KINDS
    near: float  # nothing is nearer to a camera [model units]
    far: float  # nothing that matters is farther from a camera [model units]
    box: np.ndarray  # [2, 3] float64, lowest and highest corner, model frame: where a sampler in a box looks
    up: np.ndarray  # [3] float64, unit, model frame
    text: tuple[str, ...] = ()  # what was measured, and what each value follows from, a line each

    def to_model(self, what: np.ndarray) -> np.ndarray:
        """Poses [..., 3, 4] or points [..., 3] of the input in the model's frame."""
        what = np.array(what, dtype=np.float64)
        if self._is_identity:  # not even the sign of a zero changes
            return what
        if _are_poses(what):
            return np.concatenate([self.rotation @ what[..., :3], self.to_model(what[..., 3])[..., None]], axis=-1)
        return self.scale * (what - self.center) @ self.rotation.T

    def to_input(self, what: np.ndarray) -> np.ndarray:
        """The inverse of `to_model`."""
        what = np.array(what, dtype=np.float64)
        if self._is_identity:
            return what
        if _are_poses(what):
            return np.concatenate([self.rotation.T @ what[..., :3], self.to_input(what[..., 3])[..., None]], axis=-1)
        return what @ self.rotation / self.scale + self.center

    def directions_to_model(self, directions: np.ndarray) -> np.ndarray:
        """Directions [..., 3], of any length, which they keep."""
        return directions @ self.rotation.T

    def directions_to_input(self, directions: np.ndarray) -> np.ndarray:
        """The inverse of `directions_to_model`."""
        return directions @ self.rotation

    def distance_to_model(self, distance: Any) -> Any:
        """Lengths of the input in model units."""
        return distance * self.scale

    def distance_to_input(self, distance: Any) -> Any:
        """Lengths of model units in the input's."""
        return distance / self.scale

    def matrix(self) -> np.ndarray:
        """[4, 4] from homogeneous points of the input to those of the model."""
        matrix = np.eye(4)
        matrix[:3, :3] = self.scale * self.rotation
        matrix[:3, 3] = -self.scale * self.rotation @ self.center
        return matrix

    def describe(self) -> list[str]:
        """Lines to print."""
        return list(self.text)

    def warnings(self) -> list[str]:
        """Those lines of the text that ask for something, without the word."""
        return [line.removeprefix(WARNING) for line in self.text if line.startswith(WARNING)]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what JSON knows."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()} | {
            "text": list(self.text)
        }

    @staticmethod
    def from_json(content: Any, where: str = "frame") -> Frame:
        """The inverse of `to_json`; raises RunError that names `where` and the key."""
        if not isinstance(content, dict):
            raise RunError(f"{where} must be an object with keys, got {content!r:.80}")
        values = {name: _array(content, name, shape, where) for name, shape in SHAPES.items()}
        scalars = {name: float(values.pop(name)) for name in ("scale", "near", "far")}
        if np.abs(values["rotation"] @ values["rotation"].T - np.eye(3)).max() > 1e-6:
            raise RunError(f"{where}: 'rotation' is none: its rows are not orthogonal unit vectors")
        if np.linalg.det(values["rotation"]) < 0:
            raise RunError(f"{where}: 'rotation' is none: it mirrors")
        if abs(np.linalg.norm(values["up"]) - 1) > 1e-6:
            raise RunError(f"{where}: 'up' must have length 1, got {values['up'].tolist()}")
        _check_values(scalars["scale"], scalars["near"], scalars["far"], values["box"], where, RunError)
        kind, text = content.get("kind"), content.get("text")
        if kind not in KINDS:
            raise RunError(f"{where}: 'kind' must be one of {', '.join(KINDS)}, got {kind!r:.80}")
        if not isinstance(text, list) or not all(isinstance(line, str) for line in text):
            raise RunError(f"{where}: 'text' must be a list of lines, got {text!r:.80}")
        return Frame(kind=kind, text=tuple(text), **values, **scalars)

    @property
    def _is_identity(self) -> bool:
        return self.scale == 1 and not self.center.any() and bool((self.rotation == np.eye(3)).all())


def identity_frame(box: Any, near: float = 0.0, far: float = 1e10, up: Any = (0.0, 0.0, 1.0)) -> Frame:
    """The frame of an object whose box [2, 3] is stated in the coordinates of its files, which stay as they are."""
    box = _given_box(box)
    _check_values(1.0, near, far, box, "frame", SceneError)
    text = (
        "kind object: its box is stated in the coordinates of the files, which are the model's",
        f"box {_corners(box)}, near {near:g}, far {far:g}",
    )
    return Frame(np.eye(3), np.zeros(3), 1.0, "object", near, far, box, _unit(up, "up"), text)


def frame_of(capture: Capture, training: list[str] | None = None, has_alpha: bool = False, **given: Any) -> Frame:
    """The frame of a capture; `training` names the images that may tell near and far, all by default.

    `given` are the values of `find_frame` that replace what is found; the up of the files is the default of `up`.
    """
    images = capture.images
    poses = np.array([image.camera_to_world for image in images], dtype=np.float64).reshape(-1, 3, 4)
    names = None if training is None else set(training)
    bounds = [image.bounds or (np.nan, np.nan) for image in images]
    tangents = {lens: half_tangents(lens) for lens in {image.lens for image in images}}
    if given.get("up") is None:
        given["up"] = capture.up
    return find_frame(
        poses,
        capture.points,
        np.array(bounds, dtype=np.float64).reshape(-1, 2),
        training=None if names is None else np.array([image.name in names for image in images], dtype=bool),
        has_alpha=has_alpha,
        tangents=np.array([tangents[image.lens] for image in images]).reshape(-1, 2),
        **given,
    )


def half_tangents(lens: Lens) -> tuple[float, float]:
    """About half the width and half the height of an image at depth 1: distortion is left out."""
    halves = [side / 2 / focal for side, focal in zip((lens.width, lens.height), lens.focal, strict=True)]
    if lens.is_fisheye:  # angles instead of tangents
        halves = [math.tan(min(half, math.atan(STEEPEST))) for half in halves]
    return min(halves[0], STEEPEST), min(halves[1], STEEPEST)


@dataclass(frozen=True, eq=False)
class _Evidence:
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


def find_frame(
    poses: np.ndarray,
    points: Points | None = None,
    bounds: np.ndarray | None = None,
    *,
    training: np.ndarray | None = None,
    has_alpha: bool = False,
    tangents: np.ndarray | None = None,
    kind: str | None = None,
    up: Any = None,
    center: Any = None,
    radius: float | None = None,
    near: float | None = None,
    far: float | None = None,
    box: Any = None,
) -> Frame:
    """The frame of cameras at `poses` [V, 3, 4] float64, camera-to-world, OpenGL axes.

    `bounds` [V, 2] are the nearest and farthest depths of each image, NaN where unknown. Near and far follow from the
    views `training` [V, bool] alone. `tangents` [V, 2] are half an image's width and height at depth 1.

    From `kind` on: values that replace what would be found. `up`, `center` and `radius` are in the input's frame and
    units, `near`, `far` and `box` [2, 3] in the model's. Poses that leave something open are no error: a line of the
    text says what was assumed.
    """
    evidence, lines = _evidence(poses, points, bounds, training, tangents)
    if kind is not None and kind not in KINDS:
        raise SceneError(f"kind must be one of {', '.join(KINDS)}, got {kind!r:.80}")
    kind, why = (kind, "given") if kind else _kind(evidence, has_alpha, box is not None)
    lines.append(f"kind {kind}: {why}")
    upward, why = (_unit(up, "up"), "given") if up is not None else find_up(evidence.rig)
    lines.append(f"up {vector_text(upward)} in the input: {why}")
    if why.endswith("check it"):
        lines.append(f"{WARNING}the cameras do not say for sure which way is up; check up, or give it")
    middle, why = (_vector_of(center, "center"), "given") if center is not None else _center(evidence, kind)
    lines.append(f"center {vector_text(middle)} in the input: {why}")
    if radius is not None and not 0 < radius < math.inf:
        raise SceneError(f"radius must be a number above 0, got {radius}")
    length, why = (float(radius), "given") if radius is not None else _radius(evidence, kind, middle)
    lines.append(f"radius (1 model unit) {length:.4g} input units: {why}")
    if any(": a guess" in line for line in lines):
        lines.append(f"{WARNING}neither poses nor points say how far the scene is; give center and radius")
    rotation = _rotation(evidence.rig, upward)
    frame = Frame(rotation, middle, 1 / length, kind, 0.0, math.inf, np.zeros((2, 3)), UP.copy())
    return _with_extent(frame, evidence, lines, near, far, box)


def _evidence(poses, points, bounds, training, tangents) -> tuple[_Evidence, list[str]]:
    """What there is to look at, and lines that say it; raises SceneError for poses that are none."""
    poses = np.asarray(poses, dtype=np.float64)
    if poses.ndim != 3 or poses.shape[1:] != (3, 4) or not len(poses):
        raise SceneError(f"poses must have the shape [V, 3, 4] with at least one camera, got {list(poses.shape)}")
    if not np.isfinite(poses).all():
        raise SceneError(f"the pose of camera {int(np.flatnonzero(~np.isfinite(poses).all((1, 2)))[0])} is not finite")
    training = np.ones(len(poses), dtype=bool) if training is None else np.asarray(training, dtype=bool)
    tangents = np.full((len(poses), 2), TANGENT) if tangents is None else np.asarray(tangents, dtype=np.float64)
    rig, lines = measure(poses), []
    lines += rig.describe()
    if not training.any():
        lines.append(f"{WARNING}no training images are named; near and far follow from all")
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
    return _Evidence(rig, training, tangents, points, depths, bounds), lines


def _usable(points: Points) -> tuple[Points | None, str]:
    """`points` without those at no place; their tracks go, too."""
    finite = np.isfinite(points.positions).all(1)
    if not finite.any():
        return None, "points: none"
    left = Points(points.positions[finite], points.colors[finite], points.track_lengths[finite], np.zeros(0, np.int64))
    return left, f"{WARNING}{int((~finite).sum())} of {len(finite)} points have no finite position; they are left out"


def _depth_text(depths: np.ndarray, rig: Rig) -> str:
    if not len(depths):
        return "none of them in front of a training image,"
    low, middle, high = np.quantile(depths, (NEAR_QUANTILE, 0.5, 1 - NEAR_QUANTILE))
    text = f"depths 0.1 % {low:.4g}, 50 % {middle:.4g}, 99.9 % {high:.4g}"
    return f"{text} (50 % is {middle / rig.distance:.2f} of the distance to the focus)" if rig.distance > 0 else text


def _kind(evidence: _Evidence, has_alpha: bool, has_box: bool) -> tuple[str, str]:
    """The kind, and the test that decided."""
    if has_alpha or has_box:
        return "object", "the images have alpha" if has_alpha else "a box is given"
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


def _center(evidence: _Evidence, kind: str) -> tuple[np.ndarray, str]:
    """The centre [3] in the input's frame, and what it is."""
    rig = evidence.rig
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.baselines_away < CENTER_BASELINES:
        return rig.focus, "focus point"
    if kind != "forward" or rig.alignment < 1e-6:
        return rig.mean_position, "mean position of the cameras"
    ahead = rig.directions.mean(0) / rig.alignment
    if evidence.middle is not None:
        depth, what = evidence.middle
        return rig.mean_position + depth * ahead, f"on the mean axis at {depth:.4g}, {what}"
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.baseline > 0:
        return rig.focus, "focus point"
    if rig.baseline > 0:
        depth = GUESSED_BASELINES * rig.baseline
        return rig.mean_position + depth * ahead, f"a guess, {GUESSED_BASELINES:g} baselines ahead on the mean axis"
    return rig.mean_position + ahead, "a guess, one input unit ahead, as the cameras are all at one point"


def _radius(evidence: _Evidence, kind: str, center: np.ndarray) -> tuple[float, str]:
    """What is 1 in the model's frame [input units], and why."""
    distances = np.linalg.norm(evidence.rig.positions - center, axis=1)
    tiny = 1e-9 * np.abs(evidence.rig.positions).max()
    depth, what = evidence.middle or (float(distances.mean()), "distance of the center")
    if kind == "forward" and depth > tiny:
        tangent = float(np.median(evidence.tangents[:, 0]))
        return tangent * depth, f"half an image's width ({tangent:.2f} at depth 1) at {depth:.4g}, {what}"
    reach = float(np.quantile(distances, RADIUS_QUANTILE))
    if reach > tiny:
        return reach, f"{RADIUS_QUANTILE:.0%} quantile of the cameras' distances from the center"
    if depth > tiny:
        return depth, f"{what}, as the cameras are all at the center"
    return 1.0, "a guess, as the cameras are all at the center and nothing says how far the scene is"


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


def _with_extent(frame: Frame, evidence: _Evidence, lines: list[str], near, far, box) -> Frame:
    """`frame` with near, far, box and text."""
    for name, value in (("near", near), ("far", far)):
        if value is not None and not 0 <= value < math.inf:
            raise SceneError(f"{name} must be a finite number from 0, got {value}")
    cloud = frame.to_model(evidence.points.positions) if evidence.points is not None else None  # [P, 3]
    found, why = _near(frame, evidence)
    if near is None and far is not None and found >= far:
        found, why = far / 2, "half of far, beyond which all else lies"
    near, why = (float(near), "given") if near is not None else (found, why)
    lines.append(f"near {near:.4g} model units: {why}")
    if box is not None:
        box, box_why = _given_box(box), "given"
    elif frame.kind == "object":
        box, box_why = _object_box(frame, evidence, cloud)
    elif frame.kind != "forward":
        box, box_why = _unbounded_box(cloud)
    found, far_why = _far(frame, evidence, box)
    if far is None and found <= near:
        found, far_why = 2 * near, "twice near, which lies beyond all else"
    far, far_why = (float(far), "given") if far is not None else (found, far_why)
    lines.append(f"far {far:.4g} model units: {far_why}")
    if box is None:
        box, box_why = _forward_box(frame, evidence, near, far)
    lines.append(f"box {_corners(box)} in the model's frame: {box_why}")
    _check_values(frame.scale, near, far, box, "frame", SceneError)
    if cloud is not None:
        lines += _inside(cloud, box)
    return replace(frame, near=near, far=far, box=box, text=tuple(lines))


def _near(frame: Frame, evidence: _Evidence) -> tuple[float, str]:
    if len(evidence.bounds):
        return float(evidence.bounds[:, 0].min()) * BOUNDS_FACTORS[0] * frame.scale, "0.9 x the nearest bound"
    if len(evidence.depths):
        depth = float(np.quantile(evidence.depths, NEAR_QUANTILE))
        return NEAR_FACTOR * depth * frame.scale, "0.5 x the 0.1 % quantile of depths"
    near = NEAR_PATH if frame.kind == "walk-through" else NEAR_RADIUS
    return near, f"{near:g} of the radius, as there are neither points nor bounds"


def _far(frame: Frame, evidence: _Evidence, box: np.ndarray | None) -> tuple[float, str]:
    if len(evidence.bounds):
        return float(evidence.bounds[:, 1].max()) * BOUNDS_FACTORS[1] * frame.scale, "1.2 x the farthest bound"
    if frame.kind == "object" and box is not None:
        eyes = frame.to_model(evidence.rig.positions)
        reach = np.maximum(np.abs(eyes - box[0]), np.abs(eyes - box[1]))  # [V, 3] to the farthest corner
        return float(np.linalg.norm(reach, axis=1).max()), "largest distance of a camera from a corner of the box"
    if frame.kind == "forward" and len(evidence.depths):
        depth = float(np.quantile(evidence.depths, 1 - NEAR_QUANTILE))
        return BOUNDS_FACTORS[1] * depth * frame.scale, "1.2 x the 99.9 % quantile of depths"
    return FAR_RADIUS, f"{FAR_RADIUS:g} radii, as nothing limits the scene"


def _object_box(frame: Frame, evidence: _Evidence, cloud: np.ndarray | None) -> tuple[np.ndarray, str]:
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


def _forward_box(frame: Frame, evidence: _Evidence, near: float, far: float) -> tuple[np.ndarray, str]:
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


def _inside(cloud: np.ndarray, box: np.ndarray) -> list[str]:
    share = float(((cloud >= box[0]) & (cloud <= box[1])).all(1).mean())
    lines = [f"inside of the box: {share:.1%} of {len(cloud)} points"]
    if share < INSIDE:
        lines.append(f"{WARNING}{1 - share:.0%} of the points lie outside of the box; is it the scene's?")
    return lines


def _cube(half: float) -> np.ndarray:
    return np.array([[-half] * 3, [half] * 3])


def _are_poses(what: np.ndarray) -> bool:
    """Whether an array holds poses [..., 3, 4]; ValueError if it holds neither these nor points."""
    if np.ndim(what) >= 2 and what.shape[-2:] == (3, 4):
        return True
    if np.ndim(what) < 1 or what.shape[-1] != 3:
        raise ValueError(f"poses [..., 3, 4] or points [..., 3] are wanted, got {list(np.shape(what))}")
    return False


def _check_values(scale: float, near: float, far: float, box: np.ndarray, where: str, error: type[Exception]) -> None:
    if not 0 < scale < math.inf:
        raise error(f"{where}: 'scale' must be a number above 0, got {scale}")
    if not 0 <= near < far < math.inf:
        raise error(f"{where}: 'near' ({near:g}) must be at least 0 and below 'far' ({far:g})")
    if not (np.isfinite(box).all() and (box[0] < box[1]).all()):
        raise error(f"{where}: 'box' must hold the lowest, then the highest corner, got {box.tolist()}")


def _array(content: dict[str, Any], name: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Finite float64 of `shape` from a run's file; raises RunError."""
    try:
        values = np.array(content[name], dtype=np.float64)
    except KeyError:
        raise RunError(f"{where}: key '{name}' is missing") from None
    except (TypeError, ValueError, OverflowError):
        values = np.array(np.nan)
    if values.shape != shape or not np.isfinite(values).all():
        wanted = f"{' x '.join(map(str, shape))} finite numbers" if shape else "a finite number"
        raise RunError(f"{where}: '{name}' must be {wanted}, got {content[name]!r:.80}")
    return values


def _vector_of(value: Any, name: str) -> np.ndarray:
    """[3] float64 of a value that was given; raises SceneError."""
    try:
        vector = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        vector = np.zeros(0)
    if vector.shape != (3,) or not np.isfinite(vector).all():
        raise SceneError(f"{name} must be three finite numbers, got {value!r:.80}")
    return vector


def _given_box(value: Any) -> np.ndarray:
    """[2, 3] of two corners, or of six numbers in a row; raises SceneError."""
    try:
        return np.array(value, dtype=np.float64).reshape(2, 3)
    except (TypeError, ValueError):
        raise SceneError(f"box must be the lowest and the highest corner, six numbers, got {value!r:.80}") from None


def _unit(value: Any, name: str) -> np.ndarray:
    vector = _vector_of(value, name)
    if not np.linalg.norm(vector) > 1e-9:
        raise SceneError(f"{name} must not be zero, got {value!r:.80}")
    return vector / np.linalg.norm(vector)


def _corners(box: np.ndarray) -> str:
    return f"{vector_text(box[0])} to {vector_text(box[1])}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "unlimited"
