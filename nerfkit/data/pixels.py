# SPDX-License-Identifier: Apache-2.0
"""Image files -> pixels, and pixels over a background."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

BACKGROUNDS = {"white": 1.0, "black": 0.0}

FORMATS = ("PNG", "JPEG", "WEBP")  # Pillow's other decoders are disabled: one of them runs programs
FILE_LIMIT = 2**31  # bytes
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
DECODING_BYTES = {"PNG": 5, "JPEG": 10, "MPO": 10, "WEBP": 18}  # of a pixel, at most (measured); MPO is many JPEGs
RESIZING_BYTES = 12  # of a pixel, in addition to decoding
ORIENTATION = 274  # tag of EXIF; 2 to 8 are turned or mirrored
BAND = 256  # rows converted at a time, which bounds the extra memory


class ImageHeader(NamedTuple):
    """Metadata of an image file."""

    width: int
    height: int
    has_alpha: bool
    decoding_bytes: int  # memory that decoding takes


def image_header(path: Path) -> ImageHeader:
    """The header of an image file; raises SceneError if it is missing, no image, or unsupported."""
    with _opened(path) as image:
        decoding_bytes = DECODING_BYTES[image.format] * image.width * image.height
        return ImageHeader(*image.size, image.has_transparency_data, decoding_bytes)


def read_image(path: Path, size: tuple[int, int], out: np.ndarray) -> None:
    """Fill `out`, uint8 [H, W, 3 or 4], from an image file of `size` (width, height): straight alpha, sRGB as stored.

    It is resized by area where `out` has another size.
    """
    mode = "RGBA" if out.shape[-1] == 4 else "RGB"
    height, width = out.shape[:2]
    with _opened(path) as image:
        if image.size != size:
            raise SceneError(f"image {shown(path)} is {_by(*image.size)} now, but was {_by(*size)} a moment ago")
        image.load()
        _check_orientation(image, path)  # a PNG may store it after its pixels
        image = _eight_bits(image)
        if image.size != (width, height):
            # Pillow averages RGBA with colors weighted by alpha.
            image = image.convert(mode).resize((width, height), Image.Resampling.BOX)
        for rows, band in _bands(image):
            out[rows] = np.asarray(band.convert(mode))


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
        try:
            with Image.open(file, formats=FORMATS) as image:
                _check_kind(image, path)
                yield image
        except SceneError:
            raise
        except UnidentifiedImageError:
            known = "PNG, JPEG or WebP"
            raise SceneError(f"image {shown(path)} is no {known} file, whatever its name says; convert it") from None
        except Image.DecompressionBombError as error:
            raise SceneError(f"image {shown(path)} is too large to be read: {error}") from None
        except Exception as error:  # decoders raise nearly anything where a file is broken
            cause = shown(str(error) or type(error).__name__)
            raise SceneError(f"image {shown(path)} cannot be read, is it truncated? ({cause})") from None


def _check_kind(image: Image.Image, path: Path) -> None:
    """Reject images that would be decoded wrongly."""
    if image.mode not in MODES:
        raise SceneError(f"image {shown(path)} has the color space {image.mode}; save it as RGB, RGBA or gray")
    if image.mode.startswith("I") and "transparency" in image.info:
        raise SceneError(f"image {shown(path)} is 16-bit gray with a transparent value; save it as RGBA")
    if image.format in ("PNG", "WEBP") and getattr(image, "is_animated", False):
        raise SceneError(f"image {shown(path)} is animated; save one frame as a file of its own")
    # Pillow would decode a PNG to look for EXIF after its pixels: checked when they are decoded.
    if image.format != "PNG" or "exif" in image.info:
        _check_orientation(image, path)


def _check_orientation(image: Image.Image, path: Path) -> None:
    orientation = image.getexif().get(ORIENTATION, 1)
    if orientation in range(2, 9):
        raise SceneError(
            f"image {shown(path)} has an EXIF orientation ({orientation}), and whether the poses "
            "refer to rotated or to stored pixels is unknown; rotate the pixels if so, and remove the tag"
        )


def _eight_bits(image: Image.Image) -> Image.Image:
    """`image` itself, or of 16-bit gray its values / 257; Pillow would cut them off at 255."""
    if not image.mode.startswith("I"):
        return image
    levels = np.empty((image.height, image.width), dtype=np.uint8)
    for rows, band in _bands(image):
        levels[rows] = np.rint(np.asarray(band) / 257)
    return Image.fromarray(levels)


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Bands of rows of `image`, from top to bottom."""
    for top in range(0, image.height, BAND):
        bottom = min(top + BAND, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _by(width: int, height: int) -> str:
    return f"{width}x{height}"
