# SPDX-License-Identifier: Apache-2.0
"""Samplers by name: `sampling.kind` chooses one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nerfkit.config import SamplingConfig
from nerfkit.errors import ConfigError
from nerfkit.model.contracted import ContractedSampler
from nerfkit.model.sampling import BoxSampler, RaySampler

SAMPLERS: dict[str, Callable[[SamplingConfig, Tensor], RaySampler]] = {
    "auto": BoxSampler,  # where no scene has said more
    "box": BoxSampler,
    "contracted": ContractedSampler,
}


def build_sampler(config: SamplingConfig, box: Tensor) -> RaySampler:
    """The sampler `config.kind` in `box` [2, 3]; raises ConfigError if there is none of that name."""
    if config.kind not in SAMPLERS:
        raise ConfigError(f"sampling.kind: no sampler {config.kind!r}; there are {', '.join(SAMPLERS)}")
    return SAMPLERS[config.kind](config, box)
