# SPDX-License-Identifier: Apache-2.0
"""One step of training: random rays, their rendering, loss, gradients, Adam.

On a GPU where all ops are fused, a step has fixed sizes, waits for nothing, and is recorded once as a CUDA graph; all
that changes from step to step lives in tensors. Elsewhere it runs as it is written. Both are the same code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.cameras import Cameras, Rays
from nerfkit.config import Config
from nerfkit.renderer import Renderer
from nerfkit.scene import BACKGROUNDS, blend

MIN_RAYS = 64
FULL = 0.95  # share of the room for samples that the number of rays is steered to: they vary from step to step
LOSS_SCALE = 1024.0  # keeps half-precision gradients above what rounds to 0; Adam's steps do not depend on it
EAGER_STEPS = 3  # before a step is recorded: libraries and allocator set themselves up in them


class Sums(NamedTuple):
    """What the steps since `read` did, added up."""

    steps: int
    loss: float
    rays: int
    samples: int


class TrainingStep:
    """Trains `renderer` by a step at each call."""

    def __init__(self, config: Config, renderer: Renderer, cameras: Cameras, images: Tensor, optimizer):
        self.config, self.renderer, self.cameras, self.images, self.optimizer = (
            config, renderer, cameras, images, optimizer,
        )  # fmt: skip
        device = images.device
        self.n_rays = torch.tensor(first_n_rays(config), device=device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, rays, samples
        self.failed = torch.zeros((), device=device)  # 1 after a loss that is not finite: Adam stands still
        self.loss = torch.zeros((), device=device)
        self.trained: dict[str, Tensor] = {}  # rays and rendering of the last step
        self.steps = 0  # since `read`
        self.is_fixed = device.type == "cuda" and config.trainer.capture and _all_fused(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0

    def __call__(self) -> None:
        self.steps += 1
        if not self.is_fixed:
            return self._run()
        if self.eager_steps < EAGER_STEPS:
            self.eager_steps += 1
            return self._run_beside()
        if self.graph is None:
            self._record()
        self.graph.replay()

    def read(self) -> Sums:
        """Sums since the last call; this waits for the GPU."""
        loss, rays, samples = self.sums.tolist()
        sums = Sums(self.steps, loss, int(rays), int(samples))
        self.sums.zero_()
        self.steps = 0
        return sums

    def _run(self) -> None:
        loss, whole, n_samples = self._forward()
        self.loss = loss.detach()
        self.failed.copy_(self.failed.maximum((~self.loss.isfinite()).float()))
        self.optimizer.zero_grad()
        (loss * LOSS_SCALE).backward()
        self.optimizer.found_inf = self.failed
        self.optimizer.step()
        n_whole = whole.sum()
        self.sums += torch.stack([self.loss.double(), n_whole.double(), n_samples.double()])
        self._steer(n_whole, n_samples)

    def _forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, the rays that it is a mean over [R] bool, and how many samples they have."""
        settings = self.config.trainer
        n_rays = settings.max_rays if self.is_fixed else int(self.n_rays)
        rays, pixels, background, jitter = self.batch(n_rays)
        active = torch.arange(n_rays, device=self.n_rays.device) < self.n_rays  # [R]
        rays = Rays(rays.origins, rays.directions * active[:, None])  # a ray without direction has no samples
        capacity = settings.samples if self.is_fixed else None
        rendering, samples = self.renderer(rays, background, jitter, capacity)
        whole = samples.whole & active
        error = (rendering.color - blend(pixels, background)).square().mean(-1)  # [R]
        self.trained = {name: x.detach() for name, x in (rays._asdict() | rendering._asdict()).items()}
        return (error * whole).sum() / whole.sum().clamp(min=1), whole, samples.ray_offsets[n_rays]

    def batch(self, n_rays: int) -> tuple[Rays, Tensor, Tensor, Tensor]:
        """Random rays, their pixels [R, 3 or 4] uint8, background [R, 3] and jitter [R]."""
        device = self.images.device
        n_views, height, width = self.images.shape[:3]
        view, row, column = (torch.randint(n, (n_rays,), device=device) for n in (n_views, height, width))
        kind = self.config.data.background
        if kind == "random":
            background = torch.rand(n_rays, 3, device=device)
        else:
            background = torch.full((n_rays, 3), BACKGROUNDS[kind], device=device)
        jitter = torch.rand(n_rays, device=device)
        return self.cameras.rays(view, column, row), self.images[view, row, column], background, jitter

    def _steer(self, n_whole: Tensor, n_samples: Tensor) -> None:
        """Set the number of rays to that which would have had about `trainer.samples` samples."""
        settings = self.config.trainer
        wanted = n_whole * (settings.samples * (FULL if self.is_fixed else 1.0)) / n_samples.clamp(min=1)
        # At most twofold a step: the first samples of a field say little about the next.
        wanted = wanted.clamp(n_whole / 2, n_whole * 2).clamp(MIN_RAYS, settings.max_rays)
        self.n_rays.copy_(wanted)

    def _run_beside(self) -> None:
        """A step on another stream, as recording wants those before it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self) -> None:
        self.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._run()


def _all_fused(device: torch.device) -> bool:
    return all(resolved.backend == "cuda" for resolved in ops.resolved(device).values())


def first_n_rays(config: Config) -> int:
    """Rays of the first step: while all cells are occupied, a ray has as many samples as steps fit into the box."""
    box = torch.tensor(config.data.box).view(2, 3)
    per_ray = ((box[1] - box[0]).norm() / config.sampling.step).item()
    settings = config.trainer
    return int(min(max(settings.samples / per_ray, MIN_RAYS), settings.max_rays))
