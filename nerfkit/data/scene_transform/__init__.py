# SPDX-License-Identifier: Apache-2.0
"""The frame of a capture: the kind of scene, and from that its centre, radius and axes, near, far and box.

The scene is one of four kinds; the first whose test holds:

    object         the images have alpha that shows something, or are cut out: nothing matters outside of the box
    forward        the cameras look the same way, at something far compared to how far they moved
    inward         most cameras have a common point in front of them, at similar distances
    walk-through   anything else

The box of an object is that of what all its silhouettes show, where another one does not hold it.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from nerfkit.data.capture import Capture, Lines, Note, Points, PosedImage, notes_of
from nerfkit.data.scene_transform.diagnostics import Silhouettes, share_of_rays
from nerfkit.data.scene_transform.rig import Found, Rig, find_up, half_tangents, measure, observed_depths
from nerfkit.data.scene_transform.transform import SceneTransform, check_extent, corner_text, unit, vector_text
from nerfkit.errors import SceneError

UP = np.array([0.0, 0, 1])  # of the model's frame
CUBE = np.array([[-1.0] * 3, [1.0] * 3])
FORWARD_DOT, FORWARD_BASELINES = 0.5, 2.0  # above which a scene is forward
INWARD_SHARE, INWARD_SPREAD = 0.9, 0.5  # cameras with the focus in front; spread of their distances
CENTER_BASELINES = 5.0  # a focus farther away than that is too uncertain to be the centre
GUESSED_BASELINES = 4.0  # to the content of a forward scene of which nothing says how far it is
RADIUS_QUANTILE = 0.9  # of the cameras' distances from the centre
EXTREME = 0.001  # quantile of depths that stands for the least, and for the greatest
NEAR_FACTOR = 0.5  # near: of the least depth
NEAR_RADIUS, NEAR_PATH = 0.05, 0.01  # near without depths [radii]
BOUNDS_FACTORS = (0.9, 1.2)  # of the nearest and the farthest bound
FAR_RADIUS = 256.0  # where nothing limits the scene
FORWARD_BOX = 4.0  # radii, at most, from the centre to the side of a forward scene's box
UNBOUNDED_BOX = (1.0, 2.0, 4.0)  # half the side of the box [radii]: at least, without points, at most
TRACK = 3  # images that have to see a point which shapes the box of an object
GROWN = 0.1  # share of a side by which an object's box grows
HELD = 0.99  # share of an object's rays that its box has to meet
SMALL = 0.25  # of the sides of a box, below which an object is of another unit
USUAL_SIDE = 2.4  # of the box of an object [model units]
FAR = 1e10  # where the box of an object is that of its hull: it ends all rays
CELLS, PASSES = 32, 4  # along a side; each pass looks closer
SEEN, MISSED = 0.5, 0.1  # share of cameras that see a place, and of these that see nothing
INSIDE = 0.95  # share of points inside the box below which there is a warning


@dataclass(frozen=True, eq=False)
class FrameInputs:
    """What a frame is found from, in the input's frame and units."""

    rig: Rig
    training: np.ndarray  # [V] bool
    tangents: np.ndarray  # [V, 2] half the width and height of an image at depth 1
    looks_around: bool  # most images are panoramas, whose axes point at nothing
    points: Points | None  # at least one
    depths: np.ndarray  # [K] of points in training images, > 0
    bounds: np.ndarray  # [B, 2] of training images, > 0

    @property
    def middle(self) -> tuple[float, str] | None:
        """Typical depth of the content, and where it is from; none if nothing says it."""
        if len(self.depths):
            return float(np.median(self.depths)), "median depth of the points"
        if len(self.bounds):
            return math.sqrt(self.bounds[:, 0].min() * self.bounds[:, 1].max()), "geometric mean of the bounds"
        return None

    def cloud(self, transform: SceneTransform) -> np.ndarray | None:
        return None if self.points is None else transform.to_model(self.points.positions)

    def describe(self) -> list[str]:
        rig, focus = self.rig, "none, for all cameras look the same way"
        if rig.focus is not None:
            focus = f"{vector_text(rig.focus)}, about {rig.distance:.4g} away; axes miss it by {rig.miss:.0%} of that"
        lines = [
            f"cameras: {len(rig.poses)}; the farthest is {rig.baseline:.4g} from their mean position; "
            f"along the mean viewing direction they spread over {rig.along:.0%} of that",
            f"what the cameras look at: {focus}",
        ]
        if self.points is not None:
            depths = "none of them in front of a training image"
            if len(self.depths):
                low, middle, high = np.quantile(self.depths, (EXTREME, 0.5, 1 - EXTREME))
                depths = f"depths in training images {low:.4g} to {high:.4g} (99.8 % of them), median {middle:.4g}"
            lines.append(f"points: {len(self.points.positions)}, {depths}")
        if len(self.bounds):
            lines.append(f"bounds of training images: {self.bounds[:, 0].min():.4g} to {self.bounds[:, 1].max():.4g}")
        return lines


