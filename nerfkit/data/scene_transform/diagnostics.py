# SPDX-License-Identifier: Apache-2.0
"""What speaks against a capture as a whole: cameras that no scene fits, a box beside it, images that show nothing."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.plausible import lens_diagnostics
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.images.batch import ImagePool
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.scene_transform.rig import Rig, evenly, half_tangents, measure, seen_by
from nerfkit.data.scene_transform.transform import SceneTransform, corner_text, vector_text
from nerfkit.ops.march import box_span
from nerfkit.safe_io import first_of, printable

Silhouettes = Mapping[str, np.ndarray]  # where images are opaque, by their names, [S, S] bool

STRAY = 100.0  # times as far from the median position as 90 % of the cameras are
COARSEST = 1e-4  # of the cameras' spread: a tenth of a pixel in an image of 1000
LEAST_PARALLAX = 1.0  # pixels by which the content moves between the cameras, at least
SMALL_RIG = 0.01  # of a box's diagonal: cameras closer together are of another unit
MAX_VIEWS = (50, 2000)  # evenly spaced: whose points are asked for, and that may see them
DISTANCES = np.geomspace(0.01, 100.0, 16)  # of points that are asked for [baselines]
FEW = 0.01  # share of points inside a box, or of rays that meet it
NEXT_TO_NONE = 1e-4  # of the rays: nothing can be trained
RAY_VIEWS, SIDE = 256, 17  # evenly spaced, whose rays are tried; rays of each, both ways
FOCUSED, NEAR_AXES = 0.9, 0.3  # cameras before their common point; distance of axes from it
PLAIN = 2.0  # of 255: standard deviation of an image that shows nothing
MOST = 0.9  # share of the images that have to be plain, or copies
SAMPLED_PIXELS = 1024  # of an image
MAX_IMAGES = 512  # that are looked at
DARK = 64  # of 255: no image of a set is brighter
FEW_IMAGES = 15  # for training, below which there is a remark
MASKED = 0.6  # share of pixels that masks ignore, above which they may be the wrong way
CUT_OUT = "--data.masks alpha"
AROUND = 0.8  # share of edges that masks of an object ignore; of the middle they leave


def solve_diagnostics(capture: Capture) -> Iterator[str]:
    """A line if most of the images that lie beside those with a pose, and are named like them, have none."""

    def kind(file: Path) -> tuple[str, str]:
        return re.sub(r"\d+", "0", file.stem), file.suffix.lower()

    found = [image.found for image in capture.images if image.found is not None]
    kinds, folders = set(map(kind, found)), {os.path.realpath(folder) for folder in {file.parent for file in found}}
    beside = [name for folder in folders for name in os.listdir(folder) if kind(Path(name)) in kinds]
    names = {file.name for file in found}
    places = [place for place, name in enumerate(sorted(beside)) if name in names]
    steps = np.diff(places)
    is_thinned = len(steps) > 1 and steps.min() > 1 and np.ptp(steps) <= 1  # such as every third, on purpose
    if capture.format != "nerf_synthetic" and 2 * len(found) < len(beside) and not is_thinned:
        what = f"{len(found)} of {len(beside)} images have a pose, fewer than half, so that these may be wrong as well"
        yield f"{what}; find the poses again, or move away the images that are not of the scene"


def camera_diagnostics(images: Sequence[PosedImage], transform: SceneTransform) -> Iterator[str]:
    yield from lens_diagnostics(image.lens for image in images)
    if len(images) == 1:
        what = f"there is one training view ({printable(images[0].name)}): nothing says how far anything is"
        yield f"{what}; give images of the same things from other places"
    if len(images) < 2:
        return
    rig = measure(np.stack([image.camera_to_world for image in images]))
    farthest, spread = np.abs(rig.positions).max(), float(np.ptp(rig.positions, axis=0).max())
    is_rounded = (rig.positions.astype(np.float32) == rig.positions).all()
    step = float(np.spacing(np.float32(farthest) if is_rounded or transform.is_identity else farthest))
    if spread > 0 and step > COARSEST * spread:
        boxed = "leave out data.box, which keeps the files' coordinates, or " * transform.is_identity
        what = f"positions reach {farthest:.6g} from the origin, where their digits end at {step:.2g}"
        yield f"{what}, in cameras {spread:.3g} apart; {boxed}subtract one point from all positions and sparse points"
    distances = np.linalg.norm(rig.positions - np.median(rig.positions, axis=0), axis=1)  # [V]
    usual = float(np.quantile(distances, 0.9, method="lower"))
    if usual > 0 and len(far := np.flatnonzero(distances > STRAY * usual)):
        what = f"{len(far)} of {len(images)} training cameras are far out, {distances.max():.3g} units from the middle"
        names = first_of(images[k].name for k in far)
        yield f"{what}, 90 % are within {usual:.3g} ({names}); correct their poses, or leave the images out"
    if rig.baseline == 0:
        what = f"all {len(images)} training cameras stand at one point: nothing says how far anything is"
        yield f"{what}; move the camera between the images, or check the positions in the files"
        return
    distance = float(np.linalg.norm(transform.center - rig.mean_position))
    pixels = max(max(image.lens.focal) for image in images) * 2 * rig.baseline / max(distance, rig.baseline)
    if transform.kind == "forward" and pixels < LEAST_PARALLAX:
        what = f"what the cameras look at, {distance:.3g} away, has a parallax of {pixels:.2g} pixels between them"
        yield f"{what}; check that points and poses are of one unit, or move the camera farther between the images"
    if transform.kind == "object" and rig.baseline * transform.scale < SMALL_RIG * math.dist(*transform.box):
        what = f"the cameras stand within {rig.baseline:.3g} of their mean position"
        corners = f"{math.dist(*transform.box) / transform.scale:.3g} from corner to corner"
        yield f"{what}, the box is {corners}; give data.box in the units of the poses"
    if not _overlap([image.lens for image in images], rig):
        what = f"no point is seen by two of the {len(images)} training views, which all look away from each other"
        yield f"{what}; give images that overlap, or check that poses are camera-to-world, in OpenGL axes"


def _overlap(lenses: Sequence[Lens], rig: Rig) -> bool:
    """Whether any point before one camera is in the image of another one; what hides what does not count."""
    chosen = evenly(len(lenses), MAX_VIEWS[1])
    tangents = np.array([half_tangents(lenses[k]) for k in chosen])  # [V, 2]
    poses = rig.poses[chosen]
    scale = max(rig.baseline, rig.distance)
    corners = np.stack(np.meshgrid(*[np.linspace(-0.95, 0.95, 5)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    for view in evenly(len(poses), MAX_VIEWS[0]):
        across = np.concatenate([corners * tangents[view], -np.ones((len(corners), 1))], axis=-1)  # [25, 3]
        local = (across[:, None] * (scale * DISTANCES)[:, None]).reshape(-1, 3)
        points = local @ poses[view, :, :3].T + poses[view, :, 3]  # [25 * 16, 3]
        others = (other for other in range(len(poses)) if other != view)
        if any(len(seen_by(points, poses[other], lenses[chosen[other]])) for other in others):
            return True
    return False


def box_diagnostics(
    capture: Capture, images: Sequence[PosedImage], box: np.ndarray, is_given: bool = True
) -> Iterator[str]:
    """A line if hardly any sparse point is in the `box` [2, 3], or hardly any ray of the training `images` meets it."""
    if not images:
        return
    points = capture.points.positions if capture.points is not None else np.zeros((0, 3))
    rays, inside = share_of_rays(images, box), _inside(points, box)
    rig = measure(np.stack([image.camera_to_world for image in images]))
    looks_around = any(image.lens.is_panorama for image in images)
    focus = rig.focus if rig.in_front >= FOCUSED and rig.miss <= NEAR_AXES and not looks_around else None  # looked at
    missed = focus is not None and not _inside(focus[None], box)
    if rays >= FEW and (not missed if inside is None else inside >= FEW):
        return
    parts = [f"{100 * rays:.2g} % of the rays of the training views meet it"]
    if inside is not None:
        middle = corner_text(np.quantile(points, (0.05, 0.95), axis=0))
        parts += [f"{100 * inside:.2g} % of {len(points)} sparse points are inside, most lie from {middle}"]
    if focus is not None:
        parts.append(f"the cameras look at {vector_text(focus)}")
    name = "data.box" if is_given else f"the default box of {capture.format} scenes"
    advice = f"set data.box around the scene, in coordinates of the files{', or leave it out' * is_given}"
    yield f"{name} {corner_text(box)}: {', '.join(parts)}; {advice}"


def share_of_rays(images: Sequence[PosedImage], box: np.ndarray, silhouettes: Silhouettes | None = None) -> float:
    """Share of the rays of `images`, or of those in their `silhouettes`, that meet the `box` [2, 3] of their frame."""
    chosen = [images[k] for k in evenly(len(images), RAY_VIEWS)]
    shown_at = {image.name: np.ones((SIDE, SIDE), bool) for image in chosen} if silhouettes is None else silhouettes
    local = {}  # unit directions [R, 3] of each lens, in OpenGL axes
    for lens in {image.lens for image in chosen}:
        side = len(shown_at[chosen[0].name])
        steps = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        directions, _ = lens.unproject(torch.cartesian_prod(steps * lens.height, steps * lens.width).flip(-1))
        local[lens] = directions.numpy() * [1.0, -1, -1]
    met = []
    for image in chosen:
        rotation, position = np.split(image.camera_to_world, [3], axis=1)
        directions = torch.from_numpy(local[image.lens] @ rotation.T)[shown_at[image.name].ravel()]
        directions = directions[directions.isfinite().all(1)]
        origins = torch.from_numpy(position.T).expand_as(directions)
        enter, leave = box_span(origins, directions, torch.from_numpy(box), 0.0, math.inf)
        met.append((enter < leave).numpy())
    return float(np.concatenate(met).mean())


def _inside(points: np.ndarray, box: np.ndarray) -> float | None:
    return float(((points >= box[0]) & (points <= box[1])).all(1).mean()) if len(points) else None


def pixel_diagnostics(samples: Sequence[np.ndarray], background: str = "white") -> list[str]:
    """Of some of the pixels of images, [P, 3 or 4] uint8 each, as they are trained over their `background`."""
    behind = background_color(background, torch.device("cpu"))
    some = (x[np.random.default_rng(0).integers(len(x), size=SAMPLED_PIXELS)] for x in samples if len(x))
    samples = [255 * blend(torch.from_numpy(sample), behind).numpy() for sample in some]
    plain = [sample for sample in samples if sample.std(axis=0).max() < PLAIN]
    copies = sum(np.array_equal(a, b) for a, b in pairwise(samples))
    brightest = max((sample.max() for sample in samples), default=255)
    if plain and len(plain) >= MOST * len(samples):
        color = tuple(np.median([np.median(sample, axis=0) for sample in plain], axis=0).astype(int).tolist())
        what = f"{len(plain)} of {len(samples)} images that were looked at show one color alone, about {color}"
        return [f"{what} of 255; give images with texture, and check that the files and their alpha are right"]
    if copies and copies >= MOST * (len(samples) - 1):
        what = f"{copies + 1} of {len(samples)} images that were compared are copies of one"
        return [f"{what}; are they frames of a video that stands still?"]
    if brightest < DARK:
        what = f"no pixel of the {len(samples)} images that were looked at is brighter than {brightest:.0f} of 255"
        return [f"{what}; are 10, 12 or 14 bits stored in 16? Save them in 8 bits"]
    return []


def image_diagnostics(images: ImagePool, white_ignores: bool = False, background: str = "white") -> list[str]:
    """Of loaded images; `white_ignores`: white pixels of their masks do not count, instead of black ones."""
    chosen = evenly(len(images), MAX_IMAGES)
    samples = [images.pixels[images.rows(int(view))].numpy() for view in chosen]
    masks = [] if images.ignored is None else [images.mask(view).numpy() for view in range(len(images))]
    shares = [share for mask in masks if (share := mask.sum() / mask.size)]
    n_outlines = sum(map(outlines_an_object, masks))
    return pixel_diagnostics(samples, background) + mask_diagnostics(shares, n_outlines, white_ignores)


def outlines_an_object(mask: np.ndarray) -> bool:
    """Whether a mask [H, W], true where it ignores pixels, ignores the image's border and keeps its middle."""
    height, width = mask.shape
    middle = mask[2 * height // 5 : 3 * height // 5 + 1, 2 * width // 5 : 3 * width // 5 + 1]
    edges = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
    return bool(edges.mean() > AROUND and middle.mean() < 1 - AROUND)


def number_diagnostics(n_images: int) -> list[str]:
    """Of the images to train on."""
    few = f"{n_images} training image{' is' if n_images == 1 else 's are'} few; {FEW_IMAGES} and more are usual"
    return [few] * (0 < n_images < FEW_IMAGES)


def mask_diagnostics(shares: Sequence[float], n_outlines: int, white_ignores: bool) -> list[str]:
    """Of masks, of which each ignores a share of its image's pixels, 0 to 1, and `n_outlines` outline an object."""
    if not shares or mean(shares) <= MASKED:
        return []
    what = f"masks ignore {mean(shares):.0%} of the pixels"
    if n_outlines >= AROUND * len(shares):
        return [f"{what}, all around an object: train with {CUT_OUT}, or there will be fog where they ignore"]
    color, opposite = ("white", "black") if white_ignores else ("black", "white")
    return [
        f"{what}, the {color} ones; if {opposite} ones should be, invert the masks. To cut an object out, train with "
        f"{CUT_OUT}"
    ]
