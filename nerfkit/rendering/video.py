# SPDX-License-Identifier: Apache-2.0
"""Frames -> video."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.rendering.images import to_uint8


class VideoWriter:
    """An MP4 (H.264) through imageio-ffmpeg; sizes are padded to even numbers."""

    def __init__(self, path: Path, fps: int):
        self.path = path
        self._writer = imageio.get_writer(
            path, format="FFMPEG", fps=fps, codec="libx264", quality=8, macro_block_size=1, ffmpeg_log_level="error"
        )

    def add(self, image: Tensor) -> None:
        """Append an image [H, W, 3] in [0, 1]."""
        frame = to_uint8(image)
        height, width = frame.shape[:2]
        self._writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))

    def close(self) -> None:
        self._writer.close()


def probe_video() -> str | None:
    """Try to encode two frames; the reason if that fails, else None."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            _encode(Path(folder) / "probe.mp4", [torch.zeros(64, 64, 3)] * 2, fps=10)
        return None
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {error}"


def video_bytes(frames: list[Path], fps: int) -> bytes:
    """PNG `frames` as the content of an MP4 file; raises UserError (the frames stay) if ffmpeg fails."""
    try:
        with tempfile.TemporaryDirectory() as folder:  # nobody can have put a link there that ffmpeg would follow
            images = (torch.from_numpy(np.array(imageio.imread(frame)[..., :3])) / 255 for frame in frames)
            return _encode(Path(folder) / "video.mp4", images, fps)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no video: {error}; the frames are kept in {frames[0].parent}") from None


def gif_bytes(frames: list[np.ndarray], fps: int, last: float = 0.0) -> bytes:
    """Frames [H, W, 3] uint8 as the content of a GIF that repeats, its last frame shown for `last` more seconds."""
    images, content = [Image.fromarray(frame) for frame in frames], io.BytesIO()
    milliseconds = [1000 // fps] * len(images)
    milliseconds[-1] += round(1000 * last)
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
    return content.getvalue()


def _encode(path: Path, images: Iterable[Tensor], fps: int) -> bytes:
    writer = VideoWriter(path, fps)
    try:
        for image in images:
            writer.add(image)
    finally:
        writer.close()
    content = path.read_bytes()
    if not content:
        raise RuntimeError("ffmpeg wrote an empty file")
    return content
