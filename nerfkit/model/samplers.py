# SPDX-License-Identifier: Apache-2.0
"""Samplers by name: `sampling.kind` chooses one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nerfkit.config import Config, SamplingConfig
from nerfkit.errors import ConfigError
from nerfkit.model.contracted import ContractedSampler
from nerfkit.model.sampling import BoxSampler, RaySampler

SAMPLERS: dict[str, Callable[[SamplingConfig, Tensor], RaySampler]] = {
    "box": BoxSampler,
    "contracted": ContractedSampler,
}


def build_sampler(config: Config) -> RaySampler:
    """The sampler `config.sampling.kind` in data.box; raises ConfigError if there is none of that name."""
    if config.sampling.kind not in SAMPLERS:
        raise ConfigError(f"sampling.kind: no sampler {config.sampling.kind!r}; there are {', '.join(SAMPLERS)}")
    return SAMPLERS[config.sampling.kind](config.sampling, box_of(config))


def box_of(config: Config) -> Tensor:
    """data.box [2, 3], lowest and highest corner, float32."""
    return torch.tensor(config.data.box, dtype=torch.float32).view(2, 3)
