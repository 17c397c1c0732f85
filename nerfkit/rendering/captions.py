# SPDX-License-Identifier: Apache-2.0
"""Pictures that say what they show: titles above parts that stand side by side, and color bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from nerfkit.rendering.images import colorize, to_uint8

GAP = 8  # pixels between two parts, and around words
SMALLEST, LARGEST = 12, 32  # pixels of a line of text
BAR = 200  # pixels, height of a bar in a file of its own


def beside(parts: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Images [H, W, 3] side by side, each below its title, on white: [H', W', 3]. Their pixels stay as they are."""
    font = _font(max(image.shape[0] for _, image in parts))
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    boxes = [measure.textbbox((0, 0), title, font) for title, _ in parts]
    widths = [max(image.shape[1], math.ceil(box[2])) for (_, image), box in zip(parts, boxes, strict=True)]
    top = math.ceil(max(box[3] for box in boxes)) + 2 * GAP
    size = sum(widths) + GAP * (len(parts) + 1), top + max(image.shape[0] for _, image in parts) + GAP
    canvas = Image.new("RGB", size, "white")
    left, draw = GAP, ImageDraw.Draw(canvas)
    for (title, image), width in zip(parts, widths, strict=True):
        draw.text((left, GAP), title, "black", font)
        canvas.paste(Image.fromarray(to_uint8(image)), (left, top))
        left += width + GAP
    return _tensor(canvas)


def color_bar(colors: Tensor, ticks: Sequence[str], height: int) -> Tensor:
    """Colors [N, 3] from the foot to the head of a bar, as high as asked for or as the ticks need, which are beside
    it at even distances: [H, W, 3]."""
    font = _font(height)
    line = math.ceil(sum(font.getmetrics()))
    height = max(height, line * len(ticks))
    rows = torch.linspace(len(colors) - 1, 0, height).round().long()
    bar = to_uint8(colors[rows][:, None].expand(-1, line, -1))
    canvas = Image.new("RGB", (line + GAP + math.ceil(max(map(font.getlength, ticks))), height), "white")
    canvas.paste(Image.fromarray(bar))
    draw = ImageDraw.Draw(canvas)
    for index, tick in enumerate(reversed(ticks)):
        draw.text((line + GAP, index * (height - line) / (len(ticks) - 1)), tick, "black", font)
    return _tensor(canvas)


def comparison_image(truth: Tensor, render: Tensor, name: str, score: float) -> Tensor:
    """Truth, render and error of a view beside a color bar; errors of 0.25 and more are the brightest."""
    error = (render - truth).abs().mean(-1)  # [H, W]
    scale = color_bar(_of_map("inferno"), ("0", "0.125", "0.25 and more"), len(truth))
    return beside(
        [
            (f"truth\n{name}", truth),
            (f"render\nPSNR {score:.2f} dB", render),
            ("error\n|render - truth|", colorize(error, 0, 0.25, "inferno")),
            ("colors are\n0 to 1", scale),
        ]
    )


def legend(name: str, span: tuple[float, float]) -> Tensor:
    """What the colors of pictures of the output `name` say; those of depths reach from one end of `span` to the
    other, in the units of the scene's files."""
    ramp = torch.linspace(0, 1, 256)[:, None]  # [N, 1]
    if name == "normal":
        axes = zip(("x: red", "y: green", "z: blue"), torch.eye(3), strict=True)
        bars = [(title, color_bar(0.5 + (ramp - 0.5) * axis, ("-1", "0", "1"), BAR)) for title, axis in axes]
        return beside([(f"normal\n{title}", bar) for title, bar in bars])
    if name == "opacity":
        return beside([("opacity", color_bar(ramp.expand(-1, 3), ("0: nothing", "1: solid"), BAR))])
    low, high = span
    ticks = f"{low:.4g} and less", f"{(low + high) / 2:.4g}", f"{high:.4g} and more"
    along = "along the ray" if name.endswith("ray") else "along the viewing axis"
    title = f"{name}: {along}\n[units of the scene's files]\nwhite: nothing is seen"
    return beside([(title, color_bar(_of_map("turbo"), ticks, BAR))])


def _of_map(name: str) -> Tensor:
    return colorize(torch.linspace(0, 1, 256), 0, 1, name)


def _font(height: int) -> ImageFont.FreeTypeFont:
    """For a picture of that height."""
    import matplotlib  # slow to import; Pillow's own font has no more letters than ASCII

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return ImageFont.truetype(str(file), min(max(height // 32, SMALLEST), LARGEST))


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).float() / 255
