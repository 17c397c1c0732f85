# SPDX-License-Identifier: Apache-2.0
"""Frames -> video."""

from __future__ import annotations

import os
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
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

    def add(self, picture: Tensor) -> None:
        """Append a picture [H, W, 3] in [0, 1]."""
        frame = to_uint8(picture)
        height, width = frame.shape[:2]
        self._writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))

    def close(self) -> None:
        self._writer.close()



def probe_video(folder: Path) -> str | None:
    """Try to encode two frames in `folder`; the reason if that fails, else None."""
    path = folder / "probe.mp4"
    try:
        writer = VideoWriter(path, fps=10)
        for _ in range(2):
            writer.add(torch.zeros(64, 64, 3))
        writer.close()
        return None if path.stat().st_size else "ffmpeg wrote an empty file"
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        path.unlink(missing_ok=True)



def write_video(path: Path, frames: list[Path], fps: int) -> None:
    """Encode PNG `frames` to `path`; raises UserError (the frames stay) if ffmpeg fails."""
    aside = path.with_name(path.stem + ".part.mp4")
    try:
        writer = VideoWriter(aside, fps)
        for frame in frames:
            writer.add(torch.from_numpy(np.array(imageio.imread(frame)[..., :3])) / 255)
        writer.close()
        os.replace(aside, path)
    except (OSError, RuntimeError, ValueError) as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"no video: {error}; the frames are kept in {frames[0].parent}") from None

