# SPDX-License-Identifier: Apache-2.0
"""Which points are hidden from a camera by a surface: a depth buffer into which points of it are drawn as squares."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = 12  # of the buffer; the coarsest has squares of 2**11 pixels
COVERS = 1.0  # cells that a point of the surface hides, at least; at most twice as many, for levels are powers of two
BEHIND = 1.0  # cells that a point may lie behind what hides it and still be seen
LEAST_COSINE = 0.25  # at which a surface still counts as sloping: within 14 degrees of it, it may hide itself


class InImage(NamedTuple):
    """Where P points are in one image."""

    distance: Tensor  # [P] from the camera; not finite where a point is not in the image
    pixel: Tensor  # [P, 2] column and row


class Occluder:
    r"""A surface that hides points from one camera.

    Each of its points is drawn into one level of a pyramid of depth buffers, that whose squares are at least as large
    as a cell is there, and hides what is behind it in any: so near ones, which lie far apart in the image, leave no
    gaps, and far ones do not hide what is beside them. As a square reaches over a slope, a point is seen up to

    .. math::
        cell\, (BEHIND + 2\, COVERS \tan\theta)

    behind the nearest, with theta between its normal and the way to the camera. Of two parallel sheets the farther one
    is hidden if they are 2.3 cells apart, under whatever angle.

    Args:
        surface: S points on it, about a cell apart.
        cell: in the unit of distances.
        focal: [] pixels.
        size: width and height of the image, pixels.
    """

    def __init__(self, surface: InImage, cell: float, focal: Tensor, size: tuple[int, int]):
        self.cell = cell
        side = COVERS * cell * focal / surface.distance  # [S] pixels
        drawn = surface.distance.isfinite()
        level = torch.where(drawn, side, 1).clamp(min=1).log2().ceil().long().clamp(max=LEVELS - 1)  # [S]
        self.buffers: list[tuple[int, int, Tensor]] = []  # level, width, distances
        for number in torch.unique(level[drawn]).tolist():
            width, height = ((length - 1 >> number) + 1 for length in size)
            mine = (drawn & (level == number)).nonzero()[:, 0]
            buffer = torch.full((width * height,), math.inf, dtype=side.dtype, device=side.device)
            buffer.scatter_reduce_(0, _square(surface.pixel[mine], number, width), surface.distance[mine], "amin")
            self.buffers.append((number, width, buffer))

    def hides(self, points: InImage, cosine: Tensor) -> Tensor:
        """Which points [P] are hidden, bool; `cosine` [P] of theta."""
        nearest = torch.full_like(points.distance, math.inf)
        pixel = torch.where(points.distance.isfinite()[:, None], points.pixel, 0)
        for number, width, buffer in self.buffers:
            nearest = torch.minimum(nearest, buffer[_square(pixel, number, width)])
        cosine = cosine.abs().clamp(LEAST_COSINE, 1)
        slope = (1 - cosine.square()).sqrt() / cosine
        return points.distance > nearest + self.cell * (BEHIND + 2 * COVERS * slope)


def _square(pixel: Tensor, level: int, width: int) -> Tensor:
    """Number [P] of the square of a level's buffer, `width` squares wide, in which pixels [P, 2] lie."""
    place = pixel.long() >> level
    return place[:, 1] * width + place[:, 0]
