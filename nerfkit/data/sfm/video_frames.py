# SPDX-License-Identifier: Apache-2.0
"""A video -> its sharpest frames, as JPEG files in a folder of nerfkit's own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from nerfkit.errors import SceneError, UserError
from nerfkit.files import OwnFolder
from nerfkit.reading import open_regular, read_json, shown

SUFFIXES = (".mp4", ".mov", ".mkv", ".m4v", ".avi", ".webm", ".mts", ".mpg", ".mpeg")
KIND = "folder of video frames"
RECORD = "frames.json"  # written last
WINDOWS = 150
QUALITY = 95  # of JPEG
SHARPNESS_WIDTH = 640  # pixels
FILE_LIMIT = 2**40  # bytes


def is_video(path: Path) -> bool:
    """Whether a file's name is that of a video."""
    return path.suffix.lower() in SUFFIXES


def extract_frames(video: Path, folder: Path, report: Callable[[str], None], windows: int = WINDOWS) -> None:
    """Write the sharpest frame of each of `windows` equal parts of `video` into `folder`, unless they are there."""
    open_regular(video, FILE_LIMIT, "video", SceneError).close()
    own = OwnFolder(folder, KIND)
    own.claim()
    own.lock()
    source = {"video": video.name, "bytes": video.stat().st_size, "windows": windows}
    if own.owns(RECORD):
        record = _record(folder / RECORD)
        if record.get("source") == source and all(own.owns(name) for name in record.get("frames", {})):
            _say(report, video, list(record["frames"].values()))
            return
    own.clear()
    frames = {}
    for frame, sharpness in sharpest(video, windows, report):
        name = f"frame_{len(frames) + 1:04d}.jpg"
        own.write(name, _jpeg(frame))
        frames[name] = round(sharpness, 2)
    own.write(RECORD, json.dumps({"source": source, "frames": frames}, indent=1) + "\n")
    _say(report, video, list(frames.values()))


def sharpest(video: Path, windows: int, report: Callable[[str], None]) -> Iterator[tuple[np.ndarray, float]]:
    """The sharpest frame uint8 [H, W, 3] of each window, with its sharpness; one frame per window is in memory."""
    count = _frame_count(video)
    windows = min(windows, count)
    best, best_sharpness, current = None, -1.0, 0
    for index, frame in enumerate(_decoded(video, report)):
        window = min(index * windows // count, windows - 1)
        if window != current:
            if best is not None:
                yield best, best_sharpness
            best, best_sharpness, current = None, -1.0, window
        sharpness = laplacian_variance(frame)
        if sharpness > best_sharpness:
            best, best_sharpness = frame, sharpness
    if best is None:
        raise SceneError(f"video {shown(video)} holds no frames that can be decoded")
    yield best, best_sharpness


def laplacian_variance(frame: np.ndarray) -> float:
    """Sharpness of a frame uint8 [H, W, 3]: variance of the Laplacian of its gray values at 640 pixels of width."""
    image = Image.fromarray(frame).convert("L")
    if image.width > SHARPNESS_WIDTH:
        height = max(3, round(image.height * SHARPNESS_WIDTH / image.width))
        image = image.resize((SHARPNESS_WIDTH, height), Image.Resampling.BOX)
    gray = np.asarray(image, dtype=np.float32)  # [h, w]
    if min(gray.shape) < 3:
        return 0.0
    across = gray[1:-1, :-2] + gray[1:-1, 2:]  # [h - 2, w - 2]
    return float((across + gray[:-2, 1:-1] + gray[2:, 1:-1] - 4 * gray[1:-1, 1:-1]).var())


def _frame_count(video: Path) -> int:
    import imageio_ffmpeg

    try:
        count, _ = imageio_ffmpeg.count_frames_and_secs(str(video.resolve()))
    except Exception as error:  # RuntimeError or OSError, or what parsing ffmpeg's words raises
        raise _undecodable(video, error) from None
    if count < 1:
        raise SceneError(f"video {shown(video)} holds no frames")
    return count


def _decoded(video: Path, report: Callable[[str], None]) -> Iterator[np.ndarray]:
    """All frames, uint8 [H, W, 3]."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(video.resolve()), pix_fmt="rgb24")
    try:
        meta = next(reader)
        if any(depth in meta.get("pix_fmt", "") for depth in ("10le", "10be", "12le", "12be", "p010")):
            report(f"note: {shown(video)} has more than 8 bits a channel (HDR?); its frames are converted to 8")
        width, height = meta["size"]
        for data in reader:
            yield np.frombuffer(data, dtype=np.uint8).reshape(height, width, 3)
    except (OSError, RuntimeError, StopIteration, ValueError, KeyError) as error:
        raise _undecodable(video, error) from None
    finally:
        reader.close()


def _undecodable(video: Path, error: Exception) -> SceneError:
    words = str(error).strip().splitlines() or [type(error).__name__]
    return SceneError(f"video {shown(video)} cannot be decoded, is it truncated? ({shown(words[-1].strip())})")


def _jpeg(frame: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(frame).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def _record(file: Path) -> dict:
    try:
        record = read_json(file, SceneError)
    except UserError:
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("frames"), dict) else {}


def _say(report: Callable[[str], None], video: Path, sharpness: list[float]) -> None:
    spread = f"{min(sharpness):.4g} to {max(sharpness):.4g}"
    report(f"{shown(video)}: {len(sharpness)} frames, of a sharpness (variance of the Laplacian) from {spread}")
