# SPDX-License-Identifier: Apache-2.0
"""Which points are hidden from a camera by a surface: a depth buffer into which points of it are drawn as squares."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = 12  # of the buffer; the coarsest has squares of 2**11 pixels


class InImage(NamedTuple):
    """Where P points are in one image."""

    distance: Tensor  # [P] from the camera; not finite where a point is not in the image
    pixel: Tensor  # [P, 2] column and row


def hidden(points: InImage, surface: InImage, side: Tensor, size: tuple[int, int], tolerance: float) -> Tensor:
    """Whether points [P] lie more than `tolerance` behind points [S] of a surface that cover the same pixels, [P] bool.

    A point of the surface is drawn into one level of a pyramid of buffers, that whose squares are at least as large as
    its `side`, and hides what is behind it in any: so near ones, which lie far apart in the image, leave no gaps, and
    far ones do not hide what is beside them.

    Args:
        points: that are asked for.
        surface: points on it.
        side: [S] pixels that each has to cover to reach its neighbours.
        size: width and height of the image, pixels.
        tolerance: in the unit of distances.
    """
    drawn = surface.distance.isfinite()
    level = torch.where(drawn, side, 1).clamp(min=1).log2().ceil().long().clamp(max=LEVELS - 1)  # [S]
    asked = points.distance.isfinite()
    nearest = torch.full_like(points.distance, math.inf)
    for number in torch.unique(level[drawn]).tolist():
        width, height = ((length - 1 >> number) + 1 for length in size)
        mine = (drawn & (level == number)).nonzero()[:, 0]
        buffer = torch.full((width * height,), math.inf, dtype=nearest.dtype, device=nearest.device)
        buffer.scatter_reduce_(0, _square(surface.pixel[mine], number, width), surface.distance[mine], "amin")
        pixel = torch.where(asked[:, None], points.pixel, 0)
        nearest = torch.minimum(nearest, buffer[_square(pixel, number, width)])
    return points.distance > nearest + tolerance


def _square(pixel: Tensor, level: int, width: int) -> Tensor:
    """Number [P] of the square of a level's buffer, `width` squares wide, in which pixels [P, 2] lie."""
    place = pixel.long() >> level
    return place[:, 1] * width + place[:, 0]
