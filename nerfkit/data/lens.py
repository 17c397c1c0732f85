# SPDX-License-Identifier: Apache-2.0
"""Lens: from directions of a camera to pixels and back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lens:
    """A camera model of one image size. Pixel centres lie at +0.5; axes are OpenCV's: x right, y down, z forward."""

    model: str  # COLMAP's name of it
    params: tuple[float, ...]  # in COLMAP's order
    width: int  # pixels
    height: int