def find_scene_transform(capture: Capture, training: Collection[str] = (), has_alpha: bool = False) -> SceneTransform:
    """The frame of a capture; near and far follow from the images called `training` alone, from all without any."""
    images, points, names = capture.images, capture.points, set(training)
    used = np.array([not names or image.name in names for image in images])
    tangents = np.array([half_tangents(image.lens) for image in images])
    rig = measure(np.array([image.camera_to_world for image in images], dtype=np.float64))
    points = points if points is not None and len(points.positions) else None
    lenses = [image.lens for image in images]
    depths = np.zeros(0) if points is None else observed_depths(rig.poses, points, used, lenses)
    bounds = [image.bounds for image, counts in zip(images, used, strict=True) if counts and image.bounds]
    bounds = np.array(bounds, dtype=np.float64).reshape(-1, 2)
    looks_around = 2 * sum(lens.is_panorama for lens in lenses) > len(lenses)
    inputs = FrameInputs(rig, used, tangents, looks_around, points, depths, bounds[(bounds > 0).all(1)])
    kind, why = _kind(inputs, has_alpha)
    up = find_up(rig) if capture.up is None else Found(unit(capture.up), "given")
    center = _center(inputs, kind)
    radius = _radius(inputs, kind, center.value)
    frame = _rotation(rig, up.value), center.value, 1 / radius.value
    transform = SceneTransform(*frame, kind, 0.0, math.inf, np.zeros((2, 3)), UP.copy())
    reach, of_unit = 1.0, " (1 model unit)"  # the radius in model units
    if kind == "object":
        reach = USUAL_SIDE / float(np.ptp(_object_box(transform, inputs, reach)[0], axis=0).max())
        transform = replace(transform, scale=reach / radius.value)
        of_unit = f" ({reach:.4g} model units, of which the box is {USUAL_SIDE:g} long)"
    lines: Lines = [
        *inputs.describe(),
        f"kind {kind}: {why}",
        f"up {vector_text(up.value)} in the files' coordinates: {up.why}",
        f"center {vector_text(center.value)} in the files' coordinates: {center.why}",
        f"radius{of_unit} {radius.value:.4g} in the files' unit: {radius.why}",
    ]
    if up.is_guess:
        lines.append(Note("warning", "the cameras do not say for sure which way is up; check up, or give it"))
    if center.is_guess or radius.is_guess:
        text = "neither poses nor points say how far the scene is, so its size is a guess"
        lines.append(Note("warning", f"{text}; give sparse points, or data.box around what the cameras see"))
    return _with_extent(transform, inputs, lines, reach)


