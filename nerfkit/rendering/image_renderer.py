# SPDX-License-Identifier: Apache-2.0
"""Cameras -> images of a trained model, in chunks of rays that fit into memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.device import out_of_memory
from nerfkit.errors import UserError
from nerfkit.model.base import Model
from nerfkit.model.compositing import median_depth
from nerfkit.ops.packed import ray_indices, sum_rays

OUTPUTS = ("rgb", "depth", "median_depth", "opacity", "normal", "samples")
MIN_CHUNK, MAX_CHUNK = 64, 2**20  # rays
UNITS, LONG = (("hours", 3600), ("minutes", 60), ("seconds", 1)), 20  # of a duration; seconds that are announced
RAY_BYTES = 2**15  # of a ray through an untrained field, doubled


def duration(seconds: float) -> str:
    """A rough time in words, at least two seconds."""
    unit, length = next((unit for unit in UNITS if seconds >= 2 * unit[1]), UNITS[-1])
    return f"{max(2, round(seconds / length))} {unit}"


def foretold(bar: tqdm) -> Iterator[Any]:
    """What a bar goes over; after the second, a line on how long the others take, where that is long."""
    began = 0.0
    for number, item in enumerate(bar):
        if number == 2 and (left := (time.perf_counter() - began) * (len(bar) - 2)) > LONG:
            tqdm.write(f"{bar.desc}: about {duration(left)} more")
        began = time.perf_counter()
        yield item


@contextmanager
def in_eval_mode(model: Model) -> Iterator[None]:
    """Inside, the model is in eval mode; after it, each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class ImageRenderer:
    """Renders whole images in chunks of rays that halve when memory runs out.

    Finished chunks move to the CPU, so the device's peak memory does not grow with the image, unless
    `stays_on_device`, as for a viewer.
    """

    def __init__(self, model: Model, background: Tensor, chunk: int | None = None, stays_on_device: bool = False):
        self.model = model
        self.background = background  # [3]
        self.chunk = chunk or default_chunk(background.device)  # rays, at most
        self.stays_on_device = stays_on_device

    @torch.no_grad()
    def __call__(self, cameras: Cameras, view: int, outputs: tuple[str, ...] = ("rgb",)) -> dict[str, Tensor]:
        """Images of one view, float32: rgb [H, W, 3], opacity [H, W], normal [H, W, 3] (world space)
        and, for "depth", depth_ray and depth_z [H, W] in model units; 0 where the opacity is 0; for "median_depth",
        depth_median_ray and depth_median_z, where the transmittance falls to 0.5; 0 where it does not; samples [H, W]
        is how many samples each ray has."""
        unknown = [name for name in outputs if name not in OUTPUTS]
        if unknown or not 0 <= view < len(cameras):
            what = f"outputs {unknown}; there are {', '.join(OUTPUTS)}" if unknown else f"view {view} of {len(cameras)}"
            raise UserError(f"cannot render {what}")
        width, height = cameras.size(view)
        values = self.in_chunks(cameras, view, 0, width * height, outputs)
        return {name: value.unflatten(0, (height, width)) for name, value in values.items()}

    def in_chunks(
        self, cameras: Cameras, view: int, start: int, end: int, outputs: tuple[str, ...]
    ) -> dict[str, Tensor]:
        """The same of pixels start..end alone, row by row: [end - start, ...]."""
        chunks, fitting = [], MAX_CHUNK
        if not (self._is_plain(outputs) and getattr(self.model, "is_one_kernel", False)):
            fitting = getattr(self.model, "max_rays_rendered", MAX_CHUNK)
        while start < end:
            stop = min(start + min(self.chunk, fitting), end)
            try:
                chunks.append(self.rays(cameras, view, start, stop, outputs))
                start = stop
                continue
            except RuntimeError as error:
                if not out_of_memory(error) or self.chunk <= MIN_CHUNK:
                    raise
            # Outside of the except clause: the error holds references to the chunk's tensors.
            self.chunk = max((stop - start) // 2, MIN_CHUNK)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _is_plain(self, outputs: tuple[str, ...]) -> bool:
        """Whether the model may keep its samples to itself."""
        return isinstance(self.model, Model) and not {"normal", "samples"} & set(outputs)

    @torch.no_grad()
    def rays(self, cameras: Cameras, view: int, start: int, end: int, outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """The same of a chunk, with all the memory that it takes."""
        rays = cameras.image_rays(view, start, end)._replace(view=None)  # a view of these, not of the training's
        rendering = (self.model.render if self._is_plain(outputs) else self.model)(rays, self.background)
        result = {"rgb": rendering.color.clamp(0, 1), "opacity": rendering.opacity}
        if "depth" in outputs:
            result["depth_ray"] = rendering.depth
            result["depth_z"] = rendering.depth * cameras.z_per_distance(view, rays.directions)
        if "median_depth" in outputs:
            median = median_depth(rendering)
            result["depth_median_ray"] = median
            result["depth_median_z"] = median * cameras.z_per_distance(view, rays.directions)
        asked = [name for name in ("normal", "samples") if name in outputs]
        if asked and rendering.samples is None:
            raise UserError(f"{type(self.model).__name__} gives no samples, and so no {' or '.join(asked)}")
        if "samples" in outputs:
            result["samples"] = rendering.samples.ray_offsets.diff()[: end - start]
        if "normal" in outputs:
            normals = rendering.weights[:, None] * self.model.normals(rendering.samples.positions)  # [N, 3]
            ray_index = ray_indices(rendering.samples.ray_offsets, normals.shape[0])
            mean = sum_rays(normals, ray_index, end - start)  # [R, 3]
            result["normal"] = torch.nn.functional.normalize(mean, dim=-1)
        return {name: value.float() if self.stays_on_device else value.float().cpu() for name, value in result.items()}


def default_chunk(device: torch.device) -> int:
    if device.type != "cuda":
        return 2**13
    free, _ = torch.cuda.mem_get_info(device)
    return min(max(free // RAY_BYTES, MIN_CHUNK), MAX_CHUNK)
