# SPDX-License-Identifier: Apache-2.0
"""The scene `leaves`: a bush of some 900 thin leaves with veins in a striped pot, and fallen ones around it."""

from __future__ import annotations

import math

import numpy as np

from orrery.lighting import Light, SoftBox
from orrery.parts import UP, Material, Parts, Scene, unit_vector
from orrery.shapes import ELLIPSE, LEAF

FLOOR = -0.86
SOIL = FLOOR + 0.44  # height of the soil in the pot
TWIGS, LEAVES_OF_TWIG = 62, 14

BARK = Material((0.20, 0.12, 0.06), (0.08, 0.045, 0.02), "noise", 14)
CLAY = Material((0.50, 0.17, 0.08), (0.36, 0.11, 0.05), "noise", 7, (0.04, 0.04, 0.04), 0.25)
BAND = Material((0.75, 0.70, 0.58), (0.10, 0.22, 0.40), "noise", 16, (0.04, 0.04, 0.04), 0.1)
EARTH = Material((0.07, 0.045, 0.03), (0.02, 0.012, 0.008), "noise", 25)
STONE = Material((0.50, 0.48, 0.44), (0.30, 0.29, 0.28), "noise", 8)
BERRY = Material((0.60, 0.02, 0.02), mirror=(0.04, 0.04, 0.04), roughness=0.05)
GREENS = ((0.06, 0.22, 0.03), (0.10, 0.30, 0.04), (0.20, 0.38, 0.05), (0.05, 0.16, 0.05), (0.34, 0.36, 0.05),
          (0.42, 0.16, 0.03))  # fmt: skip


def build(seed: int) -> Scene:
    """The scene; every twig and leaf is the seed's."""
    rng = np.random.default_rng(seed)
    parts = Parts()
    _pot(parts)
    trunk = np.array([[0, 0, SOIL - 0.02], [0.03, -0.02, SOIL + 0.22], [-0.02, 0.02, SOIL + 0.5]])
    parts.wire(trunk, 0.035, BARK, 0.2)
    crown = np.array([0.0, 0.0, SOIL + 0.68])
    for k in range(TWIGS):
        # An even cover of directions, but for those straight down.
        height = 1 - 1.62 * (k + 0.5) / TWIGS
        azimuth = k * 2.399963 + rng.uniform(-0.2, 0.2)
        flat = math.sqrt(1 - height * height)
        outward = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), height])
        tip = crown + outward * rng.uniform(0.55, 0.95) * np.array([0.88, 0.88, 0.78])
        _twig(parts, rng, trunk[1] + rng.uniform(0, 1) * (trunk[2] - trunk[1]), tip)
    for _ in range(26):
        angle, reach = rng.uniform(0, math.tau), rng.uniform(0.42, 0.82)
        at = np.array([reach * math.cos(angle), reach * math.sin(angle), FLOOR + rng.uniform(0.015, 0.04)])
        _leaf(parts, rng, at, unit_vector((rng.normal(), rng.normal(), 0.1 * rng.normal())), np.array(UP), 0.2)
    sun = SoftBox((0.5, -0.7, 1.2), 0.04, 0.04, (550.0, 510.0, 440.0), 2)
    return parts.scene(Light((0.14, 0.13, 0.09), (0.46, 0.50, 0.54), (0.55, 0.70, 0.95), (sun,)))


def _pot(parts: Parts) -> None:
    parts.drum((0, 0, FLOOR - 0.05), (0, 0, FLOOR), 0.95, STONE)
    parts.rod((0, 0, FLOOR), (0, 0, SOIL), 0.30, CLAY, is_round=False)
    parts.rod((0, 0, FLOOR + 0.12), (0, 0, FLOOR + 0.28), 0.303, BAND, is_round=False)
    parts.disc((0, 0, SOIL - 0.01), UP, 0.31, EARTH)
    parts.ring((0, 0, SOIL), UP, 0.31, 0.035, CLAY)


def _twig(parts: Parts, rng: np.random.Generator, start: np.ndarray, tip: np.ndarray) -> None:
    """A bent branch with leaves along its outer half, and now and then a berry."""
    t = np.linspace(0, 1, 7)[:, None]
    points = start + t * (tip - start) + (t - t * t) * np.array([0, 0, 0.35]) + 0.02 * rng.normal(size=(7, 3)) * t
    for k in range(6):
        parts.rod(points[k], points[k + 1], 0.014 - 0.0018 * k, BARK)
    outward = unit_vector(tip - start)
    for k in range(LEAVES_OF_TWIG):
        along = 0.4 + 0.6 * (k + rng.uniform(0, 1)) / LEAVES_OF_TWIG
        at = np.array([np.interp(along, t[:, 0], points[:, c]) for c in range(3)])
        _leaf(parts, rng, at, unit_vector(0.6 * outward + rng.normal(size=3) * 0.7), outward + (0, 0, 0.6), 0.55)
    if rng.random() < 0.4:
        parts.ball(tip + (0, 0, -0.04), 0.028, BERRY)


def _leaf(parts: Parts, rng: np.random.Generator, stalk, along, facing, spread: float) -> None:
    """From its stalk [3] along a unit vector; its face looks to `facing`, but for a `spread`. A sixth are discs."""
    length = rng.uniform(0.055, 0.105)
    side = unit_vector(np.cross(unit_vector(facing) + spread * rng.normal(size=3), along))
    color = np.array(GREENS[rng.choice(len(GREENS), p=[0.28, 0.28, 0.18, 0.14, 0.08, 0.04])])
    shade = rng.integers(3)
    vein = color * 0.5 + np.array([0.24, 0.26, 0.09])
    material = Material(
        tuple(color * (0.75 + 0.2 * shade)), tuple(vein), "veins", 1.0, (0.04, 0.04, 0.04), 0.3, through=0.3
    )
    outline = ELLIPSE if rng.random() < 1 / 6 else LEAF
    width = length * (0.55 if outline == ELLIPSE else 0.5)
    parts.patch(stalk + length * along, length * along, width * side, outline, material)
    if outline == LEAF:
        parts.rod(stalk, stalk + 0.3 * length * along, 0.004, Material((0.10, 0.16, 0.03)))
