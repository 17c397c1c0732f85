# SPDX-License-Identifier: Apache-2.0
"""The scene and the capture that a checkout holds, and an sdist not."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCENE = ROOT / "data" / "orrery"


def needs_images() -> None:
    """An sdist, which has no .git, holds no images of the scene; a checkout without them is broken."""
    needs_images_of(SCENE / "train")


def needs_images_of(folder: Path) -> None:
    if not folder.exists() and not (ROOT / ".git").exists():
        pytest.skip(f"the images in {folder}, megabytes, are not in the sdist")
