# SPDX-License-Identifier: Apache-2.0
"""Memory in use, for people, and of what browsers leave behind."""

from __future__ import annotations

import ctypes
import gc

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None


def memory_in_use(device: torch.device) -> str:
    """Memory of torch on a GPU, or of the process."""
    if device.type == "cuda":
        return f"{torch.cuda.memory_allocated(device) / 2**30:.2f} GB on {device}"
    if resource is None:
        return "unknown"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB at most"


def give_back() -> None:
    """Free what nobody holds any more, to the system where that is asked for: 0.2 s, of a look at every object.

    viser's things of a browser refer to one another in circles, which Python by itself looks for rarely.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # glibc alone has it
        pass
