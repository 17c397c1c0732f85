# SPDX-License-Identifier: Apache-2.0
"""What a lens can be, from lenses that exist: numbers of another unit are legal numbers, but of no such lens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch

from nerfkit.data.cameras.lens import TOLERANCE, Lens
from nerfkit.errors import SceneError

# Focal lengths in longer sides of the image: 9 mm on 36 mm, the shortest that keeps lines straight, is 0.25, and 600 mm
# on 36 mm is 17. A fisheye's, in shorter sides: a whole circle of 280 degrees is 0.2.
SHORTEST, SHORTEST_FISHEYE, LONGEST = 0.24, 0.2, 20.0
STRETCHED = 1.4  # fx / fy, or fy / fx: pixels are squares; those of HDV, 1440x1080 for 16:9, are 1.33 times as wide
OFF_MIDDLE = 0.23  # of a side, from the middle to the principal point: sensors are moved by a few percent at most
OFF_ALIKE = 0.1  # of both sides by one factor: the middle of images of another size
ALIKE = 0.03  # relative difference of shares that are one
# A pincushion's corners are farther out than without distortion, by 0.1 for the strongest lenses; a fisheye that keeps
# shapes (stereographic) by 0.37 at 200 degrees. A barrel's limit is where its polynomial folds.
PINCUSHION, PINCUSHION_FISHEYE = 1.3, 1.5
LARGEST_SENSOR = 60  # mm
COARSE = 16  # nodes across a lens whose distortion is looked at


def doubts_of_lenses(lenses: Iterable[Lens]) -> list[str]:
    """Lines on lenses of images that hardly any camera has: what is odd of the first, and what it may be instead."""
    counts = Counter(lenses)
    found: dict[str, list[tuple[Lens, str]]] = {}
    for lens in counts:
        for check in (_principal_point, _focal_length, _stretch, _distortion):
            if text := check(lens):  # the first: what follows from it is odd as well
                found.setdefault(check.__name__, []).append((lens, text))
                break
    return [
        f"{text} (lenses of {sum(counts[lens] for lens, _ in odd)} of {counts.total()} images)"
        for odd in found.values()
        for _, text in odd[:1]
    ]


def _principal_point(lens: Lens) -> str | None:
    (cx, cy), (width, height) = lens.center, (lens.width, lens.height)
    x, y = cx / width, cy / height
    off = max(abs(x - 0.5), abs(y - 0.5))
    is_alike = x > 0 and abs(x - y) < ALIKE * x
    if off <= OFF_MIDDLE and not (is_alike and off > OFF_ALIKE):
        return None
    if 0 <= cx <= 1 and 0 <= cy <= 1:
        unit = "are the lens's values shares of the image? Multiply them by its width and height"
    elif is_alike:
        in_mm = " in millimetres, or" if 2 * max(cx, cy) < LARGEST_SENSOR else ""
        unit = f"are the lens's values{in_mm} of images of {2 * cx:.0f}x{2 * cy:.0f}? Give those of {width}x{height}"
    elif max(abs(x), abs(y)) < OFF_ALIKE:
        unit = "is it measured from the middle? Add half of the width and of the height"
    else:
        unit = "was it found for other images? Give that of these"
    return f"the principal point ({cx:.5g}, {cy:.5g}) lies far from the middle of {width}x{height} images: {unit}"


def _focal_length(lens: Lens) -> str | None:
    focal, size, longer = lens.focal, (lens.width, lens.height), max(lens.width, lens.height)
    is_short = min(focal) < (SHORTEST_FISHEYE * min(size) if lens.is_fisheye else SHORTEST * longer)
    if not is_short and max(focal) <= LONGEST * longer:
        return None
    across = longer / min(focal)
    degrees = math.degrees(across if lens.is_fisheye else 2 * math.atan(across / 2))
    advice = "if the angle was in radians, give degrees; if it is of larger images, give pixels of these"
    if is_short:
        advice = "if it is in millimetres, a share of the image, or of smaller images, give pixels of these"
    return (
        f"the focal length {min(focal):.5g} of {lens.width}x{lens.height} images means {degrees:.3g} degrees across; "
        + advice
    )


def _stretch(lens: Lens) -> str | None:
    fx, fy = lens.focal
    if max(fx / fy, fy / fx) <= STRETCHED:
        return None
    return (
        f"the focal lengths {fx:.5g} and {fy:.5g} mean pixels {max(fx / fy, fy / fx):.2f} times as long one way as "
        "the other: unless the images were stretched, correct the wrong one, or find the poses again with one for both"
    )


def _distortion(lens: Lens) -> str | None:
    """Of a lens that folds within the image, as training refuses it, or that draws its corners far outwards."""
    if lens.is_pinhole:
        return None
    try:
        lens.direction_map(max(1, max(lens.width, lens.height) // COARSE))
    except SceneError as error:
        return str(error)
    corners = torch.cartesian_prod(*(torch.tensor([0.5, side - 0.5]) for side in (lens.width, lens.height)))
    directions, residual = lens.unproject(corners)
    across = torch.linalg.vector_norm(directions[:, :2], dim=-1)
    straight = torch.atan2(across, directions[:, 2]) if lens.is_fisheye else across / directions[:, 2]
    distance = torch.linalg.vector_norm((corners - torch.tensor(lens.center)) / torch.tensor(lens.focal), dim=-1)
    ratio = torch.where(residual <= TOLERANCE, distance / straight, 0).max().item()
    if ratio <= (PINCUSHION_FISHEYE if lens.is_fisheye else PINCUSHION):
        return None
    values = ", ".join(f"{name} {value:.4g}" for name, value in lens.named().items() if name[0] in "kp" and value)
    return (
        f"{values} of {lens.model} draw the corners {ratio:.2f} times as far out as they were without: no lens does; "
        "find the poses again, or correct the coefficients"
    )
