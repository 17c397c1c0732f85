# SPDX-License-Identifier: Apache-2.0
"""Images of values, that say what they show; image and video files."""

import io
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from nerfkit.errors import UserError

GAP = 8  # pixels between two parts of an image, and around words
LEAST = 160  # pixels, height of a color bar
SPHERICAL = bytes.fromhex("ffcc8263f8554a938814587a02521fdd") + (  # what players look for in a video of panoramas
    b'<?xml version="1.0"?><rdf:SphericalVideo xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    b'xmlns:GSpherical="http://ns.google.com/videos/1.0/spherical/"><GSpherical:Spherical>true</GSpherical:Spherical>'
    b"<GSpherical:Stitched>true</GSpherical:Stitched><GSpherical:StitchingSoftware>nerfkit"
    b"</GSpherical:StitchingSoftware><GSpherical:ProjectionType>equirectangular</GSpherical:ProjectionType>"
    b"</rdf:SphericalVideo>"
)


def to_uint8(image: Tensor) -> np.ndarray:
    return (image.clamp(0, 1) * 255 + 0.5).to(torch.uint8).cpu().numpy()


def file_stems(names: Sequence[str]) -> list[str]:
    """Views' names as those of their files, all different: a view's number where its name is none for files."""

    def is_usable(name: str) -> bool:
        return name.isprintable() and len(name) <= 60 and Path(name).name == name and not name.startswith(".")

    stems = [name if is_usable(name) else f"{view:04d}" for view, name in enumerate(names)]
    if len({stem.casefold() for stem in stems}) == len(stems):  # some file systems ignore case
        return stems
    return [f"{view:04d}" for view in range(len(stems))]


def png_bytes(image: Tensor) -> bytes:
    # The default makes files a twentieth smaller, in three times as long.
    return imageio.imwrite(imageio.RETURN_BYTES, to_uint8(image), format="png", compression=1)


def npz_bytes(**values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **values)
    return content.getvalue()


@cache
def _colors(colormap: str, device: torch.device) -> Tensor:
    """[256, 3] in [0, 1]"""
    import matplotlib  # slow to import

    return torch.from_numpy(matplotlib.colormaps[colormap](np.arange(256))[:, :3]).float().to(device)


def colorize(values: Tensor, low: float, high: float, colormap: str = "turbo") -> Tensor:
    """Image [H, W, 3] of values [H, W], low to high along a colormap."""
    unit = ((values - low) / max(high - low, 1e-9)).clamp(0, 1)
    return _colors(colormap, values.device)[(unit * 256).long().clamp(0, 255)]


def preview(name: str, images: dict[str, Tensor], depth_range: tuple[float, float], colormap: str = "turbo") -> Tensor:
    """Displayable image [H, W, 3] of the output `name`; depth and normals fade to white with the opacity."""
    image = images[name]
    if name == "rgb":
        return image
    opacity = images["opacity"][..., None]  # [H, W, 1]
    if name == "opacity":
        return opacity.expand(-1, -1, 3)
    colors = image / 2 + 0.5 if name == "normal" else colorize(image, *depth_range, colormap)
    return colors * opacity + (1 - opacity)


