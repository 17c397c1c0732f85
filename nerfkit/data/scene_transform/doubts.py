# SPDX-License-Identifier: Apache-2.0
"""What speaks against a capture as a whole: cameras that no scene fits, and pictures that show nothing.

Training goes on, for nothing here is certain. A line each says what was found, and what to change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np

from nerfkit.data.capture import PosedImage
from nerfkit.data.images.pool import ImagePool
from nerfkit.data.scene_transform.evidence import half_tangents
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.data.scene_transform.rig import Rig, evenly, measure
from nerfkit.reading import shown

STRAY = 100.0  # times as far from the median position as 90 % of the cameras are
LEAST_PARALLAX = 1.0  # pixels by which the content moves between the cameras, at least
SMALL_RIG = 0.01  # of the diagonal of a box that is given: cameras closer together than that are of another unit
MAX_VIEWS = (50, 2000)  # evenly spaced: whose points are asked for, and that may see them
DISTANCES = np.geomspace(0.01, 100.0, 16)  # of points that are asked for [baselines, or distances to the focus]
MAX_NAMES = 3
PLAIN = 2.0  # of 255: standard deviation of a picture that shows nothing
MOST = 0.9  # share of the pictures that have to be plain, or copies
SAMPLED_PIXELS = 1024  # of a picture
MAX_PICTURES = 512  # that are looked at
MASKED = 0.6  # share of pixels that masks ignore, above which an object was to be cut out, or they are the wrong way


def doubts_of_cameras(images: Sequence[PosedImage], frame: Frame) -> list[str]:
    """Of the cameras of the training `images`, in the `frame` that was found or given."""
    if not images:
        return []
    if len(images) == 1:
        return [
            f"there is one training view ({shown(images[0].name)}): nothing says how far anything is that it shows; "
            "give pictures of the same things from other places"
        ]
    rig = measure(np.stack([image.camera_to_world for image in images]))
    lines = [*_strays(images, rig), *_parallax(images, rig, frame)]
    if frame.kind == "object" and 0 < rig.baseline * frame.scale < SMALL_RIG * math.dist(*frame.box):
        lines.append(
            f"the cameras stand within {rig.baseline:.3g} of their mean position, the box is "
            f"{math.dist(*frame.box) / frame.scale:.3g} from corner to corner; give data.box in the units of the poses"
        )
    return lines + (_overlap(images, rig) if rig.baseline > 0 else [])


def _strays(images: list[PosedImage], rig: Rig) -> list[str]:
    """A line of cameras that are far away from all others."""
    middle = np.median(rig.positions, axis=0)
    distances = np.linalg.norm(rig.positions - middle, axis=1)  # [V]
    usual = float(np.quantile(distances, 0.9, method="lower"))
    far = np.flatnonzero(distances > STRAY * usual)
    if not len(far) or usual == 0:
        return []
    listed = ", ".join(shown(images[k].name, 60) for k in far[:MAX_NAMES])
    return [
        f"{len(far)} of {len(images)} training cameras stand up to {distances.max():.3g} away from the middle of all, "
        f"90 % within {usual:.3g} ({listed}); correct their poses, or leave the images out"
    ]


def _parallax(images: list[PosedImage], rig: Rig, frame: Frame) -> list[str]:
    """A line of cameras that see everything from one place, as good as."""
    if rig.baseline == 0:
        return [
            f"all {len(images)} training cameras stand at one point: nothing says how far anything is, and the field "
            "may put it anywhere; move the camera between the pictures, or check the positions in the files"
        ]
    if frame.kind != "forward":
        return []
    distance = float(np.linalg.norm(frame.center - rig.mean_position))
    pixels = max(max(image.lens.focal) for image in images) * 2 * rig.baseline / max(distance, rig.baseline)
    if pixels >= LEAST_PARALLAX:
        return []
    return [
        f"what the cameras look at, {distance:.3g} away, has a parallax of {pixels:.2g} pixels between views up to "
        f"{2 * rig.baseline:.3g} apart: nothing says how far it is; check that points and poses are of one unit, or "
        "move the camera farther between the pictures"
    ]


def _overlap(images: list[PosedImage], rig: Rig) -> list[str]:
    """A line if no point before one camera is in the image of another one; what hides what does not count."""
    chosen = evenly(len(images), MAX_VIEWS[1])
    tangents = np.array([half_tangents(images[k].lens) for k in chosen])  # [V, 2]
    wide = np.array([images[k].lens.is_fisheye for k in chosen])
    poses = rig.poses[chosen]
    scale = max(rig.baseline, rig.distance) if rig.focus is not None else rig.baseline
    corners = np.stack(np.meshgrid(*[np.linspace(-0.95, 0.95, 5)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    for view in evenly(len(poses), MAX_VIEWS[0]):
        across = np.concatenate([corners * tangents[view], -np.ones((len(corners), 1))], axis=-1)  # [25, 3]
        local = (across[:, None] * (scale * DISTANCES)[:, None]).reshape(-1, 3)
        points = local @ poses[view, :, :3].T + poses[view, :, 3]  # [25 * 16, 3]
        for other in range(len(poses)):
            x, y, z = ((points - poses[other, :, 3]) @ poses[other, :, :3]).T
            inside = (z < 0) & (np.abs(x) < -z * tangents[other, 0]) & (np.abs(y) < -z * tangents[other, 1])
            if other != view and (wide[other] or inside.any()):
                return []
    return [
        f"no point is seen by two of the {len(images)} training views, which all look away from each other: nothing "
        "says how far anything is; give pictures that overlap, or check that poses are camera-to-world, in OpenGL axes"
    ]


def doubts_of_pictures(pictures: Sequence[np.ndarray]) -> list[str]:
    """Of pixels of pictures, [P, C] uint8 each: `sampled_pixels` of them are enough."""
    if len(pictures) < 2:
        return _plain(pictures)
    copies = sum(np.array_equal(a, b) for a, b in zip(pictures, pictures[1:], strict=False))
    if lines := _plain(pictures):
        return lines
    if copies >= MOST * (len(pictures) - 1):
        return [
            f"{copies + 1} of {len(pictures)} pictures that were compared are copies of one: with other poses they "
            "contradict each other; are they frames of a video that stands still?"
        ]
    return []


def _plain(pictures: Sequence[np.ndarray]) -> list[str]:
    plain = [picture for picture in pictures if picture.size and picture.std(axis=0).max() < PLAIN]
    if not plain or len(plain) < MOST * len(pictures):
        return []
    color = np.median([np.median(picture, axis=0) for picture in plain], axis=0)
    return [
        f"{len(plain)} of {len(pictures)} pictures that were looked at show one color alone, about "
        f"{tuple(int(value) for value in color)} of 255: nothing says where anything is; give pictures with texture, "
        "and check that the files are the right ones"
    ]


def sampled_pixels(pixels: np.ndarray) -> np.ndarray:
    """At most SAMPLED_PIXELS of the `pixels` [P, C] of a picture, the same of each picture of that size."""
    if len(pixels) <= SAMPLED_PIXELS:
        return pixels
    return pixels[np.random.default_rng(0).integers(len(pixels), size=SAMPLED_PIXELS)]  # equal steps may be one column


def doubts_of_images(images: ImagePool, white_ignores: bool = False) -> list[str]:
    """Of loaded images; `white_ignores`: white pixels of their masks do not count, instead of black ones."""
    chosen = evenly(len(images), MAX_PICTURES)
    pictures = [sampled_pixels(images.pixels[images.rows(int(view))].numpy()) for view in chosen]
    masks = [] if images.ignored is None else [images.mask(view) for view in range(len(images))]
    shares = [share for mask in masks if (share := mask.sum().item() / mask.numel())]
    return doubts_of_pictures(pictures) + doubts_of_masks(shares, white_ignores)


def doubts_of_masks(shares: Sequence[float], white_ignores: bool) -> list[str]:
    """Of masks, of which each ignores a share of its image's pixels, 0 to 1."""
    if not shares or mean(shares) <= MASKED:
        return []
    color, opposite = ("white", "black") if white_ignores else ("black", "white")
    return [
        f"masks ignore {mean(shares):.0%} of the pixels, the {color} ones; is {opposite} meant? What is ignored may "
        "look like anything: to cut an object out, which leaves nothing else, train with --data.masks cutout"
    ]
