# SPDX-License-Identifier: Apache-2.0
"""The scene that a checkout holds, and an sdist not."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCENE = ROOT / "data" / "orrery"


def needs_images() -> None:
    """An sdist, which has no .git, holds no images of the scene; a checkout without them is broken."""
    if not (SCENE / "train").exists() and not (ROOT / ".git").exists():
        pytest.skip("the scene's images, 18 MB, are not in the sdist")