def _kind(inputs: FrameInputs, has_alpha: bool) -> tuple[str, str]:
    if has_alpha:
        return "object", "the images have alpha, or are cut out"
    if inputs.looks_around:
        return "walk-through", "most images are panoramas, which see all around"
    rig, away = inputs.rig, inputs.rig.baselines_away
    if rig.focus is None and rig.baseline > 0 and inputs.middle is not None:
        away = inputs.middle[0] / rig.baseline
    numbers = f"cosine between viewing directions {rig.low_dot:.2f} (5 % quantile), distance/baseline {away:.2f}"
    moved = rig.focus is not None or rig.along < 0.9  # not only along parallel axes
    if rig.low_dot > FORWARD_DOT and away > FORWARD_BASELINES and moved:
        return "forward", f"{numbers}: above {FORWARD_DOT} and {FORWARD_BASELINES:g}"
    numbers = (
        f"what they look at is in front of {rig.in_front:.0%} of the cameras, their distances vary by {rig.spread:.2f}"
    )
    if rig.focus is not None and rig.in_front >= INWARD_SHARE and rig.spread < INWARD_SPREAD:
        return "inward", f"{numbers} (needed: {INWARD_SHARE:.0%}, below {INWARD_SPREAD})"
    return "walk-through", f"{numbers}: neither forward nor inward"


def _center(inputs: FrameInputs, kind: str) -> Found:
    rig = inputs.rig
    is_seen = rig.focus is not None and rig.in_front >= INWARD_SHARE and not inputs.looks_around
    if is_seen and rig.baselines_away < CENTER_BASELINES:
        return Found(rig.focus, "what the cameras look at")
    if kind != "forward" or rig.alignment < 1e-6:
        return Found(rig.mean_position, "mean position of the cameras")
    ahead = rig.directions.mean(0) / rig.alignment
    if inputs.middle is not None:
        depth, what = inputs.middle
        return Found(rig.mean_position + depth * ahead, f"on the mean axis at {depth:.4g}, {what}")
    if is_seen and rig.baseline > 0:
        return Found(rig.focus, "what the cameras look at")
    depth = GUESSED_BASELINES * rig.baseline or 1.0  # one input unit where the cameras are all at one point
    return Found(rig.mean_position + depth * ahead, f"a guess, {depth:.4g} ahead on the mean axis", is_guess=True)


def _radius(inputs: FrameInputs, kind: str, center: np.ndarray) -> Found:
    """What is 1 in the model's frame [input units]."""
    distances = np.linalg.norm(inputs.rig.positions - center, axis=1)
    tiny = 1e-9 * np.abs(inputs.rig.positions).max()
    depth, what = inputs.middle or (float(distances.mean()), "distance of the center")
    if kind == "forward" and depth > tiny:
        tangent = float(np.median(inputs.tangents[:, 0]))
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
    offsets = rig.positions - rig.mean_position
    offsets = offsets - np.outer(offsets @ up, up)
    values, vectors = np.linalg.eigh(offsets.T @ offsets)
    if np.linalg.norm(flat) > 0.3:
        east = np.cross(flat, up)
    elif rig.baseline > 0 and values[1] < 0.5 * values[2]:
        along = offsets @ vectors[:, 2]
        start = along[np.argmax(np.abs(along) > 1e-3 * rig.baseline)]  # the first camera that is not in the middle
        east = vectors[:, 2] * (-1.0 if start > 0 else 1.0)
    else:
        east = next(rig.poses[0, :, k] for k in range(2) if abs(rig.poses[0, :, k] @ up) < 0.87)  # right, else up
    east = unit(east - up * (east @ up))
    return np.stack([east, np.cross(up, east), up])


