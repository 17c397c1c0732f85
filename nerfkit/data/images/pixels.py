# SPDX-License-Identifier: Apache-2.0
"""Image files -> pixels, and pixels over a background."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose
from torch import Tensor

from nerfkit.errors import SceneError
from nerfkit.safe_io import open_regular, printable

BACKGROUNDS = {"white": 1.0, "black": 0.0}

FORMATS = ("PNG", "JPEG", "WEBP")  # others are disabled: one of them runs programs
FILE_LIMIT = 2**31  # bytes
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
DECODING_BYTES = {"PNG": 5, "JPEG": 10, "MPO": 10, "WEBP": 18}  # of a pixel, at most (measured)
RESIZING_BYTES = 12  # of a pixel, beside those of decoding
ORIENTATION = 274  # tag of EXIF
TRANSPOSES = {  # by orientation: how stored pixels become what was seen
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip
REMEDY = "copy it again, or take it away: images that are missing are left out, except in LLFF captures"
SWAPPING = (5, 6, 7, 8)  # that swap width and height
OPAQUE = 254  # level of alpha from which on a pixel is
THINNED = 2**21  # pixels that say enough of an image's alpha and edges
BAND = 256  # rows that are converted together, for memory


class ImageHeader(NamedTuple):
    width: int  # of the pixels as they are read: turned, where `turn` says so
    height: int
    has_alpha: bool  # even if opaque: see `judging`
    decoding_bytes: int  # memory that decoding takes
    turn: int = 1  # EXIF orientation, 1 to 8, by which stored pixels are turned
    bits: int = 8  # of a gray level; 16 of files that may hold fewer

    def as_stored(self) -> ImageHeader:
        """The header of the image without its EXIF orientation."""
        width, height = (self.height, self.width) if self.turn in SWAPPING else (self.width, self.height)
        return self._replace(width=width, height=height, turn=1)


def image_header(path: Path) -> ImageHeader:
    """The header of an image file; raises SceneError if it is missing, no image, or unsupported."""
    with _opened(path) as image:
        return _header(image)


def read_image(path: Path, header: ImageHeader, out: np.ndarray) -> None:
    """Fill `out`, uint8 [H, W, 3 or 4], from an image file: straight alpha, sRGB as stored, turned as `header` says,
    resized by area."""
    with _opened(path) as image:
        mode = "RGBA" if out.shape[-1] == 4 else "RGB"
        height, width = out.shape[:2]
        stored = header.as_stored()
        if image.size != (stored.width, stored.height):
            raise SceneError(f"image {printable(path)} has another size now than a moment ago, when it was looked at")
        _decode(image, path)
        if mode == "RGB" and image.has_transparency_data and _levels(image, True).getextrema()[0] < OPAQUE:
            what = f"image {printable(path)} is partly transparent, others are not"
            raise SceneError(f"{what}; save all of them without alpha")
        image = _eight_bits(image, header.bits)
        if header.turn != 1:
            image = image.transpose(TRANSPOSES[header.turn])
        if image.size != (width, height):
            # Pillow averages RGBA with colors weighted by alpha.
            image = image.convert(mode).resize((width, height), Image.Resampling.BOX)
        for rows, band in _bands(image):
            out[rows] = np.asarray(band.convert(mode))


def look_into(path: Path, wants_pixels: bool = False) -> tuple[ImageHeader | None, str, np.ndarray | None]:
    """Header of an image file, None if it has none; the problem with it, '' if there is none; and, where they are
    wanted, evenly spaced pixels as they are stored. All are decoded, JPEG at an eighth of the size if nobody does."""
    header = None
    try:
        with _opened(path) as image:
            header = _header(image)
            if not wants_pixels:
                image.draft(image.mode, (image.width // 8, image.height // 8))
            _decode(image, path)
            return header, "", np.array(_thinned(image, header)) if wants_pixels else None
    except SceneError as error:
        return header, str(error), None


def thinned_image(path: Path, header: ImageHeader) -> tuple[np.ndarray, int, int]:
    """Evenly spaced pixels of an image, THINNED at most, [H, W, 4] uint8; and the least and largest alpha of all."""
    with _opened(path) as image:
        _decode(image, path)
        lowest, highest = _levels(image, True).getextrema() if header.has_alpha else (255, 255)
        image = _thinned(image, header)
        return np.asarray(image.transpose(TRANSPOSES[header.turn]) if header.turn != 1 else image), lowest, highest


def _thinned(image: Image.Image, header: ImageHeader) -> Image.Image:
    every = math.ceil(math.sqrt(image.width * image.height / THINNED))
    image = image.resize([max(1, side // every) for side in image.size], Image.Resampling.NEAREST)
    return _eight_bits(image, header.bits).convert("RGBA")


def blend(pixels: Tensor, background: Tensor) -> Tensor:
    """uint8 pixels [..., 3 or 4] over `background` [..., 3], float32 in [0, 1]."""
    color = pixels.float() / 255
    if pixels.shape[-1] == 3:
        return color
    alpha = color[..., 3:]
    return color[..., :3] * alpha + background * (1 - alpha)


def background_color(kind: str, device: torch.device) -> Tensor:
    """Background [3] for rendering and evaluation; white where training draws it at random."""
    return torch.full((3,), BACKGROUNDS.get(kind, 1.0), device=device)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A supported image, its header decoded; what Pillow raises in the block becomes a SceneError."""
    with open_regular(path, FILE_LIMIT, "image", SceneError) as file:
        if not os.fstat(file.fileno()).st_size:
            raise SceneError(f"image {printable(path)} is empty (0 bytes); {REMEDY}")
        try:
            with Image.open(file, formats=FORMATS) as image:
                problem = ""
                if image.mode not in MODES:
                    problem = f"has the color space {image.mode}; save it as RGB, RGBA or gray"
                elif image.mode.startswith("I") and "transparency" in image.info:
                    problem = "is 16-bit gray with a transparent value; save it as RGBA"
                elif image.format in ("PNG", "WEBP") and getattr(image, "is_animated", False):
                    problem = "is animated; save the frame that you want as a separate file"
                if problem:
                    raise SceneError(f"image {printable(path)} {problem}")
                yield image
        except SceneError:
            raise
        except UnidentifiedImageError:
            what = "is no PNG, JPEG or WebP file, whatever its name says; convert it, or copy it again"
            raise SceneError(f"image {printable(path)} {what}") from None
        except Exception as error:  # decoders raise nearly anything
            cause = printable(str(error) or type(error).__name__)
            raise SceneError(f"image {printable(path)} cannot be read, is it truncated? ({cause}); {REMEDY}") from None


