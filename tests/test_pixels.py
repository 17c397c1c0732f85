# SPDX-License-Identifier: Apache-2.0
"""From image files to batches: every kind of file is read right or refused by name, and each ray has its pixel."""

import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.config import Config, DataConfig, SamplingConfig
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images import batch
from nerfkit.data.images.batch import REFRESH_EVERY, Batch, ImagePool, ResidentPixels, StreamingPixels, TrainingViews
from nerfkit.data.images.pixels import image_header, read_image, read_mask
from nerfkit.errors import SceneError
from nerfkit.model.compositing import Rendering
from nerfkit.training.held_back import HeldBack
from nerfkit.training.step.losses import squared_error
from tests.naming import raises_mentioning

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
    "gray_alpha": (png(np.stack([GRAY, 255 - GRAY], -1), 8, 4), with_alpha(gray(GRAY), 255 - GRAY), 0),
    "bits": (png(np.packbits(BITS, axis=1), 1, 0, size=(WIDTH, HEIGHT)), gray(BITS * 255), 0),
    "palette_alpha": (
        png(INDEX, 8, 3, PALETTE, chunk(b"tRNS", bytes([0, 100]))),
        with_alpha(PALETTE_COLORS[INDEX], np.select([INDEX == 0, INDEX == 1], [0, 100], 255)), 0,
    ),
    "transparent_color": (
        png(RGB, 8, 2, chunk(b"tRNS", struct.pack(">3H", *RGB[2, 3]))),
        with_alpha(RGB, np.where((RGB == RGB[2, 3]).all(-1), 0, 255)), 0,
    ),
    "gray_16": (png(LEVELS_16, 16, 0), gray(np.rint(LEVELS_16 / 257)), 0),
    "rgb_16": (png(gray(LEVELS_16), 16, 2), gray(np.rint(LEVELS_16 / 257)), 1),  # Pillow keeps the high byte
    "rgba_16": (png(RGBA.astype(">u2") * 257, 16, 6), RGBA, 0),
    "webp_alpha": (saved(Image.fromarray(RGBA), "WEBP", lossless=True, exact=True), RGBA, 0),
    "jpegs_of_a_phone": (
        saved(Image.fromarray(GRAY), "MPO", quality=100, save_all=True, append_images=[Image.fromarray(255 - GRAY)]),
        gray(GRAY), 4,
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


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_turned_as_exif_says(tmp_path, orientation: int):
    """And as they are stored where the header is told to forget it."""
    format = ("PNG", "WEBP", "JPEG")[orientation % 3]
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100}, "PNG": {}}[format]
    (tmp_path / "a").write_bytes(saved(Image.fromarray(gray(GRAY)), format, exif=exif(orientation), **options))
    header, seen = image_header(tmp_path / "a"), gray(GRAY)
    seen = seen[::-1] if orientation in (3, 4, 6, 7) else seen
    seen = seen[:, ::-1] if orientation in (2, 3, 7, 8) else seen
    seen = seen.swapaxes(0, 1) if orientation > 4 else seen
    for known, wanted in ((header, seen), (header.as_stored(), gray(GRAY))):
        out = np.zeros((known.height, known.width, 3), dtype=np.uint8)
        read_image(tmp_path / "a", known, out)
        np.testing.assert_allclose(out.astype(int), wanted.astype(int), rtol=0, atol=4 * (format == "JPEG"))


def test_a_mask_is_white_above_the_middle_and_fits_its_image(tmp_path):
    levels = np.array([[0, 127, 128, 255], [255, 255, 0, 0]], dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "m.png")
    wanted = np.array([[False, False, True, True], [True, True, False, False]])
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png", (4, 2)), wanted)
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png", (8, 4)), wanted.repeat(2, 0).repeat(2, 1))
    with raises_mentioning(SceneError, "m.png", "4x2", "20x20"):
        read_mask(tmp_path / "m.png", (20, 20))


