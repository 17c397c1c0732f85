# SPDX-License-Identifier: Apache-2.0
"""What a lens can be, from lenses that exist: numbers of another unit are legal numbers, but of no such lens."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from nerfkit.data.cameras.lens import TOLERANCE, Lens
from nerfkit.errors import SceneError

# Focal lengths in longer sides of the image, as 9 and 600 mm on 36 mm; a fisheye's of 280 degrees, in shorter sides.
SHORTEST, SHORTEST_FISHEYE, LONGEST = 0.24, 0.2, 20.0
STRETCHED = 1.4  # fx / fy, or fy / fx; of HDV it is 1.33
OFF_MIDDLE = 0.23  # of a side, from the middle to the principal point
OFF_ALIKE = 0.1  # of both sides by one factor: the middle of images of another size
ALIKE = 0.03  # relative difference of shares that are one
# How far corners are drawn out: by 0.1 by the strongest pincushions, by 0.37 by a stereographic fisheye at 200 degrees.
PINCUSHION, PINCUSHION_FISHEYE = 1.3, 1.5
LARGEST_SENSOR = 60  # mm
MOST = 64  # lenses with distortion, evenly spaced, that are looked at
FINE = 64  # nodes across a lens, at which its directions are computed


def lens_diagnostics(lenses: Iterable[Lens]) -> list[str]:
    """Warnings about lenses that no camera is known to have, each with the likely mistake; alike ones are counted."""
    counts = Counter(lenses)
    found: dict[str, tuple[str, int]] = {}  # by kind: of the first lens, and images of all
    distorted = [lens for lens in counts if not lens.is_pinhole]
    looked_at = {*distorted[:: max(1, len(distorted) // MOST)]}  # 10 ms each
    for lens, count in counts.items():
        for kind, text in islice(_implausible(lens, lens in looked_at), 1):  # the others follow from the first
            first, n_images = found.get(kind, (text, 0))
            found[kind] = first, n_images + count
    return [f"{text} (lenses of {n_images} of {counts.total()} images)" for text, n_images in found.values()]


def refused_lens(lenses: Iterable[Lens]) -> list[str]:
    """Why training refuses the first lens that has too few directions, if there is one."""
    distorted = [lens for lens in dict.fromkeys(lenses) if not lens.is_pinhole]
    for lens in distorted[:: max(1, len(distorted) // MOST)]:
        try:
            lens.direction_map(max(1, max(lens.width, lens.height) // FINE))
        except SceneError as error:
            return [str(error)]
    return []


def _implausible(lens: Lens, looks_at_distortion: bool) -> Iterator[tuple[str, str]]:
    """What is implausible about a lens, as pairs of kind and warning; distortion is checked only on request."""
    (cx, cy), (fx, fy), width, height = lens.center, lens.focal, lens.width, lens.height
    size, longer, shortest = f"{width}x{height}", max(width, height), min(fx, fy)
    x, y = cx / width, cy / height
    off = max(abs(x - 0.5), abs(y - 0.5))
    is_alike = x > 0 and abs(x - y) < ALIKE * x
    if off > OFF_MIDDLE or (is_alike and off > OFF_ALIKE):
        if 0 <= cx <= 1 and 0 <= cy <= 1:
            unit = "are the lens's values shares of the image? Multiply them by its width and height"
        elif is_alike:
            in_mm = " in millimeters, or" if 2 * max(cx, cy) < LARGEST_SENSOR else ""
            unit = f"are the lens's values{in_mm} of images of {2 * cx:.0f}x{2 * cy:.0f}? Give those of {size}"
        elif max(abs(x), abs(y)) < OFF_ALIKE:
            unit = "is it measured from the middle? Add half of the width and of the height"
        else:
            unit = "was it found for other images? Give that of these"
        yield "center", f"the principal point ({cx:.5g}, {cy:.5g}) lies far from the middle of {size} images: {unit}"
    is_short = shortest < (SHORTEST * longer if lens.is_flat else SHORTEST_FISHEYE * min(width, height))
    if is_short or max(fx, fy) > LONGEST * longer:
        across = longer / shortest
        degrees = math.degrees(2 * math.atan(across / 2) if lens.is_flat else across)
        advice = "if the angle was in radians, give degrees; if it is of larger images, give pixels of these"
        if is_short:
            advice = "if it is in millimeters, a share of the image, or of smaller images, give pixels of these"
        yield "focal", f"the focal length {shortest:.5g} of {size} images means {degrees:.3g} degrees across; {advice}"
    if (stretch := max(fx / fy, fy / fx)) > STRETCHED:
        what = f"the focal lengths {fx:.5g} and {fy:.5g} mean pixels {stretch:.2f} times as long one way as the other"
        yield "stretch", f"{what}: correct the wrong one, or find the poses again with one for both"
    if looks_at_distortion and (text := _distortion(lens)):
        yield "distortion", text


def _distortion(lens: Lens) -> str | None:
    if lens.is_pinhole or lens.is_panorama:
        return None
    corners = torch.cartesian_prod(*(torch.tensor([0.5, side - 0.5]) for side in (lens.width, lens.height)))
    directions, residual = lens.unproject(corners)
    across = torch.linalg.vector_norm(directions[:, :2], dim=-1)
    straight = across / directions[:, 2] if lens.is_flat else torch.atan2(across, directions[:, 2])
    distance = torch.linalg.vector_norm((corners - torch.tensor(lens.center)) / torch.tensor(lens.focal), dim=-1)
    ratio = torch.where(residual <= TOLERANCE, distance / straight, 0).max().item()
    if ratio <= (PINCUSHION if lens.is_flat else PINCUSHION_FISHEYE):
        return None
    values = ", ".join(f"{name} {value:.4g}" for name, value in lens.named().items() if name[0] not in "fc" and value)
    what = f"{values} of {lens.model} move the corners {ratio:.2f} times as far out"
    return f"{what}: no lens does; find the poses again, or correct the coefficients"
