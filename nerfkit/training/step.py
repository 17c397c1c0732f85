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
from nerfkit.config import Config
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pixels import BACKGROUNDS, blend
from nerfkit.errors import SceneError
from nerfkit.model.renderer import Renderer

MIN_RAYS = 64
FULL = 0.95  # share of the room for samples that the number of rays is steered to: they vary from step to step
LOSS_SCALE = 1024.0  # at first; keeps gradients in half precision above what rounds to 0
PATIENCE = 10  # steps in a row without a finite loss after which training has failed, in half precision
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
        self.device = device = images.device
        self.has_alpha = images.shape[-1] == 4
        if config.data.background == "random" and not self.has_alpha:
            raise SceneError(
                "data.background is random, but the pictures have no alpha: what is behind them is part of them. "
                "Give its color, white or black, or pictures with alpha"
            )
        self.n_rays = torch.tensor(first_n_rays(config), device=device)
        self.draws_background = torch.tensor(False, device=device)  # at random
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, rays, samples
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)  # losses in a row that were not finite
        self.loss = torch.zeros((), device=device)
        self.trained: dict[str, Tensor] = {}  # rays and rendering of the last step
        self.steps = 0  # since `read`
        self.backends = ops.choices()
        self.is_fixed = self._is_fixed()
        # Skips a step whose gradients are not finite, and then scales the loss by less.
        is_half = renderer.half_precision and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, init_scale=LOSS_SCALE, enabled=is_half)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # that a step is recorded on
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0

    def __call__(self) -> None:
        self.steps += 1
        if ops.choices() != self.backends:  # changed on the way
            self.forget()
            self.backends, self.is_fixed = ops.choices(), self._is_fixed()
        if not self.is_fixed:
            return self._run()
        with torch.cuda.device(self.device):
            if self.eager_steps < EAGER_STEPS:
                self.eager_steps += 1
                return self._run_beside()
            if self.graph is None:
                self._record()
            self.graph.replay()

    def draw_background(self, at_random: bool) -> None:
        """Draw backgrounds at random from now on, or no longer; pictures without alpha keep theirs."""
        self.draws_background.fill_(at_random and self.has_alpha)

    def forget(self) -> None:
        """Forget what was recorded, and what went wrong: after tensors that a step uses were replaced by others."""
        self.graph, self.eager_steps = None, 0
        self.not_finite.zero_()
        self.sums.zero_()
        self.steps = 0

    @property
    def failed(self) -> bool:
        """Whether the loss is not finite; a step in half precision may be so now and then. This waits for the GPU."""
        return bool(self.not_finite >= (PATIENCE if self.scaler.is_enabled() else 1))

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
        is_finite = self.loss.isfinite()
        self.not_finite.copy_(torch.where(is_finite, 0, self.not_finite + 1))
        if not self.is_fixed and self.failed:
            return
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        n_whole = whole.sum()
        self.sums += torch.stack([torch.where(is_finite, self.loss, 0).double(), n_whole.double(), n_samples.double()])
        self._steer(n_whole, n_samples)

    def _forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, the rays that it is a mean over [R] bool, and how many samples they have."""
        settings = self.config.trainer
        n_rays = settings.max_rays if self.is_fixed else int(self.n_rays)
        rays, pixels, background, jitter = self.batch(n_rays)
        active = torch.arange(n_rays, device=self.n_rays.device) < self.n_rays  # [R]
        rays = rays._replace(directions=rays.directions * active[:, None])  # a ray without direction has no samples
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
        background = torch.rand(n_rays, 3, device=device)
        kind = self.config.data.background
        if kind != "random":
            background = torch.where(self.draws_background, background, BACKGROUNDS[kind])
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
        """A step on the stream of recording, as it wants those before it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._run()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self) -> None:
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._run()
        self.graph = graph

    def _is_fixed(self) -> bool:
        """Whether a step has fixed sizes: on a GPU where all ops are fused, if the longest ray has room."""
        if self.device.type != "cuda" or not self.config.trainer.capture:
            return False
        fused = all(resolved.backend == "cuda" for resolved in ops.resolved(self.device).values())
        return fused and longest_ray(self.config) <= self.config.trainer.samples


def longest_ray(config: Config) -> float:
    """Samples of a ray along the diagonal of the box, all of whose cells are occupied."""
    box = torch.tensor(config.data.box).view(2, 3)
    return (box[1] - box[0]).norm().item() / config.sampling.step


def first_n_rays(config: Config) -> int:
    """Rays of the first step: as if each were the longest."""
    settings = config.trainer
    return int(min(max(settings.samples / longest_ray(config), MIN_RAYS), settings.max_rays))
