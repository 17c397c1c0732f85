# SPDX-License-Identifier: Apache-2.0
"""Versions and device that numbers depend on."""

from __future__ import annotations

import platform

import torch

import nerfkit


def versions() -> dict[str, str]:
    """Versions of nerfkit, torch and Python."""
    return {"nerfkit": nerfkit.__version__, "torch": torch.__version__, "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"