def beside(parts: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Images [H, W, 3] side by side, each below its title, on white: [H', W', 3]. Their pixels stay as they are."""
    import matplotlib  # slow to import; Pillow's own font has no letters but ASCII

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    tallest = max(image.shape[0] for _, image in parts)
    font = ImageFont.truetype(str(file), min(max(tallest // 32, 12), 32))
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox
    boxes = [measure((0, 0), title, font) for title, _ in parts]
    widths = [max(image.shape[1], math.ceil(box[2])) for (_, image), box in zip(parts, boxes, strict=True)]
    left, top = GAP, math.ceil(max(box[3] for box in boxes)) + 2 * GAP
    canvas = Image.new("RGB", (sum(widths) + GAP * (len(parts) + 1), top + tallest + GAP), "white")
    for (title, image), width in zip(parts, widths, strict=True):
        ImageDraw.Draw(canvas).text((left, GAP), title, "black", font)
        canvas.paste(Image.fromarray(to_uint8(image)), (left, top))
        left += width + GAP
    return torch.frombuffer(bytearray(canvas.tobytes()), dtype=torch.uint8).view(canvas.height, canvas.width, 3) / 255


@cache
def color_bar(colormap: str, low: float, high: float, label: str, beyond: str = "both", height: int = 320) -> Tensor:
    """What the colors say, [H, W, 3]: numbers and their unit; `beyond` (both, max) is where there are values more."""
    from matplotlib import cm, colors  # slow to import
    from matplotlib.figure import Figure  # not pyplot, whose backend is the caller's

    dpi = max(height // 4, 80)  # words grow with the images
    figure = Figure(figsize=(1.2, max(height, LEAST) / dpi), dpi=dpi, layout="constrained")
    values = cm.ScalarMappable(colors.Normalize(low, high), colormap)
    figure.colorbar(values, cax=figure.subplots(), label=label, extend=beyond)
    figure.savefig(content := io.BytesIO())
    return torch.from_numpy(imageio.imread(content.getvalue())[..., :3]) / 255


def comparison_image(truth: Tensor, render: Tensor, name: str, score: float, counts: Tensor | None = None) -> Tensor:
    """Truth, render and error beside a color bar, enlarged if small; gray where a pixel does not count, [H, W] bool."""
    side = max(1, LEAST // max(truth.shape[:2]))
    error = colorize((render - truth).abs().mean(-1), 0, 0.25, "inferno")
    share = ""
    if counts is not None:
        error[~counts], share = 0.5, f" of the {counts.float().mean():.0%} that count"
    images = [x.repeat_interleave(side, dim=0).repeat_interleave(side, dim=1) for x in (truth, render, error)]
    truth, render, error = images
    bar = color_bar("inferno", 0, 0.25, "error (1: full range)", "max", len(truth))
    titles = f"truth\n{name}", f"render\nPSNR {score:.2f} dB{share}", "error\n|render - truth|", ""
    return beside(list(zip(titles, (truth, render, error, bar), strict=True)))


@contextmanager
def video_writer(path: Path, fps: int) -> Iterator[Callable[[Tensor], None]]:
    """Inside, appends images [H, W, 3] in [0, 1] to an MP4 (H.264); sizes are padded to even numbers by their edges."""
    with imageio.get_writer(
        path, format="FFMPEG", fps=fps, codec="libx264", quality=8, macro_block_size=1, ffmpeg_log_level="error"
    ) as writer:

        def add(image: Tensor) -> None:
            height, width = image.shape[:2]
            writer.append_data(np.pad(to_uint8(image), ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))

        yield add


def probe_video() -> str | None:
    """Try to encode two frames; the reason if that fails, else None."""
    try:
        _encode([torch.zeros(64, 64, 3)] * 2, fps=10)
        return None
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {error}"


def video_bytes(frames: list[Path], fps: int) -> bytes:
    """PNG `frames` as the content of an MP4 file; raises UserError (the frames stay) if ffmpeg fails."""
    try:
        return _encode((torch.from_numpy(np.array(imageio.imread(frame)[..., :3])) / 255 for frame in frames), fps)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no video: {error}; the frames are kept in {frames[0].parent}") from None


def as_panoramas(video: bytes) -> bytes:
    """An MP4 file that says that it shows panoramas, as Spherical Video V1 has it: at the end of its track."""

    def box(kind: bytes, start: int, end: int) -> tuple[int, int]:
        while video[start + 4 : start + 8] != kind and start < end:
            length = int.from_bytes(video[start : start + 4], "big")
            start += length if length != 1 else int.from_bytes(video[start + 8 : start + 16], "big")
        return start, start + int.from_bytes(video[start : start + 4], "big")

    movie, movie_end = box(b"moov", 0, len(video))  # behind the frames, so that none of them moves
    track, track_end = box(b"trak", movie + 8, movie_end)
    added = (len(SPHERICAL) + 8).to_bytes(4, "big") + b"uuid" + SPHERICAL
    content = bytearray(video)
    for start, end in ((movie, movie_end), (track, track_end)):
        content[start : start + 4] = (end - start + len(added)).to_bytes(4, "big")
    content[track_end:track_end] = added
    return bytes(content)


def _encode(images: Iterable[Tensor], fps: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:  # nobody can have put a link there that ffmpeg would follow
        file = Path(folder) / "video.mp4"
        with video_writer(file, fps) as add:
            for image in images:
                add(image)
        content = file.read_bytes()
    if not content:
        raise RuntimeError("ffmpeg wrote an empty file")
    return content


def moving_bytes(format: str, frames: list[np.ndarray], fps: float, last: float = 0.0) -> bytes:
    """Frames [H, W, 3] uint8 as a GIF or WEBP that repeats, its last frame shown for `last` more seconds."""
    images, content = [Image.fromarray(frame) for frame in frames], io.BytesIO()
    milliseconds = [int(1000 / fps)] * len(images)
    milliseconds[-1] += round(1000 * last)
    images[0].save(content, format, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
    return content.getvalue()