IMAGE = Image.fromarray(RGB)
WHOLE = png(RGB, 8, 2)
REFUSED = {
    "empty": (b"", "empty (0 bytes)", "copy it again, or take it away"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 5\n", "PNG", "JPEG", "WebP"),  # Pillow would run a program
    "cmyk": (saved(IMAGE.convert("CMYK"), "JPEG"), "CMYK", "RGB"),
    "gray_16_transparent": (png(LEVELS_16, 16, 0, chunk(b"tRNS", b"\0\5")), "16-bit", "gray"),
    "turned_at_the_end": (WHOLE[:-12] + chunk(b"eXIf", exif(5)[6:]) + WHOLE[-12:], "EXIF", "5"),
    "animated_png": (saved(IMAGE, "PNG", save_all=True, append_images=[IMAGE.rotate(180)]), "animated"),
    "cut_short": (WHOLE[:-40], "truncated", "copy it again, or take it away"),
    "pixels_of_a_bomb": (png(RGB[:1], 8, 2, size=(20_000, 20_000)), "400000000"),
    "text_of_a_bomb": (png(RGB, 8, 2, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26)))),),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_images(tmp_path, kind: str):
    content, *named = REFUSED[kind]
    (tmp_path / "a.png").write_bytes(content)
    with raises_mentioning(SceneError, "a.png", *named) as caught:
        read(tmp_path / "a.png")
    assert "\n" not in str(caught.value)


def test_the_loss_is_the_weighted_mean_of_squared_errors():
    """Of colors over the batch's own background: by hand, a pixel that is half transparent."""
    pixels = torch.tensor([[255, 0, 0, 255], [0, 255, 0, 102], [7, 7, 7, 0], [9, 9, 9, 9]], dtype=torch.uint8)
    background = torch.tensor([[1.0, 1, 1], [0, 0, 0.5], [0.2, 0.4, 0.6], [0, 0, 0]])
    color = torch.tensor([[0.5, 0, 0], [0, 0, 0], [0.2, 0.4, 0.6], [1, 1, 1]])
    weight = torch.tensor([1.0, 3.0, 1.0, 0.0])
    drawn = Batch(None, pixels, weight, background, torch.zeros(4))
    errors = [0.5**2 / 3, (0.4**2 + (0.6 * 0.5) ** 2) / 3, 0.0]
    wanted = (errors[0] + 3 * errors[1] + errors[2]) / 5
    loss = squared_error(Rendering(color, torch.ones(4), torch.ones(4)), drawn)["mse"]
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert squared_error(Rendering(color, *torch.ones(2, 4)), drawn._replace(weight=torch.zeros(4)))["mse"] == 0


CPU = torch.device("cpu")


def pool_of_numbers(sizes: list[tuple[int, int]], masked: bool) -> ImagePool:
    """Images whose pixels say where they are: (view, row, column); a mask ignores odd columns."""
    rows = []
    for view, (width, height) in enumerate(sizes):
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        rows.append(torch.stack([torch.full_like(row, view), row, column], dim=-1).flatten(0, 1))
    pixels = torch.cat(rows).to(torch.uint8)
    counts = torch.tensor([len(part) for part in rows])
    return ImagePool(pixels, counts.cumsum(0) - counts, tuple(sizes), pixels[:, 2] % 2 == 1 if masked else None)


SIZES = {"equal": [(7, 5)] * 20, "mixed": [(3 + k % 5, 9 - k % 4) for k in range(20)]}
SLOT = {"equal": 7 * 5, "mixed": 7 * 9}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("windowed", [False, True], ids=["all", "window"])
def test_pixels_are_equally_likely_and_are_where_it_is_said(windowed: bool, kind: str):
    pool = pool_of_numbers(SIZES[kind], True)
    source = StreamingPixels(pool, CPU, 8 * 4 * SLOT[kind]) if windowed else ResidentPixels(pool)
    for step in (0, REFRESH_EVERY, 43 * REFRESH_EVERY, 7):
        source.advance(step)
        n_pixels = sum(math.prod(pool.sizes[view]) for view in (source.views if windowed else range(20)))
        drawn = source.draw(200 * n_pixels)
        where = torch.stack([drawn.view, drawn.row, drawn.column], dim=-1)
        assert torch.equal(where, drawn.color.long()) and torch.equal(drawn.ignored, drawn.column % 2 == 1)
        counts = torch.unique(where, dim=0, return_counts=True)[1]
        assert len(counts) == n_pixels, "all of the window, and only what is in it"
        assert ((counts - 200).abs() < 6 * 200**0.5).all(), "a Poisson count of 200, within six deviations"


