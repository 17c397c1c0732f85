# SPDX-License-Identifier: Apache-2.0
"""What only the pixels tell: whether alpha is used, how many bits an image has, and which levels of a mask are white.

16 evenly spaced files are decoded, and all only if these are unclear.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.config import DataConfig
from nerfkit.data.capture import Capture, Note, PosedImage, as_warnings, notes_of
from nerfkit.data.depth import depth_notes
from nerfkit.data.images.pixels import OPAQUE, ImageHeader, MaskKind, read_mask, stored_levels, thinned_image
from nerfkit.data.scene import threads_to_decode
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.errors import SceneError
from nerfkit.safe_io import first_of

SAMPLED, THREADS = 16, 4  # files that are looked at, and how many of them at a time
SIDE = 96  # cells of a silhouette, both ways
BITS = (8, 10, 12, 14, 16)
FEW_LEVELS = 127  # a largest level up to which masks hold labels, or 0 and 1
EDGES, DIM = 100, 16  # half-transparent pixels that tell of multiplied colors; their least level


@dataclass(frozen=True)
class Judged:
    headers: dict[str, ImageHeader]  # by the images' names
    masks: MaskKind
    silhouettes: dict[str, np.ndarray]  # of some training images: where they are opaque, [SIDE, SIDE] bool
    is_object: bool  # images have alpha, or are cut out
    notes: tuple[Note, ...]
    has_depth: bool = True  # depth images can be used, if there are some


def judge(capture: Capture, headers: dict[str, ImageHeader], training: list[str], data: DataConfig) -> Judged:
    """Judge the images of a capture that have `headers`. Silhouettes are of `training` images alone; a mask that cuts
    an object out counts as alpha. Raises SceneError if no image shows anything."""
    alpha_masks = data.masks == "alpha"

    def look(image: PosedImage) -> tuple[np.ndarray, tuple[int, ...]]:
        """Silhouette; least and largest alpha, half-transparent pixels, and those too bright to be multiplied by it."""
        pixels, lowest, highest = thinned_image(image.found, headers[image.name])
        alpha, brightest = pixels[..., 3], pixels[..., :3].max(-1)
        if alpha_masks and image.mask:
            alpha = alpha * (read_mask(image.mask, alpha.shape[::-1], kind) != capture.white_ignores)
            lowest, highest = alpha.min(), alpha.max()
        rows, columns = (np.arange(SIDE) * side // SIDE for side in alpha.shape)
        cells = np.maximum.reduceat(np.maximum.reduceat(alpha, rows, axis=0), columns, axis=1)
        edges = (alpha > DIM) & (alpha < 255 - DIM) & (brightest > DIM)
        return cells > 127, (lowest, highest, edges.sum(), (brightest[edges] > alpha[edges] + 2.0).sum())

    images = [image for image in capture.images if image.name in headers]
    masks, notes = [image.mask for image in images if image.mask], []
    if turned := [name for name, header in headers.items() if header.turn != 1]:
        what = f"turned by their EXIF orientation: {len(turned)} of {len(headers)} images ({first_of(turned)})"
        notes.append(f"{what}; the poses must be those of the turned images")
    n_threads = threads_to_decode(max((header.decoding_bytes for header in headers.values()), default=1), THREADS)
    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        largest, of_alpha, _ = _largest(pool, masks, FEW_LEVELS)
        notes += ["masks are the alpha of their files"] * bool(of_alpha)
        if 0 < (of_alpha or largest) <= FEW_LEVELS:
            kind = MaskKind(bool(of_alpha), 0)
            notes.append(f"masks have no level above {of_alpha or largest}: every level but 0 is taken as white")
        else:
            kind = MaskKind(bool(of_alpha), 2 ** (_bits(of_alpha or largest) - 1) - 1)
        gray = [image.found for image in images if headers[image.name].bits == BITS[-1]]
        largest, _, has_more = _largest(pool, gray, 2 ** BITS[-2])
        if has_more and (bits := _bits(largest)) < BITS[-1]:
            headers = {name: header._replace(bits=min(header.bits, bits)) for name, header in headers.items()}
            what = f"gray images are taken to hold {bits} bits in 16, for their largest level is {largest}"
            notes.append(f"{what}; save them in 8 bits if they are dark")
        names, is_clear = set(training), lambda found: any(counts[0] < OPAQUE for _, counts in found)
        chosen = [image for image in images if headers[image.name].has_alpha or (alpha_masks and image.mask)]
        found = _looks(pool, [image for image in chosen if image.name in names], look, is_clear)
        if not is_clear([one for _, one in found]):  # the test images may have it
            found += _looks(pool, [image for image in chosen if image.name not in names], look, is_clear)
    is_object = alpha_masks or any(header.has_alpha for header in headers.values())
    if found:
        lowest, highest, edges, brighter = np.array([counts for _, (_, counts) in found]).T
        if lowest.min() >= OPAQUE:
            headers = {name: header._replace(has_alpha=False) for name, header in headers.items()}
            is_object = alpha_masks
            notes.append(f"alpha is left out: the {len(found)} images with it are opaque")
        elif highest.max() <= 255 - OPAQUE:
            what = f"{len(found)} images that were looked at are transparent: alpha is {highest.max()} of 255 at most"
            raise SceneError(f"{what}; {'correct their masks' if alpha_masks else 'save them without alpha, as RGB'}")
        elif edges.sum() >= EDGES and not brighter.any():
            text = "colors are multiplied by alpha, which darkens all edges; save the images with straight alpha"
            notes += as_warnings([text])
    silhouettes = {image.name: one for image, (one, _) in found if image.name in names} if is_object else {}
    unusable = ""
    try:
        notes += depth_notes(capture, training, data.depth_unit)
    except SceneError as problem:
        unusable = str(problem)
    with_depth = (image.name for image in capture.images if image.depth is not None)
    if any(headers[name].turn != 1 for name in with_depth if name in headers):
        unusable = "images are turned as their EXIF says, and their depth is not"
    if unusable:
        notes += as_warnings([f"{unusable}; no depth image is used"])
    return Judged(headers, kind, silhouettes, is_object, notes_of(*notes), not unusable)


def _largest(pool: ThreadPoolExecutor, files: Sequence[Path], enough: int) -> tuple[int, int, int]:
    """Of some files: the largest level, the largest alpha where it varies, and whether levels are more than 8 bits that
    were made 16. All are looked at where none is above `enough`."""

    def look(file: Path) -> tuple[int, int, int]:
        levels, alpha = stored_levels(file)
        varies = alpha is not None and 2 * int(alpha.min()) < int(alpha.max())  # not only at edges
        return int(levels.max()), int(alpha.max()) if varies else 0, int((levels % np.uint16(257)).any())

    found = [one for _, one in _looks(pool, files, look, lambda found: np.max(found) > enough)]
    return tuple(map(int, np.max(found, axis=0))) if found else (0, 0, 0)


def _bits(largest: int) -> int:
    return next(bits for bits in BITS if largest < 2**bits)


def _looks(
    pool: ThreadPoolExecutor, things: Sequence[Any], look: Callable, is_clear: Callable[[list], Any]
) -> list[tuple[Any, Any]]:
    """Some of `things` with what `look` returns of each, all where that is not clear; unreadable ones are left out."""

    def try_to(thing: Any) -> tuple[Any, Any] | None:
        with suppress(SceneError):
            return thing, look(thing)

    found = list(filter(None, pool.map(try_to, [things[k] for k in evenly(len(things), SAMPLED)])))
    if len(things) > SAMPLED and not (found and is_clear([one for _, one in found])):
        found = list(filter(None, pool.map(try_to, things)))
    return found
