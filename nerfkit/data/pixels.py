# SPDX-License-Identifier: Apache-2.0
"""Picture files -> pixels, and pixels over a background."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from nerfkit.errors import SceneError

BACKGROUNDS = {"white": 1.0, "black": 0.0}


def picture_header(file: Path) -> tuple[int, int, bool]:
    """Width, height and whether there is alpha; raises SceneError if the file is missing or no picture."""
    try:
        with Image.open(file) as image:
            alpha = "A" in image.getbands() or "transparency" in image.info
            return *image.size, alpha
    except FileNotFoundError:
        raise SceneError(f"picture {file} is missing") from None
    except (UnidentifiedImageError, OSError) as error:
        raise SceneError(f"picture {file} cannot be read: {error}") from None


def blend(pixels: Tensor, background: Tensor) -> Tensor:
    """uint8 pixels [..., 3 or 4] over `background` [..., 3], float32 in [0, 1]."""
    color = pixels.float() / 255
    if pixels.shape[-1] == 3:
        return color
    alpha = color[..., 3:]
    return color[..., :3] * alpha + background * (1 - alpha)


def background_color(kind: str, device: torch.device) -> Tensor:
    """Background [3] for rendering and evaluation; white where training draws it at random."""
    return torch.full((3,), BACKGROUNDS.get(kind, 1.0), device=device)
