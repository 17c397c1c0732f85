# SPDX-License-Identifier: Apache-2.0
"""The interface of scene formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nerfkit.data.scene import Scene


@dataclass(frozen=True)
class Reader:
    """One scene format."""

    name: str
    needs: str  # files that identify the format, for error messages
    recognises: Callable[[Path], bool]
    read: Callable[[Path, float], Scene]  # folder, downscale
