# SPDX-License-Identifier: Apache-2.0
"""The sharpest frames of a video."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageStat

from nerfkit.errors import SceneError
from nerfkit.reading import shown

SUFFIXES = (".mp4", ".mov", ".mkv", ".m4v", ".avi", ".webm", ".mts", ".mpg", ".mpeg")
SHARPNESS_WIDTH = 640  # pixels


def is_video(path: Path) -> bool:
    """Whether a file's name is that of a video."""
    return path.suffix.lower() in SUFFIXES


def sharpest(video: Path, windows: int) -> Iterator[np.ndarray]:
    """The sharpest frame uint8 [H, W, 3] of each of `windows` equal parts of a video; one at a time is in memory."""
    import imageio_ffmpeg

    path = str(video.resolve())
    try:
        count = imageio_ffmpeg.count_frames_and_secs(path)[0]
        reader = imageio_ffmpeg.read_frames(path, pix_fmt="rgb24")
        width, height = next(reader)["size"]
        windows = min(windows, count)
        best, best_sharpness, current = None, -1.0, 0
        for index, data in enumerate(reader):
            frame = np.frombuffer(data, dtype=np.uint8).reshape(height, width, 3)
            window = min(index * windows // count, windows - 1)
            if window != current:
                yield best
                best_sharpness, current = -1.0, window
            sharpness = sharpness_of(frame)
            if sharpness > best_sharpness:
                best, best_sharpness = frame, sharpness
        if best is None:
            raise ValueError("it holds no frames")
        yield best
    except (OSError, RuntimeError, StopIteration, ValueError, KeyError) as error:  # what imageio_ffmpeg raises, too
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise SceneError(f"video {shown(video)} cannot be decoded, is it truncated? ({shown(words[-1])})") from None


def sharpness_of(frame: np.ndarray) -> float:
    """Variance of the edges of a frame uint8 [H, W, 3], at some 640 pixels of width."""
    gray = Image.fromarray(frame).convert("L").reduce(max(1, frame.shape[1] // SHARPNESS_WIDTH))
    return ImageStat.Stat(gray.filter(ImageFilter.FIND_EDGES)).var[0]
