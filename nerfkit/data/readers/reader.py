# SPDX-License-Identifier: Apache-2.0
"""What a scene format has to offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nerfkit.data.capture import Capture


@dataclass(frozen=True)
class Reader:
    """One scene format."""

    name: str
    needs: str  # files that show the format, for error messages
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Capture]
