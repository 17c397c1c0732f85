# SPDX-License-Identifier: Apache-2.0
"""Every kind of image file: what is read is right, what would be read wrongly is refused by name."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.images.pixels import blend, image_header, read_image, read_mask
from nerfkit.errors import SceneError
from tests.naming import raises_naming

HEIGHT, WIDTH = 5, 7
GRAY = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH) * 7
RGB = np.stack([GRAY, GRAY[::-1], 255 - GRAY], axis=-1)
RGBA = np.concatenate([RGB, 255 - GRAY[..., None] // 2], axis=-1)
LEVELS_16 = np.linspace(0, 65535, 300 * WIDTH).astype(">u2").reshape(300, WIDTH)  # of several bands of rows


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(values: np.ndarray, depth: int, color: int, *chunks: bytes, size: tuple[int, int] | None = None) -> bytes:
    """A PNG of `values` [H, W] or [H, W, C], packed already where `depth` is below 8; `chunks` come before them."""
    width, height = size or values.shape[1::-1]
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[274] = orientation
    return tags.tobytes()


def read(path: Path) -> np.ndarray:
    header = image_header(path)
    out = np.zeros((header.height, header.width, 4 if header.has_alpha else 3), dtype=np.uint8)
    read_image(path, header, out)
    return out


def gray(levels: np.ndarray) -> np.ndarray:
    return np.repeat(levels[..., None], 3, axis=-1)


def with_alpha(colors: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return np.concatenate([colors, alpha[..., None].astype(np.uint8)], axis=-1)


PALETTE = chunk(b"PLTE", RGB.tobytes()[: 3 * 16])
INDEX = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH) % 16
PALETTE_COLORS = np.frombuffer(RGB.tobytes(), np.uint8)[: 3 * 16].reshape(16, 3)
BITS = INDEX % 2
KINDS = {  # file, pixels, and how far they may be off
    "rgb": (png(RGB, 8, 2), RGB, 0),
    "rgba": (png(RGBA, 8, 6), RGBA, 0),
    "gray_alpha": (png(np.stack([GRAY, 255 - GRAY], -1), 8, 4), with_alpha(gray(GRAY), 255 - GRAY), 0),
    "bits": (png(np.packbits(BITS, axis=1), 1, 0, size=(WIDTH, HEIGHT)), gray(BITS * 255), 0),
    "palette": (png(INDEX, 8, 3, PALETTE), PALETTE_COLORS[INDEX], 0),
    "palette_alpha": (
        png(INDEX, 8, 3, PALETTE, chunk(b"tRNS", bytes([0, 100]))),
        with_alpha(PALETTE_COLORS[INDEX], np.select([INDEX == 0, INDEX == 1], [0, 100], 255)),
        0,
    ),
    "transparent_color": (
        png(RGB, 8, 2, chunk(b"tRNS", struct.pack(">3H", *RGB[2, 3]))),
        with_alpha(RGB, np.where((RGB == RGB[2, 3]).all(-1), 0, 255)),
        0,
    ),
    "gray_16": (png(LEVELS_16, 16, 0), gray(np.rint(LEVELS_16 / 257)), 0),
    "rgb_16": (png(gray(LEVELS_16), 16, 2), gray(np.rint(LEVELS_16 / 257)), 1),  # Pillow keeps the high byte
    "rgba_16": (png(RGBA.astype(">u2") * 257, 16, 6), RGBA, 0),
    "gray_alpha_16": (
        png(np.stack([GRAY, 255 - GRAY], -1).astype(">u2") * 257, 16, 4), with_alpha(gray(GRAY), 255 - GRAY), 0,
    ),
    "webp_alpha": (saved(Image.fromarray(RGBA), "WEBP", lossless=True, exact=True), RGBA, 0),
    "jpeg": (saved(Image.fromarray(gray(GRAY)), "JPEG", quality=100), gray(GRAY), 4),
    "jpegs_of_a_phone": (
        saved(Image.fromarray(GRAY), "MPO", quality=100, save_all=True, append_images=[Image.fromarray(255 - GRAY)]),
        gray(GRAY),
        4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_images(tmp_path, kind: str):
    content, wanted, off = KINDS[kind]
    file = tmp_path / "a.png"  # what is in a file counts, not its name
    file.write_bytes(content)
    pixels = read(file)
    assert pixels.shape == wanted.shape
    np.testing.assert_allclose(pixels.astype(int), wanted.astype(int), rtol=0, atol=off)


def test_resizing_is_the_same_of_16_bits(tmp_path):
    content, wanted, _ = KINDS["gray_16"]
    (tmp_path / "a.png").write_bytes(content)
    Image.fromarray(wanted.astype(np.uint8)).save(tmp_path / "plain.png")
    small = [np.zeros((3, 4, wanted.shape[-1]), dtype=np.uint8) for _ in range(2)]
    for name, out in zip(("a.png", "plain.png"), small, strict=True):
        read_image(tmp_path / name, image_header(tmp_path / name), out)
    np.testing.assert_array_equal(*small)


SEEN = {  # by EXIF orientation: where the stored pixels are seen, in numpy's own terms
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: stored[::-1].swapaxes(0, 1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: stored[:, ::-1].swapaxes(0, 1),
}


@pytest.mark.parametrize("orientation", SEEN)
def test_pixels_are_turned_as_exif_says(tmp_path, orientation: int):
    """And as they are stored where the header is told to forget it."""
    format = ("PNG", "WEBP", "JPEG")[orientation % 3]
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100}, "PNG": {}}[format]
    (tmp_path / "a").write_bytes(saved(Image.fromarray(gray(GRAY)), format, exif=exif(orientation), **options))
    header = image_header(tmp_path / "a")
    assert header.turn == orientation
    for known, wanted in ((header, SEEN[orientation](gray(GRAY))), (header.as_stored(), gray(GRAY))):
        out = np.zeros((known.height, known.width, 3), dtype=np.uint8)
        read_image(tmp_path / "a", known, out)
        np.testing.assert_allclose(out.astype(int), wanted.astype(int), rtol=0, atol=4 * (format == "JPEG"))


def test_a_mask_is_white_above_the_middle_and_fits_its_image(tmp_path):
    levels = np.array([[0, 127, 128, 255], [255, 255, 0, 0]], dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "m.png")
    wanted = np.array([[False, False, True, True], [True, True, False, False]])
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png", (4, 2)), wanted)
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png", (8, 4)), wanted.repeat(2, 0).repeat(2, 1))
    with raises_naming(SceneError, "m.png", "4x2", "20x20"):
        read_mask(tmp_path / "m.png", (20, 20))


IMAGE = Image.fromarray(RGB)
WHOLE = png(RGB, 8, 2)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 5\n%%EndComments\nshowpage\n"
BOMB = zlib.compress(bytes(2**26))  # of a thousandth of its size
REFUSED = {
    "empty": (b"", "empty (0 bytes)", "copy it again, or take it away"),
    "eps": (EPS, "PNG", "JPEG", "WebP"),  # of which Pillow would start a program
    "cmyk": (saved(IMAGE.convert("CMYK"), "JPEG"), "CMYK", "RGB"),
    "gray_16_transparent": (png(LEVELS_16, 16, 0, chunk(b"tRNS", b"\0\5")), "16-bit", "gray"),
    "turned_at_the_end": (WHOLE[:-12] + chunk(b"eXIf", exif(5)[6:]) + WHOLE[-12:], "EXIF", "5"),
    "animated_png": (saved(IMAGE, "PNG", save_all=True, append_images=[IMAGE.rotate(180)]), "animated"),
    "cut_short": (WHOLE[:-40], "truncated", "copy it again, or take it away"),
    "pixels_of_a_bomb": (png(RGB[:1], 8, 2, size=(20_000, 20_000)), "400000000"),
    "text_of_a_bomb": (png(RGB, 8, 2, chunk(b"zTXt", b"a\0\0" + BOMB)),),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_images(tmp_path, kind: str):
    content, *named = REFUSED[kind]
    (tmp_path / "a.png").write_bytes(content)
    with raises_naming(SceneError, "a.png", *named) as caught:
        read(tmp_path / "a.png")
    assert "\n" not in str(caught.value)


def test_colors_are_blended_as_they_are_stored():
    """sRGB values, neither made linear nor multiplied by alpha before; without alpha they are the color."""
    pixels = torch.tensor([[[51, 102, 204, 51], [51, 102, 204, 255]]], dtype=torch.uint8)
    background = torch.tensor([1.0, 0.5, 0.0])
    blended = blend(pixels, background)
    wanted = torch.tensor([[[0.04 + 0.8, 0.08 + 0.4, 0.16], [0.2, 0.4, 0.8]]])
    torch.testing.assert_close(blended, wanted)
    torch.testing.assert_close(blend(pixels[..., :3], background), wanted[:, [1, 1]])
