# SPDX-License-Identifier: Apache-2.0
"""Images of values, and image files."""

from __future__ import annotations

import io
from pathlib import Path

import imageio.v2 as imageio
import matplotlib
import numpy as np
import torch
from torch import Tensor

from nerfkit.files import atomic_write


def to_uint8(picture: Tensor) -> np.ndarray:
    """8-bit copy of a picture in [0, 1], rounded."""
    return (picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8).numpy()



def save_png(path: Path, picture: Tensor) -> None:
    """Write a picture [H, W, 3] in [0, 1]; complete or not at all."""
    content = io.BytesIO()
    imageio.imwrite(content, to_uint8(picture), format="png")
    atomic_write(path, content.getvalue())



def save_npz(path: Path, **values: np.ndarray) -> None:
    """Write arrays by name; complete or not at all."""
    content = io.BytesIO()
    np.savez_compressed(content, **values)
    atomic_write(path, content.getvalue())



def colorize(values: Tensor, low: float, high: float, colormap: str = "turbo") -> Tensor:
    """Picture [H, W, 3] of values [H, W], low to high along a colormap."""
    unit = ((values - low) / max(high - low, 1e-9)).clamp(0, 1)
    return torch.from_numpy(matplotlib.colormaps[colormap](unit.numpy())[..., :3]).float()



def preview(name: str, pictures: dict[str, Tensor], depth_range: tuple[float, float]) -> Tensor:
    """Picture [H, W, 3] to look at, of the output `name`; depth and normals fade to white where little is seen."""
    picture = pictures[name]
    if name == "rgb":
        return picture
    opacity = pictures["opacity"][..., None]  # [H, W, 1]
    if name == "opacity":
        return opacity.expand(-1, -1, 3)
    colors = picture / 2 + 0.5 if name == "normal" else colorize(picture, *depth_range)
    return colors * opacity + (1 - opacity)



def error_sheet(truth: Tensor, render: Tensor) -> Tensor:
    """Truth | render | error, side by side; errors of 0.25 and more are the brightest."""
    error = (render - truth).abs().mean(-1)  # [H, W]
    return torch.cat([truth, render, colorize(error, 0, 0.25, "inferno")], dim=1)