def _header(image: Image.Image) -> ImageHeader:
    width, height = image.size
    decoding_bytes = DECODING_BYTES[image.format] * width * height
    # Pillow would decode a PNG to look for EXIF after its pixels: that waits until they are wanted.
    turn = _orientation(image) if image.format != "PNG" or "exif" in image.info else 1
    if turn in SWAPPING:
        width, height = height, width
    bits = 16 if image.mode.startswith("I") else 8
    return ImageHeader(width, height, image.has_transparency_data, decoding_bytes, turn, bits)


def _orientation(image: Image.Image) -> int:
    orientation = image.getexif().get(ORIENTATION, 1)
    return orientation if orientation in TRANSPOSES else 1


def _decode(image: Image.Image, path: Path) -> None:
    told_late = image.format == "PNG" and "exif" not in image.info  # a PNG may tell it after its pixels
    image.load()
    if told_late and (orientation := _orientation(image)) != 1:
        what = f"image {printable(path)} stores its EXIF orientation ({orientation}) after its pixels"
        raise SceneError(f"{what}, which is not supported; save it upright, without the tag")


class MaskKind(NamedTuple):
    """How the masks of a capture are read: all alike, for one of them does not say it, which may be all black."""

    in_alpha: bool = False  # they are the alpha of their files
    below: int = 127  # white are the levels above this one


def read_mask(path: Path, size: tuple[int, int], kind: MaskKind | None = None) -> np.ndarray:
    """Where a mask is white, bool [H, W], by the nearest pixel of `size` (width, height); SceneError: another shape."""
    width, height = size
    with _opened(path) as image:
        scale_x, scale_y = image.width / width, image.height / height
        if abs(scale_x - scale_y) > max(1.0, scale_x, scale_y) / min(size):  # more than rounding explains
            what = f"mask {printable(path)} is {image.width}x{image.height}, of another shape than its image"
            raise SceneError(f"{what}, which is read as {width}x{height}; make it as large as the image's file")
        image.load()
        kind = kind or MaskKind()
        levels = _levels(image, kind.in_alpha)
        if image.size != size:
            levels = levels.resize(size, Image.Resampling.NEAREST)
        return np.asarray(levels) > kind.below


def stored_levels(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Levels [H, W] of an image file as it stores them, of the brightest color; and its alpha, if it has one."""
    with _opened(path) as image:
        image.load()
        alpha = np.asarray(_levels(image, True)) if image.has_transparency_data else None
        return np.asarray(_levels(image, False)), alpha


def _levels(image: Image.Image, of_alpha: bool) -> Image.Image:
    if of_alpha:
        return (image if image.mode == "RGBA" else image.convert("RGBA")).getchannel("A")
    if image.mode.startswith("I") or image.mode == "L":
        return image
    return image.convert("RGB").convert("HSV").getchannel("V")


def _eight_bits(image: Image.Image, bits: int) -> Image.Image:
    """`image` itself, or of gray with `bits` its levels in eight; Pillow would cut them off at 255."""
    if not image.mode.startswith("I"):
        return image
    levels = np.empty((image.height, image.width), dtype=np.uint8)
    for rows, band in _bands(image):
        levels[rows] = np.rint(np.asarray(band) / ((2**bits - 1) / 255))
    return Image.fromarray(levels)


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    for top in range(0, image.height, BAND):
        bottom = min(top + BAND, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))