def _with_extent(transform: SceneTransform, inputs: FrameInputs, lines: Lines, reach: float) -> SceneTransform:
    """`transform` with near, far, box and notes; `reach` is the radius in model units."""
    cloud = inputs.cloud(transform)
    near = NEAR_PATH if transform.kind == "walk-through" else NEAR_RADIUS
    why = f"{near:g} of the radius, as there are neither points nor bounds"
    near *= reach
    if len(inputs.bounds):
        near, why = inputs.bounds[:, 0].min() * BOUNDS_FACTORS[0] * transform.scale, "0.9 of the nearest bound"
    elif len(inputs.depths):
        near = NEAR_FACTOR * np.quantile(inputs.depths, EXTREME) * transform.scale
        why = "half of the smallest depth (0.1 % quantile)"
    near = float(near)
    lines.append(f"near {near:.4g} model units ({near / transform.scale:.4g} in the files' unit): {why}")
    box, box_why = _object_box(transform, inputs, reach) if transform.kind == "object" else _unbounded_box(cloud)
    far, far_why = _far(transform, inputs, box)
    if far <= near:
        text = f"near, {near:.4g} model units ({why}), lies beyond all else, which ends at {far:.4g} ({far_why})"
        hint = "check that sparse points and poses are of one frame and unit, or give sampling.near"
        lines.append(Note("warning", f"{text}; {hint}"))
        far, far_why = 2 * near, "twice near, which lies beyond all else"
    lines.append(f"far {far:.4g} model units ({far / transform.scale:.4g} in the files' unit): {far_why}")
    if transform.kind == "forward":
        box, box_why = _forward_box(transform, inputs, near, far)
    used = "" if transform.kind == "object" else " (only for sampling.kind box)"
    lines.append(f"box {corner_text(box)} in model units{used}: {box_why}")
    check_extent(transform.scale, near, far, box, "transform", SceneError)
    if cloud is not None:
        share = float(((cloud >= box[0]) & (cloud <= box[1])).all(1).mean())
        lines.append(f"inside of that box: {share:.1%} of {len(cloud)} points")
        if share < INSIDE:
            lines.append(Note("warning", f"{1 - share:.0%} of the points lie outside of the box; is it the scene's?"))
    return replace(transform, near=near, far=far, box=box, notes=notes_of(*lines))


def _far(transform: SceneTransform, inputs: FrameInputs, box: np.ndarray) -> tuple[float, str]:
    if len(inputs.bounds):
        return float(inputs.bounds[:, 1].max()) * BOUNDS_FACTORS[1] * transform.scale, "1.2 times the farthest bound"
    if transform.kind == "object":
        eyes = transform.to_model(inputs.rig.positions)
        reach = np.maximum(np.abs(eyes - box[0]), np.abs(eyes - box[1]))  # [V, 3] to the farthest corner
        return float(np.linalg.norm(reach, axis=1).max()), "largest distance of a camera from a corner of the box"
    if transform.kind == "forward" and len(inputs.depths):
        depth = float(np.quantile(inputs.depths, 1 - EXTREME))
        return BOUNDS_FACTORS[1] * depth * transform.scale, "1.2 times the largest depth (99.9 % quantile)"
    return FAR_RADIUS, "the default, for nothing tells how far the scene reaches"


def _object_box(transform: SceneTransform, inputs: FrameInputs, radius: float) -> tuple[np.ndarray, str]:
    """Around the points; without any, around what the cameras are around, whose `radius` is in model units."""
    if (cloud := inputs.cloud(transform)) is not None:
        tracked = cloud[inputs.points.track_lengths >= TRACK]
        used, what = (tracked, f"points seen by {TRACK} or more") if len(tracked) >= 4 else (cloud, "points")
        box = np.quantile(used, (0.005, 0.995), axis=0)
        sides = box[1] - box[0]
        if sides.max() > 0:
            grow = GROWN * np.maximum(sides, GROWN * sides.max())  # of flat things, too, the box is one
            return box + [-grow, grow], f"0.5 to 99.5 % of {what}, longer by {GROWN:.0%} at either end"
    if len(inputs.bounds):
        distances = np.linalg.norm(inputs.rig.positions - transform.center, axis=1)
        reach = transform.scale * max(distances.max() - inputs.bounds[:, 0].min(), 0) * 1.1
        if 0 < reach < radius:
            return reach * CUBE, "1.1 x the way from the nearest bound to the center, seen from the farthest camera"
    return radius * CUBE, "the radius, as there are no points"


