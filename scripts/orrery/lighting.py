# SPDX-License-Identifier: Apache-2.0
"""The light around a scene: a sky of three colors and soft boxes, in closed form, and shadow maps.

Radiance comes from infinitely far away. What a mirror sees of it is looked up for a lobe of any width. For dull
surfaces it is split into lamps, which are directions with a shadow map each: no noise, and a shadow stays where it is
when the camera moves. Vectors have their components first, [3, ...].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from orrery.casting import Parallel, first_hits
from orrery.shapes import Shapes, cross, dot, unit

REACH = 1.7  # scene units from the world origin: everything lies within, and has a place in the shadow maps
SKY_LAMPS = 24
OFFSET = 2.0  # texels
EDGE = 0.015  # softness of a soft box's edge, tangent of an angle


class SoftBox(NamedTuple):
    """A bright rectangle far away."""

    direction: tuple[float, float, float]  # to its center
    half_width: float  # tangent of the angle
    half_height: float
    radiance: tuple[float, float, float]
    split: int  # into lamps: split * split


class Light(NamedTuple):
    """All that shines."""

    ground: tuple[float, float, float]  # radiance from straight below
    horizon: tuple[float, float, float]
    zenith: tuple[float, float, float]
    boxes: tuple[SoftBox, ...]

    def radiance(self, directions: Tensor, roughness: Tensor | float) -> Tensor:
        """[3, ...] from unit directions [3, ...], the mean of a Gaussian lobe of a width [...] in radians."""
        return self.sky(directions, roughness) + sum(
            _column(box.radiance, directions) * _covered(box, directions, roughness) for box in self.boxes
        )

    def sky(self, directions: Tensor, roughness: Tensor | float) -> Tensor:
        """The radiance without the boxes."""
        height = directions[2]
        ground, horizon, zenith = (_column(c, directions) for c in (self.ground, self.horizon, self.zenith))
        above = horizon + (zenith - horizon) * height.clamp(min=0) ** 0.7
        below = horizon * 0.5 + (ground - horizon * 0.5) * (-height).clamp(min=0) ** 0.5
        return below + (above - below) * (0.5 + 0.5 * torch.erf(height / (0.02 + 1.4 * roughness)))


def _column(color: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(color, dtype=torch.float32).reshape(3, *[1] * (like.ndim - 1))


def _frame(box: SoftBox) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors, each [3]: across, up and to the center."""
    center = unit(torch.tensor(box.direction, dtype=torch.float32))
    across = unit(cross(torch.tensor([0.0, 0.0, 1.0]), center))
    return across, cross(center, across), center


def _covered(box: SoftBox, directions: Tensor, roughness: Tensor | float) -> Tensor:
    """Share [...] of a lobe that the box fills: an integral of a Gaussian over a rectangle."""
    across, up, center = (axis.reshape(3, *[1] * (directions.ndim - 1)) for axis in _frame(box))
    depth = dot(directions, center)
    scale = 1 / (math.sqrt(2) * (EDGE + roughness))
    result = (depth > 0).float()
    for axis, half in ((across, box.half_width), (up, box.half_height)):
        at = dot(directions, axis) / depth.clamp(min=1e-3)
        result = result * 0.5 * (torch.erf((at + half) * scale) - torch.erf((at - half) * scale))
    return result


class Lamp(NamedTuple):
    """Parallel light with a shadow map."""

    irradiance: Tensor  # [3] over pi, of a surface that faces it
    view: Parallel
    depth: Tensor  # [size, size] distance to what it meets first
    is_sky: bool

    def reaches(self, points: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Of surfaces at `points` [3, M]: cosine [M] to the lamp, and whether [M], 0 or 1, its side of it is lit.

        A point is moved off its surface, to the lamp's side, or else the surface would shade itself.
        """
        to_lamp = self.view.frame.T
        facing = (to_lamp @ normals)[2]
        x, y, z = to_lamp @ (points + facing.sign() * (OFFSET * self.texel) * normals)
        last, half, scale = self.view.size - 1, self.view.size / 2, self.view.size / (2 * self.view.reach)
        row, column = (half - scale * y).long().clamp(0, last), (half + scale * x).long().clamp(0, last)
        depth = self.depth.reshape(-1)[row * self.view.size + column]
        return facing, (self.view.reach - z < depth + self.texel).float()

    @property
    def texel(self) -> float:
        """Edge length in scene units."""
        return 2 * self.view.reach / self.view.size


def lamps_of(light: Light, kinds: list[Shapes], size: int) -> list[Lamp]:
    """Lamps for a scene; shadow maps of soft boxes have `size` * `size` texels, those of the sky a ninth of them."""
    lamps = []
    for box in light.boxes:
        across, up, center = _frame(box)
        solid_angle = 4 * box.half_width * box.half_height / box.split**2
        places = ((torch.arange(box.split) + 0.5) / box.split * 2 - 1).tolist()
        for x in places:
            for y in places:
                direction = unit(center + x * box.half_width * across + y * box.half_height * up)
                radiance = torch.tensor(box.radiance, dtype=torch.float32)
                lamps.append(_lamp(direction, radiance * solid_angle, kinds, size, False))
    for k in range(SKY_LAMPS):
        z = 1 - (2 * k + 1) / SKY_LAMPS
        azimuth = k * math.pi * (3 - math.sqrt(5))
        flat = math.sqrt(1 - z * z)
        direction = torch.tensor([flat * math.cos(azimuth), flat * math.sin(azimuth), z])
        lamps.append(_lamp(direction, light.sky(direction, 0.2) * 4 * math.pi / SKY_LAMPS, kinds, size // 3, True))
    return lamps


def _lamp(direction: Tensor, irradiance: Tensor, kinds: list[Shapes], size: int, is_sky: bool) -> Lamp:
    aside = torch.tensor([0.0, 0.0, 1.0] if abs(direction[2]) < 0.9 else [1.0, 0.0, 0.0])
    right = unit(cross(aside, direction))
    view = Parallel(torch.stack([right, cross(direction, right), direction], 1), REACH, size)
    hits = first_hits(kinds, view, torch.tensor([[0.5, 0.5]]))
    return Lamp(irradiance / math.pi, view, hits.distance.reshape(size, size), is_sky)
