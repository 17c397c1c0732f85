# SPDX-License-Identifier: Apache-2.0
"""Images of values, and image files."""

from __future__ import annotations

import io
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
from torch import Tensor


def to_uint8(image: Tensor) -> np.ndarray:
    """8-bit copy of an image in [0, 1], rounded."""
    return (image.clamp(0, 1) * 255 + 0.5).to(torch.uint8).numpy()


def file_stem(name: str, view: int) -> str:
    """A view's name, as that of its files; its number if the name is none for files."""
    is_usable = name.isprintable() and len(name) <= 60 and Path(name).name == name and not name.startswith(".")
    return name if is_usable else f"{view:04d}"


def png_bytes(image: Tensor) -> bytes:
    """An image [H, W, 3] in [0, 1] as the content of a PNG file."""
    content = io.BytesIO()
    imageio.imwrite(content, to_uint8(image), format="png")
    return content.getvalue()


def npz_bytes(**values: np.ndarray) -> bytes:
    """Arrays by name as the content of an NPZ file."""
    content = io.BytesIO()
    np.savez_compressed(content, **values)
    return content.getvalue()


def colorize(values: Tensor, low: float, high: float, colormap: str = "turbo") -> Tensor:
    """Image [H, W, 3] of values [H, W], low to high along a colormap."""
    import matplotlib  # slow to import

    unit = ((values - low) / max(high - low, 1e-9)).clamp(0, 1)
    return torch.from_numpy(matplotlib.colormaps[colormap](unit.numpy())[..., :3]).float()


def preview(name: str, images: dict[str, Tensor], depth_range: tuple[float, float]) -> Tensor:
    """Displayable image [H, W, 3] of the output `name`; depth and normals fade to white with the opacity."""
    image = images[name]
    if name == "rgb":
        return image
    opacity = images["opacity"][..., None]  # [H, W, 1]
    if name == "opacity":
        return opacity.expand(-1, -1, 3)
    colors = image / 2 + 0.5 if name == "normal" else colorize(image, *depth_range)
    return colors * opacity + (1 - opacity)


def comparison_image(truth: Tensor, render: Tensor) -> Tensor:
    """Truth | render | error, side by side; errors of 0.25 and more are the brightest."""
    error = (render - truth).abs().mean(-1)  # [H, W]
    return torch.cat([truth, render, colorize(error, 0, 0.25, "inferno")], dim=1)
