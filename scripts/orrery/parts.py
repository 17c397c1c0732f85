# SPDX-License-Identifier: Apache-2.0
"""Materials, and a list of parts that becomes a scene: what the families of `scripts/make_scenes.py` are built of.

Points and vectors are three numbers, in scene units; colors are linear RGB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from orrery.lighting import Light
from orrery.shapes import ELLIPSE, RECTANGLE, Ellipsoids, Patches, Rods, Shapes, Tori

Color = tuple[float, float, float]
TEXTURES = ("plain", "noise", "checker", "stripes", "veins")
BLACK = (0.0, 0.0, 0.0)
UP = (0.0, 0.0, 1.0)


class Material(NamedTuple):
    """How a surface looks. Dull unless it has a `mirror`."""

    color: Color = BLACK  # diffuse reflectance
    other: Color = BLACK  # where the texture is 1
    texture: str = "plain"  # of TEXTURES; plain is 0
    scale: float = 1.0  # of the texture: more is finer
    mirror: Color = BLACK  # reflectance of the mirror at a right angle: 0.04 a lacquer, 0.5 and more a metal
    roughness: float = 0.1  # standard deviation of mirrored directions, radians
    through: float = 0.0  # share of the light that comes from behind

    def row(self) -> list[float]:
        """The numbers of `Scene.table`."""
        return [
            *self.color, *self.other, *self.mirror, self.roughness, self.through, TEXTURES.index(self.texture),
            self.scale,
        ]  # fmt: skip


class Scene(NamedTuple):
    """What is rendered."""

    kinds: list[Shapes]
    material: Tensor  # [N] row of the table, of the shapes of all kinds in their order
    table: Tensor  # [T, 13], see Material.row
    light: Light


def unit_vector(vector: Sequence[float]) -> np.ndarray:
    """[3]."""
    return np.asarray(vector, float) / np.linalg.norm(vector)


def frame_of(axis: Sequence[float], turn: float = 0.0) -> np.ndarray:
    """Orthonormal columns [3, 3], right-handed, the last of which is `axis`; turned about it by radians."""
    z = unit_vector(axis)
    x = unit_vector(np.cross([0.0, 1.0, 0.0] if abs(z[1]) < 0.9 else [1.0, 0.0, 0.0], z))
    y = np.cross(z, x)
    return np.stack([math.cos(turn) * x + math.sin(turn) * y, math.cos(turn) * y - math.sin(turn) * x, z], 1)


class Parts:
    """Parts as they are added; `scene` puts them together."""

    def __init__(self) -> None:
        self._rows: dict[type, list[tuple]] = {Rods: [], Ellipsoids: [], Patches: [], Tori: []}
        self._material: dict[type, list[Material]] = {kind: [] for kind in self._rows}

    def _add(self, kind: type, material: Material, *values) -> None:
        self._rows[kind].append(values)
        self._material[kind].append(material)

    def rod(self, start, end, radius: float, material: Material, is_round: bool = True) -> None:
        """A cylinder with half spheres at its ends; open if not `is_round`."""
        self._add(Rods, material, start, end, radius, is_round)

    def wire(self, points, radius: float, material: Material, piece: float = 0.08) -> None:
        """A round wire through points [P, 3], in pieces of at most that length: short shapes are met quickly."""
        for start, end in zip(points[:-1], points[1:], strict=True):
            start, end = np.asarray(start, float), np.asarray(end, float)
            n = max(1, math.ceil(np.linalg.norm(end - start) / piece))
            for k in range(n):
                self.rod(start + (end - start) * k / n, start + (end - start) * (k + 1) / n, radius, material)

    def ball(self, center, radius: float, material: Material) -> None:
        self.ellipsoid(center, np.eye(3), (radius, radius, radius), material)

    def ellipsoid(self, center, frame, radii, material: Material) -> None:
        """By an orthonormal frame [3, 3] of columns and a radius for each."""
        self._add(Ellipsoids, material, center, np.asarray(frame) * np.asarray(radii, float))

    def patch(self, center, u, v, outline: int, material: Material) -> None:
        """A flat piece with half axes u and v, at a right angle."""
        self._add(Patches, material, center, u, v, outline)

    def disc(self, center, axis, radius: float, material: Material) -> None:
        frame = frame_of(axis)
        self.patch(center, frame[:, 0] * radius, frame[:, 1] * radius, ELLIPSE, material)

    def ring(self, center, axis, major: float, minor: float, material: Material) -> None:
        """A torus; `major` is the radius of its middle circle."""
        self._add(Tori, material, center, frame_of(axis), major, minor)

    def drum(self, start, end, radius: float, material: Material, top: Material | None = None) -> None:
        """A closed cylinder with flat ends."""
        axis = np.asarray(end, float) - np.asarray(start, float)
        self.rod(start, end, radius, material, is_round=False)
        self.disc(start, -axis, radius, material)
        self.disc(end, axis, radius, top or material)

    def box(self, center, frame, half, material: Material) -> None:
        """By an orthonormal frame [3, 3] of columns and half an edge along each."""
        frame, axes = np.asarray(frame), np.asarray(frame) * np.asarray(half, float)
        for k in range(3):
            u, v = axes[:, (k + 1) % 3], axes[:, (k + 2) % 3]
            for side in (1, -1):
                self.patch(np.asarray(center) + side * axes[:, k], side * u, v, RECTANGLE, material)

    def scene(self, light: Light) -> Scene:
        """All parts, in tensors."""
        kinds, chosen = [], []
        for kind, rows in self._rows.items():
            if rows:
                kinds.append(kind(*(_stacked(values) for values in zip(*rows, strict=True))))
                chosen += self._material[kind]
        index = {material: k for k, material in enumerate(dict.fromkeys(chosen))}
        table = torch.tensor([material.row() for material in index], dtype=torch.float32)
        return Scene(kinds, torch.tensor([index[material] for material in chosen]), table, light)


def _stacked(values: Sequence) -> Tensor:
    """Numbers or arrays [...] of N parts as [..., N]; float32, unless they count or are true or false."""
    array = np.stack([np.asarray(value) for value in values], -1)
    return torch.from_numpy(array if array.dtype.kind in "ib" and array.ndim == 1 else array.astype(np.float32))
