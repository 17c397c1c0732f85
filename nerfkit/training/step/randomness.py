# SPDX-License-Identifier: Apache-2.0
"""Every source of randomness, seeded."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


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
