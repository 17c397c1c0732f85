# SPDX-License-Identifier: Apache-2.0
"""The device that everything runs on, in words, and how much memory there is."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from nerfkit.errors import RunError


def pick_device(name: str) -> torch.device:
    """The device `name`; "auto" takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RunError(f"device: {name!r} is unknown; use auto, cpu, cuda or cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f"device: {name} was asked for, but torch {torch.__version__} sees no GPU; "
            "run `python -m nerfkit doctor`, or use --device cpu"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise RunError(f"device: {name} was asked for, but there are cuda:0 to cuda:{last} only")
    return device



def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"



def free_memory() -> int | None:
    """Bytes of memory that can be had, caches of files included, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)

