# SPDX-License-Identifier: Apache-2.0
"""The interface of models for training, rendering and exports."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn

from nerfkit.config import BASE, Config, Recipe, ResolvedConfig
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.errors import ConfigError, UserError
from nerfkit.model.compositing import Rendering
from nerfkit.model.sampling import OccupancySampler
from nerfkit.ops import Resolved, backend, choices, resolve
from nerfkit.parallel import Processes

MAX_RAYS_RENDERED = 2**20  # at a time, by default


class Model(nn.Module, ABC):
    """Rays in, colors out. A model of your own derives from this and is registered by `nerfkit.register_model`.

    Only `forward` is required. With a sampler as `self.sampler`, such as that of `nerfkit.build_sampler`, the other
    methods but `density` use it. Its methods run on the backends that `config.ops` names, in any thread; ops left at
    auto, on those of the caller.
    """

    recipe: ClassVar[Recipe] = BASE  # what options are that are left as auto: see `nerfkit.config.recipe`
    Options: type | None = None  # dataclass of the model's own options, as `self.options`; given as model.options
    # The ops of nerfkit that this module itself calls. If every module of the model lists its own, and all are fused, a
    # step is a CUDA graph; () promises static shapes, and that no value is waited for.
    ops: tuple[str, ...] | None = None
    progress = 0.0  # share of the training's schedule that is done
    is_one_kernel = False  # `render` needs no memory but for rays and pixels
    half_precision = False  # computes in float16 on a GPU, so the loss is scaled

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("forward", "render", "density", "normals", "set_training_cameras", "update", "hits"):
            method = getattr(cls, name)  # of the class, or of one that it derives from besides Model
            if not hasattr(method, "on_own_backends"):
                setattr(cls, name, _on_own_backends(method))

    def __init__(self, config: Config):
        super().__init__()
        self.config = config if isinstance(config, ResolvedConfig) else config.resolved(model_class=type(self))
        config = self.config
        self.backends = config.ops.choices()  # of each op that is chosen by name
        self.options = self._read_options(config)

    @abstractmethod
    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """Render `rays` over `background` [R, 3] or [3].

        `jitter` [R] in [0, 1] shifts the samples of each ray, in steps. With a `capacity` there are that many samples
        and nothing synchronizes with the GPU; it is given only where `max_samples_per_ray` is. With or without one,
        some rays of a training step may be incomplete: `Samples.ray_complete`.
        """

    def render(self, rays: Rays, background: Tensor) -> Rendering:
        """As `forward`, for images: no gradients; weights and samples may be None if there is a median depth."""
        return self(rays, background)

    def density(self, positions: Tensor) -> Tensor:
        """Density [N] per model unit at positions [N, 3] of the model: for occupancy, normals and exports."""
        raise UserError(f"the model {type(self).__name__} has no method density; add it, for this needs it")

    def normals(self, positions: Tensor) -> Tensor:
        """Unit normals [N, 3] at positions [N, 3] of the model: the normalized negative gradient of the density."""
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._height(positions).sum(), positions)
        return -nn.functional.normalize(gradient, dim=-1)

    def set_training_cameras(self, cameras: Cameras, all_at_once: bool = True) -> None:
        """Called once, before training: its cameras, and whether each step may draw from all of them."""
        if (sampler := self._sampler()) and hasattr(sampler, "set_training_cameras"):
            sampler.set_training_cameras(cameras, all_at_once)

    def sync_ranks(self, processes: Processes) -> None:
        """Called before `update` where several processes train: make equal what their own rays have changed."""
        if (sampler := self._sampler()) and hasattr(sampler, "sync_ranks"):
            sampler.sync_ranks(processes)

    def tables(self) -> list[Tensor]:
        """Parameters that shrink in training by `trainer.weight_decay`."""
        return []

    def update(self, step: int) -> None:
        """Called before each training step, after `progress` was set: updates the sampler from the field."""
        if sampler := self._sampler():
            sampler.progress = self.progress
            sampler.update(self.density, step)

    def hits(self, rays: Rays) -> Tensor:
        """Which rays [R] can have samples, bool."""
        if sampler := self._sampler():
            return sampler.hits(rays)
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
        device, chosen = torch.device(device), choices() | self.backends
        unfit = self._unfit(device)
        return {op: resolve(op, str(device), chosen[op], unfit.get(op)) for op in self.used_ops}

    @property
    def used_ops(self) -> tuple[str, ...]:
        """The ops that the model's modules, and then itself, say they call."""
        modules = [*(part for module in self.children() for part in module.modules()), self]
        return tuple(dict.fromkeys(op for module in modules for op in getattr(module, "ops", None) or ()))

    @property
    def silent_modules(self) -> tuple[str, ...]:
        """Classes of modules that do not say which ops they call: a step with them is no CUDA graph."""
        silent = [type(m) for m in self.modules() if not hasattr(m, "ops") or (m is self and m.ops is None)]
        return tuple(dict.fromkeys(kind.__name__ for kind in silent if not kind.__module__.startswith("torch.nn.")))

    def _unfit(self, device: torch.device) -> dict[str, str | None]:
        """Why kernels of `device` do not support the model's sizes, by op."""
        return {}

    def _height(self, positions: Tensor) -> Tensor:
        """What rises with the density, [N]: `normals` are along its gradient."""
        return self.density(positions)

    def _sampler(self) -> OccupancySampler | None:
        return getattr(self, "sampler", None)

    def _read_options(self, config: Config) -> Any:
        given, known = config.model.options, getattr(self.Options, "__dataclass_fields__", ())
        if unknown := set(given) - set(known):
            raise ConfigError(
                f"model.options: unknown {', '.join(sorted(unknown))}; the model {config.model.kind!r} knows "
                f"{', '.join(known) or 'none'}"
            )
        try:
            return None if self.Options is None else msgspec.convert(given, self.Options, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"model.options: {error}") from None


def _on_own_backends(method: Callable) -> Callable:
    """A method of a model that runs on the model's own backends."""

    @functools.wraps(method)
    def run(self: Model, *args: Any, **kwargs: Any) -> Any:
        if not self.backends:
            return method(self, *args, **kwargs)
        with backend(overrides=self.backends):
            return method(self, *args, **kwargs)

    run.on_own_backends = True
    return run
