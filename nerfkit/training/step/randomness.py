# SPDX-License-Identifier: Apache-2.0
"""Every source of randomness: seeded, saved and restored together."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed all sources of randomness."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, stream: str, generator: torch.Generator) -> None:
    """Seed a training's generator, and all that a model of one's own may draw from, for one step, differently for each
    `stream`; a recorded CUDA graph sees it."""
    digest = hashlib.blake2b(f"{seed} {step} {stream}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    if generator.device.type == "cuda":
        torch.cuda.default_generators[generator.device.index].manual_seed(number)


def random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """States of torch's generators as tensors, of Python's and numpy's as JSON values."""
    tensors = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"random.cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return tensors, {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), position, has_gauss, cached],
    }


def restore_random_states(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Inverse of `random_states`; states of missing GPUs are skipped."""
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in tensors:
                torch.cuda.set_rng_state(tensors[f"cuda{index}"], index)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
