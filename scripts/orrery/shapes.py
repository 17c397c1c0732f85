# SPDX-License-Identifier: Apache-2.0
"""Shapes that a ray meets in closed form: many of one kind at a time, for the scenes of `scripts/make_scenes.py`.

Vectors have their components first, [3, ...]: a sum over them is three plain ones. Every kind offers

    hull     points [3, N, K] whose convex hull holds each of the N shapes
    hit      distance [...] at which rays first enter the shapes `index` [...], inf where they miss
    normal   unit normals [3, ...] outwards at points [3, ...] of shapes `index` [...]
    local    coordinates [3, ...] of such points that are fixed to the shape, for textures

Directions are unit vectors. A hit nearer than NEAR counts as the surface that the ray starts from.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

NEAR = 1e-3  # scene units
TORUS_STEPS = 48  # of sphere tracing
TORUS_PRECISION = 4e-4  # scene units; what is nearer to a torus is on it

ELLIPSE, RECTANGLE, LEAF = 0, 1, 2  # outlines of a patch


class Shapes(Protocol):
    """Many shapes of one kind."""

    def __len__(self) -> int:
        """How many there are."""

    def hull(self) -> Tensor:
        """Points [3, N, K] whose convex hull holds each shape."""

    def hit(self, index: Tensor, origins: Tensor, directions: Tensor) -> Tensor:
        """Distances [...] along rays to shapes `index` [...]; inf: missed."""

    def normal(self, index: Tensor, points: Tensor) -> Tensor:
        """Unit normals [3, ...] outwards."""

    def local(self, index: Tensor, points: Tensor) -> Tensor:
        """Coordinates [3, ...] fixed to the shape."""


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Scalar products [...] of vectors [3, ...]."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def unit(a: Tensor) -> Tensor:
    """Unit vectors [3, ...]."""
    return a / dot(a, a).clamp(min=1e-24).sqrt()


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Vector products [3, ...]."""
    return torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=0)


def times(matrices: Tensor, a: Tensor) -> Tensor:
    """Matrices [3, 3, ...] times vectors [3, ...]."""
    return torch.stack([dot(matrices[row], a) for row in range(3)])


def _corners(center: Tensor, axes: Tensor) -> Tensor:
    """Corners [3, N, 2**K] of boxes around `center` [3, N] with half axes [3, K, N]."""
    signs = itertools.product((-1.0, 1.0), repeat=axes.shape[1])
    return torch.stack([center + sum(s * axes[:, k] for k, s in enumerate(sign)) for sign in signs], -1)


