# SPDX-License-Identifier: Apache-2.0
"""One step of training: random rays, their rendering, loss, gradients, Adam.

On a GPU where all ops of the model are fused, a step has static shapes, does not synchronize, and is recorded once as
a CUDA graph; all that changes from step to step is in tensors. Elsewhere it runs eagerly, by the same code. Of several
processes each draws rays of its own, and their gradients are added: `nerfkit.training.step.distributed`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nerfkit import ops
from nerfkit.config import TrainerConfig
from nerfkit.data.images.batch import TrainingViews
from nerfkit.device import generator_on
from nerfkit.model.base import Model
from nerfkit.model.sampling import OccupancySampler
from nerfkit.training.step.adjustments import ViewAdjustments
from nerfkit.training.step.distributed import OneProcess
from nerfkit.training.step.losses import LossError, TrainingLoss
from nerfkit.training.step.outliers import Outliers

MIN_RAYS, MAX_RAYS = 64, 65536
# Of a step of any shape, times samples_per_step, or MIN_RAYS of the longest: where cells become occupied, there can be
# 50 times as many.
MOST_SAMPLES = 2
TARGET_FILL = 0.95  # share of the capacity that the number of rays is adapted to: samples vary from step to step
LOSS_SCALE = 1024.0  # initial; keeps gradients in half precision from underflowing
MAX_NONFINITE_STEPS = 10  # in a row, after which training in half precision has failed
STATIC_DEFINITIONS = ("mlp",)  # ops whose PyTorch definition has static shapes and does not synchronize, too


class StepStats(NamedTuple):
    """Sums over the steps since `pop_stats`."""

    steps: int
    loss: float
    rays: int
    samples: int
    terms: dict[str, float]  # of the loss
    pixel_error: float  # squared


@contextmanager
def limited(samplers: list[OccupancySampler], most_samples: int | None) -> Iterator[None]:
    """Of a forward with gradients and without a capacity: rays beyond so many samples are not complete."""
    for sampler in samplers:
        sampler.most_samples = most_samples
    try:
        yield
    finally:
        for sampler in samplers:
            sampler.most_samples = None


class TrainingStep:
    """Each call is one optimiser step of `model`."""

    def __init__(
        self,
        settings: TrainerConfig,
        model: Model,
        views: TrainingViews,
        adjustments: ViewAdjustments,
        optimizer: torch.optim.Optimizer,
        loss: TrainingLoss,
        together: OneProcess,
    ):
        self.settings, self.model, self.views, self.adjustments = settings, model, views, adjustments
        self.optimizer, self.loss, self.together = optimizer, loss, together
        self.device = device = views.device
        self.outliers = Outliers(len(views.cameras)).to(device) if settings.robust else nn.Module()
        self.longest_ray = model.max_samples_per_ray
        first = settings.samples_per_step / (self.longest_ray or 1)  # as if each ray had the most samples
        self.samplers = [module for module in model.modules() if isinstance(module, OccupancySampler)]
        usual, longest = settings.samples_per_step, self.longest_ray
        self.most_samples = None if longest is None else int(max(MOST_SAMPLES * usual, MIN_RAYS * longest))
        self.n_rays = torch.tensor(int(min(max(first, MIN_RAYS), MAX_RAYS)), device=device)
        self.term_names: tuple[str, ...] = ()  # known after the first step
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # rays, samples, pixel error, loss, its terms
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)  # losses in a row that were not finite
        self.last_loss = torch.zeros((), device=device)
        self.steps = 0  # since `pop_stats`
        self.backends = ops.choices()
        self.static_shapes = self._can_be_recorded()
        # Skips a step whose gradients are not finite, and lowers the loss scale.
        is_half = model.half_precision and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, init_scale=LOSS_SCALE, enabled=is_half)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # for capture
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0

    def __call__(self) -> None:
        if ops.choices() != self.backends:  # changed since the last step
            self.reset_graph()
            self.backends, self.static_shapes = ops.choices(), self._can_be_recorded()
        self.steps += 1
        if not self.static_shapes:
            return self._run()
        with torch.cuda.device(self.device):
            if self.eager_steps < self.together.warm_up_steps:
                self.eager_steps += 1
                return self._run_on_capture_stream()
            if self.graph is None:
                self._record()
            self.graph.replay()

    def reset_graph(self) -> None:
        """Drop the recorded graph, failures and statistics, after tensors that a step uses were replaced."""
        self.release_graph()
        self.not_finite.zero_()
        self.sums.zero_()
        self.steps = 0

    def release_graph(self) -> None:
        """Free the memory of the recorded graph; the next steps record it again."""
        self.graph, self.eager_steps = None, 0

    @property
    def failed(self) -> bool:
        """Whether the loss is not finite; in half precision, for several steps in a row. Synchronizes with the GPU."""
        return bool(self.not_finite >= (MAX_NONFINITE_STEPS if self.scaler.is_enabled() else 1))

    def pop_stats(self) -> StepStats:
        """Sums since the last call; synchronizes with the GPU."""
        rays, samples, pixel_error, loss, *terms = self.sums.tolist()
        named = dict(zip(self.term_names, terms or [loss], strict=False))
        stats = StepStats(self.steps, loss, int(rays), int(samples), named, pixel_error)
        self.sums.zero_()
        self.steps = 0
        return stats

    def state_dict(self) -> dict[str, Any]:
        """State of a step besides model and optimiser: the number of rays and the loss scale."""
        return {"n_rays": int(self.n_rays), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; the step is recorded again."""
        self.n_rays.fill_(state["n_rays"])
        if self.scaler.is_enabled() and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        self.reset_graph()

    def _run(self) -> None:
        """Draw rays, render them, find the gradients of the loss, and change the parameters unless it is not finite."""
        terms, pixel_error, ray_complete, n_samples, weight = self._forward()
        loss = reduce(torch.add, terms.values())
        self.optimizer.zero_grad()
        self.scaler.scale(self.together.weighted(loss, weight)).backward()
        self.adjustments.check_gradients(self.model)
        n_complete = ray_complete.sum()
        counts = torch.stack([n_complete.double(), (n_complete * 0 if n_samples is None else n_samples).double()])
        parts = [pixel_error, loss] if len(terms) == 1 else [pixel_error, loss, *terms.values()]
        self.term_names = tuple(terms)
        counts, means = self.together.added(counts, torch.stack([part.detach().double() for part in parts]))
        self.last_loss = means[1]
        is_finite = self.last_loss.isfinite()
        self.not_finite.copy_(torch.where(is_finite, 0, self.not_finite + 1))
        if not self.static_shapes and self.failed:
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()
        sums = torch.cat([counts, torch.where(is_finite, means, 0)])
        if len(sums) != len(self.sums):  # in the first step, which is eager
            self.sums = torch.zeros_like(sums)
        self.sums += sums
        if n_samples is not None:
            self._adapt_ray_count(n_complete, n_samples)

    def _forward(self) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor | None, Tensor]:
        """Terms of the loss, the pixels' error, mask [R] of the rays in its mean, their number of samples, if any, and
        weights [R]."""
        n_rays = MAX_RAYS if self.static_shapes else int(self.n_rays)
        batch = self.views.draw(n_rays)
        active = torch.arange(n_rays, device=self.device) < self.n_rays  # [R]
        rays = self.adjustments.rays(batch.rays)
        rays = rays._replace(directions=rays.directions * active[:, None])  # zero: no samples
        capacity = self.settings.samples_per_step if self.static_shapes else None
        with limited(self.samplers, self.most_samples):
            rendering = self.model(rays, batch.background, batch.jitter, capacity)
        ray_complete, n_samples = active, None
        if rendering.samples is not None:
            ray_complete = rendering.samples.ray_complete & active
            n_samples = rendering.samples.ray_offsets[n_rays]
        rendering = self.adjustments.rendering(rendering, batch)
        batch = batch._replace(rays=rays, weight=batch.weight * ray_complete)
        counts = ray_complete  # [R]
        if self.settings.robust:
            share = self.outliers(rendering, batch)
            counts = torch.where(batch.weight > 0, share, 1) * counts  # rays without a pixel are in no part of an image
            batch = batch._replace(weight=batch.weight * share)
        if batch.depth is not None:
            distance, of_depth = batch.depth.unbind(-1)
            batch = batch._replace(depth=torch.stack([distance, of_depth * counts], dim=-1))
        terms = self.loss(rendering, batch)
        if self.term_names and tuple(terms) != self.term_names:
            raise LossError(f"a loss_fn must keep its terms from step to step: {self.term_names}, then {tuple(terms)}")
        return terms, self.loss.pixel_error(terms, rendering, batch), ray_complete, n_samples, batch.weight

    def _adapt_ray_count(self, n_complete: Tensor, n_samples: Tensor) -> None:
        """Adapt the number of rays to about `trainer.samples_per_step` samples per step."""
        target = self.settings.samples_per_step * (TARGET_FILL if self.static_shapes else 1.0)
        wanted = n_complete * target / n_samples.clamp(min=1)
        # By a factor of 2 at most: the sample counts of early steps predict little.
        wanted = wanted.clamp(n_complete / 2, n_complete * 2).clamp(MIN_RAYS, MAX_RAYS)
        self.n_rays.copy_(wanted)

    def _run_on_capture_stream(self) -> None:
        """An eager step on the capture stream, which capture requires of the steps before it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._run()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self) -> None:
        self.optimizer.zero_grad()
        self.together.barrier()
        gc.collect()  # a graph of others that is freed during a capture ends it
        graph = torch.cuda.CUDAGraph()
        # thread_local: a viewer in another thread may go on using the GPU.
        if (generator := generator_on(self.device)) is not None:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self._run()
        self.graph = graph
        self.together.barrier()

    def resolved(self) -> dict[str, ops.Resolved]:
        """The backend of each op of model, loss and optimiser, and why; raises BackendError if one cannot run."""
        others = (*self.loss.ops, *["lazy_adam"] * (self.settings.optimizer == "lazy_adam"))
        chosen = ops.choices()
        return self.model.resolved(self.device) | {op: ops.resolve(op, str(self.device), chosen[op]) for op in others}

    def _can_be_recorded(self) -> bool:
        """Whether a step has static shapes: on a GPU where the model's ops are fused, if the longest ray fits."""
        if self.device.type != "cuda":
            return False
        if self.longest_ray is None or self.model.silent_modules:
            return False
        free = (*STATIC_DEFINITIONS, "render_rays")  # the latter is of images, not of a step
        recordable = (chosen.backend == "cuda" or op in free for op, chosen in self.resolved().items())
        return all(recordable) and self.longest_ray <= self.settings.samples_per_step
