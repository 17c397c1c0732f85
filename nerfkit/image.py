# SPDX-License-Identifier: Apache-2.0
"""Colors of all rays -> pictures, sheets and video."""

from __future__ import annotations

import io
import os
from pathlib import Path

import imageio.v2 as imageio
import matplotlib
import numpy as np
import torch
from torch import Tensor

from nerfkit.cameras import Cameras, Rays
from nerfkit.errors import UserError
from nerfkit.files import write_aside
from nerfkit.ops.packed import ray_indices, sum_rays
from nerfkit.renderer import Renderer

MIN_CHUNK = 64
RAY_BYTES = 2**15  # of a ray through a field that is not trained yet, twofold


class PictureRenderer:
    """Renders whole pictures in chunks of rays that halve when memory runs out.

    Finished chunks move to the CPU, so the device's peak memory does not grow with the picture, unless
    `stays_on_device`, as for a viewer.
    """

    def __init__(self, renderer: Renderer, background: Tensor, chunk: int | None = None, stays_on_device: bool = False):
        self.renderer = renderer
        self.background = background  # [3]
        self.chunk = chunk or default_chunk(background.device)  # rays
        self.stays_on_device = stays_on_device

    @torch.no_grad()
    def __call__(self, cameras: Cameras, view: int, outputs: tuple[str, ...] = ("rgb",)) -> dict[str, Tensor]:
        """Pictures of one view, float32: rgb [H, W, 3], opacity [H, W], normal [H, W, 3] (world space)
        and, for "depth", depth_ray and depth_z [H, W] in scene units; 0 where nothing is seen."""
        n_pixels = cameras.width * cameras.height
        chunks, start = [], 0
        while start < n_pixels:
            end = min(start + self.chunk, n_pixels)
            try:
                chunks.append(self._chunk(cameras, view, start, end, outputs))
                start = end
                continue
            except RuntimeError as error:
                if not _out_of_memory(error) or self.chunk <= MIN_CHUNK:
                    raise
            # Outside of the except clause, where the error no longer holds the chunk's tensors.
            self.chunk = max((end - start) // 2, MIN_CHUNK)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        size = (cameras.height, cameras.width)
        return {name: torch.cat([c[name] for c in chunks]).unflatten(0, size) for name in chunks[0]}

    def _chunk(self, cameras: Cameras, view: int, start: int, end: int, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        rays = cameras.picture_rays(view, start, end)
        rendering, samples = self.renderer(rays, self.background)
        result = {"rgb": rendering.color.clamp(0, 1), "opacity": rendering.opacity}
        if "depth" in outputs:
            result["depth_ray"] = rendering.depth
            result["depth_z"] = rendering.depth * cameras.z_per_distance(view, rays.directions)
        if "normal" in outputs:
            normals = self.renderer.normals(samples.positions)  # [N, 3]
            result["normal"] = _mean_normal(normals, rendering.weights, samples.ray_offsets, rays)
        return {name: value.float() if self.stays_on_device else value.float().cpu() for name, value in result.items()}


def _mean_normal(normals: Tensor, weights: Tensor, ray_offsets: Tensor, rays: Rays) -> Tensor:
    """Normal [R, 3] of what each ray sees: the weighted mean of its samples', 0 where nothing is seen."""
    ray_index = ray_indices(ray_offsets, normals.shape[0])
    mean = sum_rays(weights[:, None] * normals, ray_index, rays.origins.shape[0])
    return torch.nn.functional.normalize(mean, dim=-1)


def default_chunk(device: torch.device) -> int:
    """Rays that are rendered together."""
    if device.type != "cuda":
        return 2**13
    free, _ = torch.cuda.mem_get_info(device)
    return min(max(free // RAY_BYTES, MIN_CHUNK), 2**20)


def _out_of_memory(error: RuntimeError) -> bool:
    """Also where a native op asked for the memory: torch tells it no more than that the call failed."""
    signs = "can't allocate memory", "API call failed"
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in signs)


def to_uint8(picture: Tensor) -> np.ndarray:
    """8-bit copy of a picture in [0, 1], rounded."""
    return (picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8).numpy()


def save_png(path: Path, picture: Tensor) -> None:
    """Write a picture [H, W, 3] in [0, 1]; complete or not at all."""
    content = io.BytesIO()
    imageio.imwrite(content, to_uint8(picture), format="png")
    write_aside(path, content.getvalue())


def save_npz(path: Path, **values: np.ndarray) -> None:
    """Write arrays by name; complete or not at all."""
    content = io.BytesIO()
    np.savez_compressed(content, **values)
    write_aside(path, content.getvalue())


def colorize(values: Tensor, low: float, high: float, colormap: str = "turbo") -> Tensor:
    """Picture [H, W, 3] of values [H, W], low to high along a colormap."""
    unit = ((values - low) / max(high - low, 1e-9)).clamp(0, 1)
    return torch.from_numpy(matplotlib.colormaps[colormap](unit.numpy())[..., :3]).float()


def preview(name: str, pictures: dict[str, Tensor], depth_range: tuple[float, float]) -> Tensor:
    """Picture [H, W, 3] to look at, of the output `name`; depth and normals fade to white where little is seen."""
    picture = pictures[name]
    if name == "rgb":
        return picture
    opacity = pictures["opacity"][..., None]  # [H, W, 1]
    if name == "opacity":
        return opacity.expand(-1, -1, 3)
    colors = picture / 2 + 0.5 if name == "normal" else colorize(picture, *depth_range)
    return colors * opacity + (1 - opacity)


def error_sheet(truth: Tensor, render: Tensor) -> Tensor:
    """Truth | render | error, side by side; errors of 0.25 and more are the brightest."""
    error = (render - truth).abs().mean(-1)  # [H, W]
    return torch.cat([truth, render, colorize(error, 0, 0.25, "inferno")], dim=1)


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
