# SPDX-License-Identifier: Apache-2.0
"""Scenes at random: parts of all families, in arrangements, materials and light that a seed draws."""

from __future__ import annotations

import colorsys
import math

import numpy as np

from orrery.lighting import Light, SoftBox
from orrery.parts import BLACK, UP, Material, Parts, Scene, frame_of, unit_vector
from orrery.shapes import ELLIPSE, LEAF, RECTANGLE
from orrery.wires import circle

ON_FLOOR, IN_AIR = 1.04, 0.9  # radius in which pieces stand
METALS = ((0.78, 0.79, 0.80), (0.95, 0.66, 0.26), (0.93, 0.50, 0.34), (0.56, 0.57, 0.60), (0.80, 0.40, 0.42))


def build(seed: int) -> Scene:
    """Pieces on a floor, or in the air on several levels, and their light."""
    rng = np.random.default_rng(seed)
    parts = Parts()
    has_floor = rng.random() < 0.75
    heights = [rng.uniform(-0.6, -0.4)] if has_floor else [-0.85, -0.35, 0.15]
    if has_floor:
        _floor(parts, rng, heights[0])
    for height in heights:
        taken: list[tuple[float, float, float]] = []
        for _ in range(rng.integers(7, 13) if has_floor else rng.integers(3, 7)):
            place = _free_place(rng, taken, ON_FLOOR if has_floor else IN_AIR)
            if place is not None:
                x, y, radius = place
                foot = np.array([x, y, height if has_floor else height + rng.uniform(-0.15, 0.15)])
                PIECES[rng.choice(len(PIECES), p=WEIGHTS)](parts, rng, foot, radius)
    return parts.scene(_light(rng))


def color(rng: np.random.Generator, low: float = 0.05, high: float = 0.8) -> tuple[float, float, float]:
    """Of any hue; its value lies between the two."""
    return colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 1) ** 0.6, rng.uniform(low, high))


def material(rng: np.random.Generator) -> Material:
    """Dull, lacquered or metal; plain or with a texture."""
    kind = rng.random()
    if kind < 0.18:
        return Material(mirror=METALS[rng.integers(len(METALS))], roughness=rng.uniform(0.0, 0.3))
    texture = ("plain", "noise", "checker", "stripes")[rng.choice(4, p=[0.4, 0.3, 0.15, 0.15])]
    scale = rng.uniform(3, 12)
    gloss = (0.04, 0.04, 0.04) if kind < 0.6 else BLACK
    return Material(color(rng), color(rng), texture, scale, gloss, rng.uniform(0.02, 0.3))


def _floor(parts: Parts, rng: np.random.Generator, height: float) -> None:
    """A round or a square plate."""
    made = material(rng)
    if rng.random() < 0.5:
        parts.drum((0, 0, height - 0.07), (0, 0, height), 1.05, made)
    else:
        frame = frame_of(UP, rng.uniform(0, math.pi))
        parts.box((0, 0, height - 0.035), frame, (0.78, 0.78, 0.035), made)


def _free_place(rng: np.random.Generator, taken: list, edge: float) -> tuple[float, float, float] | None:
    """Place and radius (x, y, radius) that overlaps none of the circles `taken`, to which it is added; or nothing.

    The circle of radius `edge` around the origin holds it.
    """
    for _ in range(60):
        angle, reach, radius = rng.uniform(0, math.tau), edge * math.sqrt(rng.random()), rng.uniform(0.15, 0.42)
        x, y = reach * math.cos(angle), reach * math.sin(angle)
        if reach + radius < edge and all(math.hypot(x - a, y - b) > radius + r for a, b, r in taken):
            taken.append((x, y, radius))
            return x, y, radius
    return None


# Pieces: each stands on `foot` [3] in a circle of a radius.