def _unbounded_box(cloud: np.ndarray | None) -> tuple[np.ndarray, str]:
    lowest, unknown, most = UNBOUNDED_BOX
    if cloud is None:
        return unknown * CUBE, f"{unknown:g} radii, as there are no points: walls mostly stand behind the cameras"
    reach = float(np.quantile(np.abs(cloud).max(1), 0.99))
    if reach > most:
        return most * CUBE, f"{most:g} radii; 99 % of the points would need {reach:.4g}, too coarse for one box"
    half = min(max(1.1 * reach, lowest), most)
    return half * CUBE, f"the cube of 99 % of the points, times 1.1, or {lowest:g} to each side if that is more"


def _forward_box(transform: SceneTransform, inputs: FrameInputs, near: float, far: float) -> tuple[np.ndarray, str]:
    poses = transform.to_model(inputs.rig.poses[inputs.training])
    width, height = inputs.tangents[inputs.training].T
    signs = np.array([[-1.0, -1], [-1, 1], [1, -1], [1, 1]])  # of the corners
    rays = np.stack([np.outer(width, signs[:, 0]), np.outer(height, signs[:, 1]), -np.ones((len(poses), 4))], axis=-1)
    rays = np.einsum("vij,vcj->vci", poses[:, :, :3], rays)  # [V, 4, 3] of depth 1
    ends = [poses[:, None, :, 3] + depth * rays for depth in (near, min(far, FAR_RADIUS))]
    box = np.stack([np.min(ends, (0, 1, 2)), np.max(ends, (0, 1, 2))]).clip(-FORWARD_BOX, FORWARD_BOX)
    box[1] = np.maximum(box[1], box[0] + 0.1)  # of a near beyond the limit
    return box, f"around the training cameras' frusta from near to far, at most {FORWARD_BOX:g} radii from the center"


def with_its_box(transform: SceneTransform, images: Sequence[PosedImage], silhouettes: Silhouettes) -> SceneTransform:
    """`transform` of an object, or one whose box holds what `silhouettes` of images show, if its own does not."""
    seen = [
        replace(image, camera_to_world=transform.to_model(image.camera_to_world))
        for image in images
        if image.name in silhouettes and silhouettes[image.name].any()
    ]
    rig = measure(np.stack([image.camera_to_world for image in seen])) if seen else None
    if rig is None or rig.focus is None:
        return transform
    held, side = share_of_rays(seen, transform.box, silhouettes), np.ptp(transform.box, axis=0).max()
    if held >= HELD and max(_size(image, silhouettes[image.name], rig.focus) for image in seen) >= SMALL * side:
        return transform
    hull = _hull(seen, silhouettes, rig)
    if hull is None or share_of_rays(seen, hull, silhouettes) < HELD:
        text = f"{held:.1%} of the object's rays meet the box, and alpha shows no better one; give data.box"
        return replace(transform, notes=(*transform.notes, Note("warning", text)))
    center, scale = hull.mean(0), USUAL_SIDE / np.ptp(hull, axis=0).max()
    box = scale * (hull - center)
    middle, longest = transform.to_input(center), float(np.ptp(hull, axis=0).max())
    text = f"kind object: alpha in {len(seen)} images shows it around {vector_text(middle)} in the input"
    text += f", {longest / transform.scale:.4g} long; that is the box {corner_text(box)}, for the usual one meets"
    text += f" {held:.1%} of its rays, and is {side / longest:.2g} times as long"
    notes = *(() if transform.is_identity else transform.notes), Note("info", text)
    scale, near = scale * transform.scale, scale * transform.near
    return replace(transform, center=middle, scale=scale, near=near, far=FAR, box=box, notes=notes)


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
    depth = np.linalg.norm(local, axis=1) if lens.is_wide else local[:, 2]
    depth = np.maximum(depth, 1e-9 * np.abs(local).max())
    half = max(np.array(lens.focal) / sides) * side * np.linalg.norm(cell) / 2 / depth  # of a cell, in the image
    sums = np.pad(silhouette.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    x, y = np.nan_to_num([x, y])
    left, top, right, bottom = np.clip([x - half, y - half, x + half + 1, y + half + 1], 0, side).astype(int)
    count = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return np.stack([is_in, is_in & (count == 0)])
