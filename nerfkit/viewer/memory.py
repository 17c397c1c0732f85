# SPDX-License-Identifier: Apache-2.0
"""Memory in use, for people."""

from __future__ import annotations

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