def _ball(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    radii = radius * np.array([1, rng.uniform(0.6, 1), rng.uniform(0.5, 1.2)])
    if rng.random() < 0.5:
        radii[:] = radius
    parts.ellipsoid(foot + radii[2] * np.array(UP), frame_of(UP, rng.uniform(0, math.pi)), radii, material(rng))


def _box(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    half = radius * np.array([*rng.uniform(0.35, 0.7, 2), rng.uniform(0.3, 0.85)])
    parts.box(foot + half[2] * np.array(UP), frame_of(UP, rng.uniform(0, math.pi)), half, material(rng))
    if rng.random() < 0.5:
        parts.ball(foot + (2 * half[2] + half.min() * 0.7) * np.array(UP), half.min() * 0.7, material(rng))


def _drum(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    top = foot + radius * rng.uniform(0.4, 2.2) * np.array(UP)
    parts.drum(foot, top, radius * rng.uniform(0.4, 1), material(rng), material(rng))


def _rings(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    """A pile that narrows, or one that stands."""
    minor = radius * rng.uniform(0.08, 0.28)
    if rng.random() < 0.4:
        axis = (math.cos(angle := rng.uniform(0, math.pi)), math.sin(angle), 0)
        parts.ring(foot + radius * np.array(UP), axis, radius - minor, minor, material(rng))
        return
    for k in range(rng.integers(1, 6)):
        parts.ring(foot + (2 * k + 1) * minor * np.array(UP), UP, (radius - minor) * 0.88**k, minor, material(rng))


def _spring(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    turns, thick = rng.integers(3, 8), rng.uniform(0.012, 0.03)
    points = circle(foot + thick * np.array(UP), UP, 0.8 * radius, 20 * turns, turns, radius * rng.uniform(1.2, 2.2))
    parts.wire(points, thick, material(rng), 0.2)


def _lattice(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    """The edges of a block, and bars between them."""
    made, n = material(rng), rng.integers(2, 6)
    frame = frame_of(UP, rng.uniform(0, math.pi))
    side, height, thick = 0.65 * radius, radius * rng.uniform(1, 2.2), rng.uniform(0.008, 0.022)
    corners = [foot + side * (x * frame[:, 0] + y * frame[:, 1]) for x, y in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
    for k, corner in enumerate(corners):
        following = corners[(k + 1) % 4]
        for j in range(n):
            share = j / n
            start = corner + share * (following - corner)
            parts.wire([start, start + height * np.array(UP)], thick, made, 0.3)
            level = (thick + share * (height - thick) * n / (n - 1)) * np.array(UP)
            parts.wire([corner + level, following + level], thick, made, 0.3)


def _plant(parts: Parts, rng: np.random.Generator, foot: np.ndarray, radius: float) -> None:
    """A stalk with leaves, or with petals around a ball."""
    height = radius * rng.uniform(1.2, 2.1)
    tip = foot + (*rng.normal(0, 0.05, 2), height)
    parts.rod(foot, tip, 0.02, Material(color(rng, 0.1, 0.4)))
    leaf = Material(color(rng, 0.15, 0.7), color(rng, 0.15, 0.7), "veins", 1.0, through=0.3)
    outline = (LEAF, ELLIPSE, RECTANGLE)[rng.integers(3)]
    for _ in range(rng.integers(12, 60)):
        along = unit_vector(rng.normal(size=3) + (0, 0, 0.3))
        side = unit_vector(np.cross(along, rng.normal(size=3)))
        length = radius * rng.uniform(0.2, 0.4)
        at = foot + (tip - foot) * rng.uniform(0.4, 1) + length * along
        parts.patch(at, length * along, 0.45 * length * side, outline, leaf)
    parts.ball(tip, 0.2 * radius, material(rng))


PIECES = (_ball, _box, _drum, _rings, _spring, _lattice, _plant)
WEIGHTS = (0.22, 0.18, 0.16, 0.14, 0.08, 0.10, 0.12)


def _light(rng: np.random.Generator) -> Light:
    """A sky of any brightness, and one to three soft boxes, of which the first is the brightest."""
    zenith, horizon = (np.array(color(rng, 0.3, 0.9)) * 0.4 + 0.15 for _ in range(2))
    boxes = []
    for k in range(rng.integers(1, 4)):
        azimuth, height = rng.uniform(0, math.tau), rng.uniform(0.3, 2)
        half = rng.uniform(0.06, 0.3, 2)
        tint = 0.75 + 0.25 * np.array(color(rng, 0.9, 1.0))
        strength = rng.uniform(0.8, 1.8) if k == 0 else rng.uniform(0.1, 0.4)  # of the light on a surface
        radiance = tint * strength * math.pi / (4 * half.prod())
        split = 2 if k == 0 else 1
        boxes.append(SoftBox((math.cos(azimuth), math.sin(azimuth), height), *half.tolist(), tuple(radiance), split))
    ground = 0.3 * np.array(color(rng, 0.2, 0.6))
    return Light(tuple(ground), tuple(horizon), tuple(zenith), tuple(boxes))
