# SPDX-License-Identifier: Apache-2.0
"""The scene `metal`: polished and brushed pieces that touch, on a checkered plate, and colors for them to mirror."""

from __future__ import annotations

import math

import numpy as np

from orrery.lighting import Light, SoftBox
from orrery.parts import UP, Material, Parts, Scene, frame_of

FLOOR = -0.42

CHROME = Material(mirror=(0.78, 0.79, 0.80), roughness=0.0)
GOLD = Material(mirror=(0.95, 0.66, 0.26), roughness=0.05)
BRUSHED = Material(mirror=(0.75, 0.75, 0.77), roughness=0.22)
COPPER = Material(mirror=(0.93, 0.50, 0.34), roughness=0.12)
STEEL = Material(mirror=(0.56, 0.57, 0.60), roughness=0.02)
ROSE = Material(mirror=(0.80, 0.40, 0.42), roughness=0.3)
PLATE = Material((0.62, 0.60, 0.55), (0.07, 0.09, 0.13), "checker", 6, (0.04, 0.04, 0.04), 0.06)
RIM = Material((0.10, 0.05, 0.03), (0.28, 0.12, 0.05), "noise", 9, (0.04, 0.04, 0.04), 0.1)


def build(seed: int) -> Scene:
    """The scene; the seed places the painted balls between the pieces of metal."""
    rng = np.random.default_rng(seed)
    parts = Parts()
    parts.rod((0, 0, FLOOR - 0.08), (0, 0, FLOOR), 1.1, RIM, is_round=False)
    parts.disc((0, 0, FLOOR), UP, 1.1, PLATE)
    parts.disc((0, 0, FLOOR - 0.08), UP, 1.1, RIM)
    big, small = np.array([-0.30, 0.30, FLOOR + 0.42]), np.array([0.42, 0.42, FLOOR + 0.28])
    parts.ball(big, 0.42, CHROME)
    parts.ball(small, 0.28, GOLD)
    parts.ring((0.40, -0.42, FLOOR + 0.09), UP, 0.27, 0.09, STEEL)
    parts.ball((0.40, -0.42, FLOOR + 0.31), 0.25, COPPER)  # rests in the ring
    turned = frame_of(UP, 0.6)
    parts.box((-0.55, -0.45, FLOOR + 0.17), turned, (0.22, 0.22, 0.17), BRUSHED)
    parts.ellipsoid((-0.55, -0.45, FLOOR + 0.47), turned, (0.20, 0.14, 0.13), ROSE)  # on the box
    parts.drum((0.86, 0.03, FLOOR), (0.86, 0.03, FLOOR + 0.5), 0.13, COPPER, GOLD)
    lean = np.array([0.0, -math.sin(0.5), math.cos(0.5)])
    parts.ring((0.0, -0.10 - 0.02, FLOOR + 0.29), np.cross(lean, (1, 0, 0)), 0.25, 0.045, GOLD)
    taken = [(-0.30, 0.30, 0.44), (0.42, 0.42, 0.30), (0.40, -0.42, 0.37), (-0.55, -0.45, 0.34), (0.86, 0.03, 0.15),
             (0.0, -0.1, 0.2)]  # fmt: skip
    colors = [(0.70, 0.05, 0.04), (0.04, 0.30, 0.62), (0.72, 0.50, 0.03), (0.06, 0.42, 0.12), (0.75, 0.72, 0.68)]
    for color in colors:
        x, y, radius = _free_place(rng, taken)
        parts.ball((x, y, FLOOR + radius), radius, Material(color, mirror=(0.04, 0.04, 0.04), roughness=0.03))
    return parts.scene(LIGHT)


LIGHT = Light(
    (0.10, 0.09, 0.08),
    (0.34, 0.35, 0.38),
    (0.46, 0.54, 0.70),
    (
        SoftBox((0.75, 0.45, 0.95), 0.22, 0.18, (22.0, 20.5, 18.0), 2),
        SoftBox((-0.9, 0.15, 0.45), 0.16, 0.45, (3.2, 3.9, 5.2), 1),
        SoftBox((0.1, -1.0, 0.35), 0.5, 0.12, (4.6, 3.6, 2.4), 1),
        SoftBox((-0.2, 0.3, 1.0), 0.25, 0.1, (3.0, 3.0, 3.2), 1),
    ),
)


def _free_place(rng: np.random.Generator, taken: list) -> tuple[float, float, float]:
    """Place and radius (x, y, radius) of a ball on the plate that overlaps none of the circles `taken`; adds it."""
    while True:
        x, y, radius = rng.uniform(-1, 1), rng.uniform(-1, 1), rng.uniform(0.08, 0.13)
        if math.hypot(x, y) + radius < 1.05 and all(math.hypot(x - a, y - b) > radius + r for a, b, r in taken):
            taken.append((x, y, radius))
            return x, y, radius
