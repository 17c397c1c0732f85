# SPDX-License-Identifier: Apache-2.0
"""The interface of models for training, rendering and exports."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from nerfkit.config import Config
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.pool import ImagePool
from nerfkit.errors import ConfigError
from nerfkit.model.compositing import Rendering
from nerfkit.model.sampling import RaySampler
from nerfkit.ops import Resolved, choices, resolve
from nerfkit.parallel import Processes

MAX_RAYS_RENDERED = 2**20  # at a time, by default


class Model(nn.Module):
    """Rays in, colors out. A model of your own derives from this and is registered by `nerfkit.register_model`.

    Only `forward` is required. With a sampler as `self.sampler`, the other methods but `density` use it.
    """

    Options: type | None = None  # dataclass of the model's own options, as `self.options`; given as model.options
    ops: tuple[str, ...] = ()  # the ops of nerfkit that it calls: where all are fused, a step is a CUDA graph
    needs_images = False  # renders from the training images, too: see `look_at`; a run folder keeps them
    half_precision = False  # computes in float16 on a GPU, so the loss is scaled

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.options = self._read_options(config)

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """Render `rays` over `background` [R, 3] or [3].

        `jitter` [R] in [0, 1] shifts the samples of each ray, in steps. With a `capacity` there are that many samples
        and nothing synchronizes with the GPU; it is given only where `max_samples_per_ray` is.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def density(self, positions: Tensor) -> Tensor:
        """Density [N] per scene unit at world positions [N, 3]: for occupancy, normals and exports."""
        raise NotImplementedError(f"{type(self).__name__} has no density")

    def normals(self, positions: Tensor) -> Tensor:
        """Unit normals [N, 3] at world positions [N, 3]: the normalized negative gradient of the density."""
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.density(positions).sum(), positions)
        return -nn.functional.normalize(gradient, dim=-1)

    def observe(self, cameras: Cameras, all_at_once: bool = True) -> None:
        """Called once, before training: its cameras, and whether each step may draw from all of them."""
        if (sampler := self._sampler()) and hasattr(sampler, "observe"):
            sampler.observe(cameras, all_at_once)

    def look_at(self, cameras: Cameras, images: ImagePool) -> None:
        """Called once where `needs_images`, before training, and before rendering from a run: the training views."""

    def agree(self, processes: Processes) -> None:
        """Called before `update` where several processes train: make equal what their own rays have changed."""
        if (sampler := self._sampler()) and hasattr(sampler, "agree"):
            sampler.agree(processes)

    def tables(self) -> list[Tensor]:
        """Parameters that `trainer.table_decay` shrinks."""
        return []

    def update(self, step: int) -> None:
        """Called before each training step: updates the sampler from the field."""
        if sampler := self._sampler():
            sampler.update(self.density, step)

    def sees(self, rays: Rays) -> Tensor:
        """Which rays [R] can have samples, bool."""
        if sampler := self._sampler():
            return sampler.sees(rays)
        return torch.ones(rays.origins.shape[0], dtype=torch.bool, device=rays.origins.device)

    def stats(self) -> dict[str, float]:
        """Values to log, by name."""
        sampler = self._sampler()
        return sampler.stats() if sampler else {}

    @property
    def max_samples_per_ray(self) -> float | None:
        """Upper bound of a ray's samples; None if unknown, and then a step is never a CUDA graph."""
        sampler = self._sampler()
        return sampler.max_samples_per_ray if sampler else None

    @property
    def max_rays_rendered(self) -> int:
        """Rays of an image that are rendered at a time, at most."""
        sampler = self._sampler()
        return getattr(sampler, "max_rays_rendered", MAX_RAYS_RENDERED)

    def resolved(self, device: torch.device | str) -> dict[str, Resolved]:
        """The backend of each op that the model calls, and why; raises BackendError if one cannot run."""
        return {op: resolve(op, str(torch.device(device)), choices()[op]) for op in self.ops}

    def _sampler(self) -> RaySampler | None:
        return getattr(self, "sampler", None)

    def _read_options(self, config: Config) -> Any:
        given = config.model.options
        if self.Options is None:
            if given:
                raise ConfigError(f"model.options: the model {config.model.kind!r} has none, got {', '.join(given)}")
            return None
        unknown = set(given) - set(self.Options.__dataclass_fields__)
        if unknown:
            known = ", ".join(self.Options.__dataclass_fields__)
            raise ConfigError(f"model.options: unknown {', '.join(sorted(unknown))}; {config.model.kind} knows {known}")
        try:
            return msgspec.convert(given, self.Options, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"model.options: {error}") from None
