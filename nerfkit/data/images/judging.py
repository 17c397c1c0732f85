# SPDX-License-Identifier: Apache-2.0
"""What pixels say that headers do not: whether alpha is one, of how many bits levels are, what is white in masks.

A few images are looked at, evenly spaced, for each takes as long as to load it; more where these few leave it open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nerfkit.data.capture import Note, PosedImage, as_warnings, notes_of
from nerfkit.data.images.pixels import OPAQUE, ImageHeader, MaskKind, read_image, read_mask, stored_levels
from nerfkit.errors import SceneError

SAMPLED, THREADS = 16, 4
TRANSPARENT = 1  # level of alpha up to which a pixel shows nothing
SIDE = 96  # cells of a silhouette, both ways
BITS = (8, 10, 12, 14, 16)
FEW_LEVELS = 127  # a largest level up to which masks hold labels, or 0 and 1
COLORED = 64  # levels between the channels of a pixel
EDGES = 100  # half-transparent pixels that say whether colors are multiplied by alpha


@dataclass(frozen=True)
class Judged:
    """The images and masks of a capture, as their pixels have them."""

    headers: dict[str, ImageHeader]  # by the images' names
    masks: MaskKind
    silhouettes: dict[str, np.ndarray]  # of some images: where they are opaque, [SIDE, SIDE] bool
    notes: tuple[Note, ...]
    shows_nothing: str = ""  # why, where alpha leaves nothing

    @property
    def has_alpha(self) -> bool:
        """Whether one of the images has alpha."""
        return any(header.has_alpha for header in self.headers.values())


def judge(
    images: Sequence[PosedImage],
    headers: dict[str, ImageHeader],
    training: Collection[str],
    cutout: bool = False,
    white_ignores: bool = False,
) -> Judged:
    """Look at files of `images`, which are there; at the alpha of those called `training` alone. `cutout`: masks are
    alpha, too."""
    kind, notes = _mask_kind([image.mask for image in images if image.mask])
    deep = [image.found for image in images if headers[image.name].bits == 16]
    bits, bits_notes = _bits(deep) if deep else (16, [])
    headers = {name: header._replace(bits=min(header.bits, bits)) for name, header in headers.items()}
    mixed = [i for i in images if i.name in training and (headers[i.name].has_alpha or (cutout and i.mask))]

    def look(image: PosedImage) -> _Alpha:
        return _alpha(image, headers[image.name], kind if cutout else None, white_ignores)

    seen = _looks(mixed, look)
    notes, why = [*notes, *bits_notes], ""
    if seen and min(alpha.lowest for _, alpha in seen) >= OPAQUE:
        headers = {name: header._replace(has_alpha=False) for name, header in headers.items()}
        notes.append(f"alpha is left out: {len(seen)} of {len(mixed)} images that have it were looked at, all opaque")
        seen = []
    elif seen and max(alpha.highest for _, alpha in seen) <= TRANSPARENT:
        why = (
            f"alpha is {max(alpha.highest for _, alpha in seen)} of 255 at most in the {len(seen)} images that were "
            "looked at: nothing of them would be seen; save them without alpha, as RGB"
        )
    elif sum(alpha.edges for _, alpha in seen) >= EDGES and not any(alpha.brighter for _, alpha in seen):
        notes += as_warnings(
            ["colors are multiplied by alpha, which darkens all edges; save the images with straight alpha"]
        )
    silhouettes = {image.name: alpha.silhouette for image, alpha in seen}
    return Judged(headers, kind, silhouettes, notes_of(*notes), why)


class _Alpha(NamedTuple):
    lowest: int
    highest: int
    silhouette: np.ndarray
    edges: int  # half-transparent pixels that are not black
    brighter: int  # of them, those that are brighter than colors multiplied by their alpha can be


def _alpha(image: PosedImage, header: ImageHeader, masks: MaskKind | None, white_ignores: bool) -> _Alpha:
    pixels = np.empty((header.height, header.width, 4), dtype=np.uint8)
    read_image(image.found, header, pixels)
    alpha = pixels[..., 3]
    if masks is not None and image.mask is not None:
        alpha = alpha * (read_mask(image.mask, (header.width, header.height), masks) != white_ignores)
    edges = (alpha > 8) & (alpha < 247)
    brightest = pixels[edges, :3].max(-1)
    starts = [np.arange(SIDE) * side // SIDE for side in alpha.shape]
    cells = np.maximum.reduceat(np.maximum.reduceat(alpha, starts[0], axis=0), starts[1], axis=1)
    brighter = int((brightest > alpha[edges] + 2.0).sum())
    return _Alpha(int(alpha.min()), int(alpha.max()), cells > 127, int((brightest > 16).sum()), brighter)


def _bits(files: Sequence[Path]) -> tuple[int, list[str]]:
    """Bits of a level of 16-bit gray files, by the largest of all; and a note where they are fewer."""

    def look(file: Path) -> tuple[int, bool]:
        levels = stored_levels(file)["L"]
        return int(levels.max()), bool((levels % 257).any())  # or else 8 bits were made 16, however dark

    found = [one for _, one in _looks(files, look, lambda found: max(found)[0] >= 2 ** BITS[-2])]
    largest = max((level for level, _ in found), default=0)
    bits = next(bits for bits in BITS if largest < 2**bits)
    if bits == BITS[-1] or not any(is_fine for _, is_fine in found):
        return BITS[-1], []
    return bits, [f"gray images hold {bits} bits in 16: their largest level is {largest}"]


def _mask_kind(files: Sequence[Path]) -> tuple[MaskKind, list[str]]:
    """How masks are read, and a note where that is not by what is brighter than the middle of their levels."""

    def look(file: Path) -> dict[str, Any]:
        levels = stored_levels(file)
        gray, alpha, value = (levels.get(channel, levels["L"]) for channel in "LAV")
        largest = {channel: int(each.max()) for channel, each in levels.items()}
        varies = "A" in levels and alpha.min() != alpha.max()
        return {"largest": largest, "A": varies, "V": (value.astype(np.int32) - gray).max() > COLORED}

    def is_clear(found: Sequence[dict[str, Any]]) -> bool:
        alpha = ["A" in one["largest"] for one in found]
        return any(one["A"] for one in found) or (not any(alpha) and largest_of(found, "L") > FEW_LEVELS)

    def largest_of(found: Sequence[dict[str, Any]], channel: str) -> int:
        return max((one["largest"].get(channel, 0) for one in found), default=0)

    found = [one for _, one in _looks(files, look, is_clear)]
    if any(one["A"] for one in found):
        channel, notes = "A", ["masks are the alpha of their files"]
    elif any(one["V"] for one in found):
        return MaskKind("V", COLORED // 4), ["masks are of colors: all that is not black is white"]
    else:
        channel, notes = "L", []
    largest = largest_of(found, channel)
    if 0 < largest <= FEW_LEVELS:
        return MaskKind(channel, 0), [*notes, f"masks hold levels up to {largest} alone: all but 0 is white"]
    bits = next(bits for bits in BITS if largest < 2**bits)
    return MaskKind(channel, 2 ** (bits - 1) - 1), notes


def _looks(things: Sequence[Any], look: Callable, is_clear: Callable[[list], bool] = bool) -> list[tuple[Any, Any]]:
    """Some of `things` with what `look` returns of each, of all of them where that of a few is not clear; a file that
    cannot be read is left to whoever reads all."""

    def try_to(thing: Any) -> tuple[Any, Any] | None:
        with suppress(SceneError):
            return thing, look(thing)
        return None

    some = [things[k] for k in np.unique(np.linspace(0, len(things) - 1, SAMPLED).astype(int))] if things else []
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(filter(None, pool.map(try_to, some)))
        if len(some) < len(things) and not (found and is_clear([one for _, one in found])):
            found = list(filter(None, pool.map(try_to, things)))
    return found