def _from_nearby(origins: Tensor, directions: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Distance [...] from the origin to the place nearest to `center`, and that place relative to it [3, ...].

    A quadratic that is solved from there keeps its digits in float32: shapes are a thousandth of the distance.
    """
    start = dot(center - origins, directions)
    return start, origins + start * directions - center


def _kept(t: Tensor, is_hit: Tensor) -> Tensor:
    return torch.where(is_hit & (t > NEAR), t, torch.inf)


class Rods(NamedTuple):
    """Cylinders from `start` to `end`; `is_round` ones end in half spheres, others are open (close them by patches)."""

    start: Tensor  # [3, N]
    end: Tensor  # [3, N]
    radius: Tensor  # [N]
    is_round: Tensor  # [N] bool

    def __len__(self) -> int:
        return self.start.shape[1]

    def hull(self) -> Tensor:
        """Boxes around the spheres of the ends, or around the circles of open ones."""
        axis, _ = self._axes(torch.arange(len(self)))
        flat = (1 - axis * axis).clamp(min=0).sqrt()
        half = torch.eye(3)[:, :, None] * (self.radius * torch.where(self.is_round, 1.0, flat))
        return torch.cat([_corners(self.start, half), _corners(self.end, half)], -1)

    def hit(self, index: Tensor, origins: Tensor, directions: Tensor) -> Tensor:
        """The body's quadratic; beyond an end, that of its sphere."""
        a, radius = self.start[:, index], self.radius[index]
        axis, length = self._axes(index)
        first, o = _from_nearby(origins, directions, a)
        d_along, o_along = dot(directions, axis), dot(o, axis)
        A = (1 - d_along * d_along).clamp(min=1e-9)
        B = dot(o, directions) - o_along * d_along
        C = dot(o, o) - o_along * o_along - radius * radius
        under_root = B * B - A * C
        t = (-B - under_root.clamp(min=0).sqrt()) / A
        along = o_along + t * d_along
        on_body = (under_root >= 0) & (along > 0) & (along < length)
        o = o - torch.where(along <= 0, 0.0, length) * axis  # from the sphere of the end
        B = dot(o, directions)
        of_end = B * B - dot(o, o) + radius * radius
        t_end = -B - of_end.clamp(min=0).sqrt()
        on_end = ~on_body & (of_end >= 0) & self.is_round[index]
        return _kept(torch.where(on_body, t, t_end) + first, on_body | on_end)

    def normal(self, index: Tensor, points: Tensor) -> Tensor:
        axis, length = self._axes(index)
        offset = points - self.start[:, index]
        return unit(offset - torch.minimum(dot(offset, axis).clamp(min=0), length) * axis)

    def local(self, index: Tensor, points: Tensor) -> Tensor:
        """The points themselves: a chain of rods has one texture."""
        return points

    def _axes(self, index: Tensor) -> tuple[Tensor, Tensor]:
        axis = self.end - self.start
        length = dot(axis, axis).sqrt()
        return (axis / length.clamp(min=1e-9))[:, index], length[index]


class Ellipsoids(NamedTuple):
    """Spheres and ellipsoids, by their half axes."""

    center: Tensor  # [3, N]
    axes: Tensor  # [3, 3, N], orthogonal columns: component, axis

    def __len__(self) -> int:
        return self.center.shape[1]

    def hull(self) -> Tensor:
        return _corners(self.center, self.axes)

    def hit(self, index: Tensor, origins: Tensor, directions: Tensor) -> Tensor:
        """The quadratic of the unit sphere, in coordinates in which the ellipsoid is one."""
        first, o = _from_nearby(origins, directions, self.center[:, index])
        inverse = self._inverse()[..., index]
        o, d = times(inverse, o), times(inverse, directions)
        A, B, C = dot(d, d), dot(o, d), dot(o, o) - 1
        under_root = B * B - A * C
        return _kept((-B - under_root.clamp(min=0).sqrt()) / A + first, under_root >= 0)

    def normal(self, index: Tensor, points: Tensor) -> Tensor:
        inverse = self._inverse()[..., index]
        return unit(times(inverse.transpose(0, 1), times(inverse, points - self.center[:, index])))

    def local(self, index: Tensor, points: Tensor) -> Tensor:
        """On the unit sphere."""
        return times(self._inverse()[..., index], points - self.center[:, index])

    def _inverse(self) -> Tensor:
        return self.axes.transpose(0, 1) / (self.axes * self.axes).sum(0)[:, None]


class Patches(NamedTuple):
    """Flat pieces without thickness, seen from both sides."""

    center: Tensor  # [3, N]
    u: Tensor  # [3, N] half axis
    v: Tensor  # [3, N] half axis, at a right angle to u
    outline: Tensor  # [N] ELLIPSE, RECTANGLE or LEAF: with a stalk at -u, a tip at u

    def __len__(self) -> int:
        return self.center.shape[1]

    def hull(self) -> Tensor:
        return _corners(self.center, torch.stack([self.u, self.v], 1))

    def hit(self, index: Tensor, origins: Tensor, directions: Tensor) -> Tensor:
        normal = unit(cross(self.u, self.v))[:, index]
        facing = dot(directions, normal)
        t = dot(self.center[:, index] - origins, normal) / torch.where(facing.abs() > 1e-7, facing, 1e-7)
        x, y, _ = self.local(index, origins + t * directions)
        outline = self.outline[index]
        inside = torch.where(outline == RECTANGLE, torch.maximum(x.abs(), y.abs()), x * x + y * y) < 1
        in_leaf = (x.abs() < 1) & (y.abs() < 0.95 * (1 - x * x) * (1 - 0.35 * x))
        return _kept(t, torch.where(outline == LEAF, in_leaf, inside))

    def normal(self, index: Tensor, points: Tensor) -> Tensor:
        """That of the side of u x v; who looks from the other one turns it."""
        return unit(cross(self.u, self.v))[:, index].expand_as(points)

    def local(self, index: Tensor, points: Tensor) -> Tensor:
        """x along u and y along v, each in [-1, 1], and 0."""
        offset = points - self.center[:, index]
        x, y = (dot(offset, (axis / dot(axis, axis))[:, index]) for axis in (self.u, self.v))
        return torch.stack([x, y, torch.zeros_like(x)])


class Tori(NamedTuple):
    """Rings of round cross-section."""

    center: Tensor  # [3, N]
    frame: Tensor  # [3, 3, N], orthonormal columns; the last is the axis
    major: Tensor  # [N] radius of the middle circle
    minor: Tensor  # [N] radius of the cross-section

    def __len__(self) -> int:
        return self.center.shape[1]

    def hull(self) -> Tensor:
        wide = self.major + self.minor
        return _corners(self.center, self.frame * torch.stack([wide, wide, self.minor]))

    def hit(self, index: Tensor, origins: Tensor, directions: Tensor) -> Tensor:
        """Sphere tracing from where the ray enters the sphere around the torus."""
        shape = torch.broadcast_shapes(index.shape, origins.shape[1:], directions.shape[1:])
        index, o, d = index.expand(shape), origins.expand(3, *shape), directions.expand(3, *shape)
        first, nearest = _from_nearby(o, d, self.center[:, index])
        under_root = (self.major + self.minor)[index] ** 2 - dot(nearest, nearest)
        found = torch.full(shape, torch.inf)
        meets = (under_root > 0) & (first + under_root.clamp(min=0).sqrt() > NEAR)
        reach, start = under_root[meets].sqrt(), first[meets]
        inverse = self.frame.transpose(0, 1)[..., index[meets]]
        o, d = times(inverse, nearest[:, meets]), times(inverse, d[:, meets])
        major, minor = self.major[index[meets]], self.minor[index[meets]]
        t = torch.maximum(-reach, 2 * NEAR - start)  # from the place nearest to the center
        for _ in range(TORUS_STEPS):
            t = t + _outside_torus(o + t * d, major, minor)
        on_it = (_outside_torus(o + t * d, major, minor) < TORUS_PRECISION) & (t <= reach)
        found[meets] = _kept(t + start, on_it & (t + start > 3 * NEAR))
        return found

    def normal(self, index: Tensor, points: Tensor) -> Tensor:
        frame, p = self.frame[..., index], self.local(index, points) * self.major[index]
        flat = torch.stack([p[0], p[1], torch.zeros_like(p[0])])
        return unit(times(frame, p - unit(flat) * self.major[index]))

    def local(self, index: Tensor, points: Tensor) -> Tensor:
        """In the torus's frame, in units of its large radius."""
        inverse = self.frame.transpose(0, 1)[..., index]
        return times(inverse, points - self.center[:, index]) / self.major[index]


def _outside_torus(p: Tensor, major: Tensor, minor: Tensor) -> Tensor:
    """Signed distance [...] of points [3, ...] to tori around the axis z."""
    return torch.hypot(torch.hypot(p[0], p[1]) - major, p[2]) - minor
