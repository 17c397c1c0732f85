# SPDX-License-Identifier: Apache-2.0
"""Which shape each ray meets first: of the rays of a picture, and of any rays.

Rays of a picture are met shape by shape: a shape is asked about the pixels of its bounding rectangle alone, and the
nearest answer stays, as in a depth buffer. Several rays go through a pixel, at the places of one fixed pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from orrery.shapes import Shapes, dot, unit

RAYS_AT_ONCE = 400_000  # of one call of a shape; what fits a cache
NOTHING = torch.iinfo(torch.int64).max  # a key of rays that meet nothing


class Pinhole(NamedTuple):
    """A camera; `pose` [4, 4] is camera-to-world in OpenGL axes, `focal` in pixels, the center in the middle."""

    pose: Tensor
    focal: float
    width: int
    height: int

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Pixel coordinates (right, down), each [...], of points [3, ...] before the camera."""
        x, y, z = torch.einsum("cr,c...->r...", self.pose[:3, :3], _less(points, self.pose[:3, 3]))
        depth = (-z).clamp(min=1e-3)
        return self.width / 2 + self.focal * x / depth, self.height / 2 - self.focal * y / depth

    def rays(self, right: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Origins [3, 1...] and unit directions [3, ...] through pixel coordinates."""
        x, y = (right - self.width / 2) / self.focal, (self.height / 2 - down) / self.focal
        axes = self.pose[:3, :3].reshape(3, 3, *[1] * x.ndim)
        return _column(self.pose[:3, 3], x.ndim), unit(axes[:, 0] * x + axes[:, 1] * y - axes[:, 2])


class Parallel(NamedTuple):
    """Parallel rays from afar, those of a lamp; `frame` [3, 3] has columns right, up and back to where they come from.

    The picture is a square of 2 `reach` around the world's origin, and rays start at a plane that far from it.
    """

    frame: Tensor
    reach: float
    size: int

    @property
    def width(self) -> int:
        return self.size

    height = width

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Pixel coordinates (right, down), each [...], of points [3, ...]."""
        x, y = (dot(_column(self.frame[:, k], points.ndim - 1), points) for k in (0, 1))
        return (1 + x / self.reach) * self.size / 2, (1 - y / self.reach) * self.size / 2

    def rays(self, right: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Origins [3, ...] and the direction [3, 1...] through pixel coordinates."""
        x, y = self.reach * (2 * right / self.size - 1), self.reach * (1 - 2 * down / self.size)
        axes = self.frame.reshape(3, 3, *[1] * x.ndim)
        return axes[:, 0] * x + axes[:, 1] * y + axes[:, 2] * self.reach, -axes[:, 2]


class Hits(NamedTuple):
    """What each of M rays meets first."""

    shape: Tensor  # [M] counted through all kinds, -1: nothing
    distance: Tensor  # [M], inf: nothing


def sample_places(samples: int) -> Tensor:
    """Where in a pixel its rays go through, [S, 2] in [0, 1).

    Hammersley's points: the S rows, and the S columns, have one each, so that an edge of any slope is met evenly.
    """
    index = torch.arange(samples)
    bits = sum(((index >> k) & 1).double() * 0.5 ** (k + 1) for k in range(16))
    return torch.stack([(index + 0.5) / samples, (bits + 0.5 / samples) % 1], 1).float()


def first_hits(kinds: list[Shapes], view: Pinhole | Parallel, places: Tensor) -> Hits:
    """Of the H * W * S rays of a picture, pixel by pixel, sample places [S, 2] within one."""
    n_samples = len(places)
    keys = torch.full((view.height * view.width * n_samples,), NOTHING)
    before = 0  # shapes of the kinds before
    for kind in kinds:
        for index, column, row in _pixels_of(kind, view, RAYS_AT_ONCE // n_samples):
            right, down = (base[:, None] + place for base, place in zip((column, row), places.T, strict=True))
            t = kind.hit(index[:, None], *view.rays(right, down)).reshape(-1)  # [P * S]
            ray = ((row * view.width + column)[:, None] * n_samples + torch.arange(n_samples)).reshape(-1)
            found = t.isfinite().nonzero()[:, 0]
            shape = before + index[found // n_samples]
            # A positive float32 has the order of its bits: the nearest wins, of equals the first shape.
            key = (t[found].view(torch.int32).long() << 32) | shape
            keys.scatter_reduce_(0, ray[found], key, "amin")
        before += len(kind)
    missed = keys == NOTHING
    distance = (keys >> 32).int().view(torch.float32)
    return Hits(torch.where(missed, -1, keys & 0xFFFFFFFF), torch.where(missed, torch.inf, distance))


def _pixels_of(kind: Shapes, view: Pinhole | Parallel, at_once: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Shape, column and row, each [P], of all pixels of the shapes' bounding rectangles; about `at_once` at a time."""
    right, down = view.project(kind.hull())  # [N, K]
    left, right = (edge.floor().clamp(0, view.width) for edge in (right.amin(1), right.amax(1) + 1))
    top, bottom = (edge.floor().clamp(0, view.height) for edge in (down.amin(1), down.amax(1) + 1))
    width, height = (right - left).long(), (bottom - top).long()
    counts = width * height
    shapes = counts.nonzero()[:, 0]
    chunk = (counts[shapes].cumsum(0) - 1) // at_once
    for chosen in shapes.split(torch.unique_consecutive(chunk, return_counts=True)[1].tolist()) if len(shapes) else ():
        n = counts[chosen]
        index = chosen.repeat_interleave(n)
        within = torch.arange(len(index)) - (n.cumsum(0) - n).repeat_interleave(n)
        yield index, left.long()[index] + within % width[index], top.long()[index] + within // width[index]


def nearest_hits(kinds: list[Shapes], origins: Tensor, directions: Tensor) -> Hits:
    """Of any rays [3, M], by asking each shape about all of them: for scenes of few shapes."""
    best = Hits(torch.full(origins.shape[1:], -1), torch.full(origins.shape[1:], torch.inf))
    before = 0
    for kind in kinds:
        for index in torch.arange(len(kind)).split(1):
            t = kind.hit(index, origins, directions)
            is_nearer = t < best.distance
            best = Hits(torch.where(is_nearer, before + index, best.shape), torch.where(is_nearer, t, best.distance))
        before += len(kind)
    return best


def _column(a: Tensor, n_more: int) -> Tensor:
    return a.reshape(3, *[1] * n_more)


def _less(points: Tensor, a: Tensor) -> Tensor:
    return points - _column(a, points.ndim - 1)