@pytest.mark.parametrize("windowed", [False, True], ids=["all", "window"])
@pytest.mark.parametrize("sizes", [[(20, 10)] * 8, [(20, 10), (30, 16)] * 4], ids=["equal", "mixed"])
def test_all_directions_of_panoramas_are_equally_likely(windowed: bool, sizes: list):
    panoramas = [Lens("EQUIRECTANGULAR", (float(w), float(h)), w, h) for w, h in sizes]
    lenses = [*panoramas[:7], Lens("SIMPLE_PINHOLE", (9.0, 9.0, 9.0), *sizes[7])]
    cameras, pool = Cameras.from_lenses(torch.eye(4)[:3].expand(8, 3, 4), lenses), pool_of_numbers(sizes, False)
    views = TrainingViews(cameras, pool, "black")
    if windowed:
        views.source = StreamingPixels(views.source.pool, CPU, 8 * 3 * 480)
        views.source.advance(0)
    torch.manual_seed(0)
    drawn = views.draw(200_000)
    view, row, column = drawn.pixels.long().unbind(-1)
    torch.testing.assert_close(drawn.rays.directions, cameras.rays(view, column, row).directions)
    assert (drawn.jitter.mean().item(), drawn.jitter.std().item()) == pytest.approx((0.5, 12**-0.5), abs=0.01)
    is_around = drawn.view < 7
    up = drawn.rays.directions[is_around, 1]
    assert up.abs().mean() == pytest.approx(0.5, abs=0.02) and up.square().mean() == pytest.approx(1 / 3, abs=0.02)
    counts = drawn.pixels[~is_around, 1].long().bincount()
    assert counts.max() < 1.2 * counts.min()


def test_views_held_back_are_compared_where_their_pixels_are():
    poses = torch.eye(4)[:3].expand(20, 3, 4) + torch.arange(20.0)[:, None, None]
    sizes = torch.tensor(SIZES["mixed"]).unbind(1)
    cameras = Cameras(poses, torch.full((20, 2), 9.0), torch.full((20, 2), 4.0), *sizes)
    views = TrainingViews(cameras, pool_of_numbers(SIZES["mixed"], True), "black")
    held_back = HeldBack(Config(sampling=SamplingConfig("contracted"), data=DataConfig(background="black")), views)
    view, row, column = (held_back.truth * 255).round().long().unbind(-1)
    assert view.unique().tolist() == held_back.compared == [2, 7, 12, 17]
    torch.testing.assert_close(held_back.rays.directions, cameras.rays(view, column, row).directions)
    assert torch.equal(held_back.rays.origins, cameras.positions[view])
    assert torch.equal(held_back.weight, (column % 2 == 0).float())
    for progress, weight in ((0.09, 0.0), (0.1, 1.0)):
        held_back.hold(progress)
        drawn = views.draw(4000)
        is_held, counts = (drawn.view == 7) | (drawn.view == 17), drawn.pixels[:, 2] % 2 == 0
        assert torch.equal(drawn.weight, counts * torch.where(is_held, weight, 1.0))


def test_a_device_too_small_for_a_few_images_is_refused():
    with raises_mentioning(SceneError, "data.downscale", "cpu"):
        StreamingPixels(pool_of_numbers(SIZES["equal"], False), CPU, 7 * 3 * 35)


@pytest.mark.cuda
def test_images_beyond_half_of_the_memory_go_through_a_window():
    device = torch.device("cuda", torch.cuda.current_device())
    pixels = torch.randint(256, (64 * 2**20, 4), dtype=torch.uint8)
    pool = ImagePool(pixels, 2**20 * torch.arange(64), ((1024, 1024),) * 64)
    total = torch.cuda.mem_get_info(device)[1]
    assert isinstance(batch.pixel_source(pool, device, 100_000), ResidentPixels)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved(device) + 2 * 100 * 2**20
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)
    try:
        source = batch.pixel_source(pool, device, 100_000)
        assert isinstance(source, StreamingPixels) and 20 <= source.n_slots <= 25
        for step in range(0, 40 * REFRESH_EVERY, 8):
            source.advance(step)
            drawn = source.draw(1000)
            number = drawn.view * 2**20 + drawn.row * 1024 + drawn.column
            assert torch.equal(drawn.color.cpu(), pool.pixels[number.cpu()])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.parametrize(("n_steps", "every"), [(100_000, 16), (48, 3), (5, 1)])
def test_every_image_is_seen_in_the_steps_that_there_are(n_steps: int, every: int):
    source = StreamingPixels(pool_of_numbers(SIZES["equal"], False), CPU, 8 * 3 * 35, n_steps)
    assert source.every == every
    assert ("TOO FEW" in source.description) == (n_steps == 5)
    seen, resumed = set(), StreamingPixels(source.pool, CPU, 8 * 3 * 35, n_steps)
    for step in range(min(n_steps, 400)):
        source.advance(step)
        seen |= set(source.views)
    assert (len(seen) == 20) == (n_steps > 5)
    resumed.advance(step)
    assert resumed.views == source.views
