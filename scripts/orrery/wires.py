# SPDX-License-Identifier: Apache-2.0
"""The scene `wires`: spokes, a net, a cage, a spring and a chain, 1 to 2 pixels thick in a picture of 400x400."""

from __future__ import annotations

import math

import numpy as np

from orrery.lighting import Light, SoftBox
from orrery.parts import UP, Material, Parts, Scene, frame_of, unit_vector

PIXEL = 4.031 * 0.72 / 400  # scene units, at the world origin
THIN, THICK = PIXEL / 2, PIXEL  # radii: diameters of 1 and 2 pixels
FLOOR = -0.78  # height of the base

STEEL = Material((0.32, 0.33, 0.36), mirror=(0.04, 0.04, 0.04), roughness=0.25)
DARK = Material((0.03, 0.03, 0.035), mirror=(0.05, 0.05, 0.05), roughness=0.2)
BRASS = Material((0.55, 0.33, 0.07), mirror=(0.06, 0.05, 0.03), roughness=0.25)
COPPER = Material((0.55, 0.17, 0.07), mirror=(0.05, 0.04, 0.04), roughness=0.25)
RED = Material((0.62, 0.03, 0.03), mirror=(0.04, 0.04, 0.04), roughness=0.1)
BLUE = Material((0.03, 0.12, 0.55), mirror=(0.04, 0.04, 0.04), roughness=0.1)
ROPE = Material((0.62, 0.55, 0.38), (0.30, 0.22, 0.10), "noise", 25)
WOOD = Material((0.36, 0.17, 0.07), (0.16, 0.06, 0.02), "noise", 6, (0.04, 0.04, 0.04), 0.15)


def build(seed: int) -> Scene:
    """The scene; the seed turns wheels, sags the net and bends stalks."""
    rng = np.random.default_rng(seed)
    parts = Parts()
    parts.drum((0, 0, FLOOR - 0.06), (0, 0, FLOOR), 1.05, WOOD)
    _wheel(parts, (-0.45, -0.42, FLOOR + 0.52), (0.5, -0.8, 0.1), 0.5, 28, RED, rng.uniform(0, 1))
    _wheel(parts, (0.62, -0.50, FLOOR + 0.31), (-0.3, -0.9, -0.08), 0.3, 18, BLUE, rng.uniform(0, 1))
    _net(parts, rng)
    _cage(parts, (0.42, 0.30, FLOOR), 0.34, 0.95)
    _spring(parts, (-0.62, 0.36, FLOOR), 0.16, 1.0, 11)
    _chain(parts, (-0.62, 0.36, FLOOR + 1.02), (0.42, 0.30, FLOOR + 1.0))
    _grass(parts, rng)
    key = SoftBox((0.7, -0.5, 1.1), 0.05, 0.05, (290.0, 275.0, 250.0), 2)
    fill = SoftBox((-0.9, 0.5, 0.6), 0.3, 0.3, (1.6, 2.0, 2.6), 1)
    return parts.scene(Light((0.16, 0.14, 0.12), (0.45, 0.45, 0.46), (0.62, 0.70, 0.85), (key, fill)))


def circle(center, axis, radius: float, n: int, turns: float = 1.0, rise: float = 0.0) -> np.ndarray:
    """Points [n + 1, 3] around an axis, which climb `rise` along it: a helix."""
    frame = frame_of(axis)
    t = np.linspace(0, 1, n + 1)[:, None]
    x, y = np.cos(math.tau * turns * t), np.sin(math.tau * turns * t)
    return np.asarray(center) + radius * (x * frame[:, 0] + y * frame[:, 1]) + rise * t * frame[:, 2]


def _wheel(parts: Parts, center, axis, radius: float, n_spokes: int, tyre: Material, phase: float) -> None:
    """Spokes from both ends of a hub, crossed, to a rim, and a tyre around it."""
    center, frame = np.asarray(center), frame_of(axis)
    parts.ring(center, axis, radius - 0.02, 0.02, tyre)
    parts.ring(center, axis, radius - 0.05, THICK, STEEL)
    parts.drum(center - 0.07 * frame[:, 2], center + 0.07 * frame[:, 2], 0.03, STEEL)
    for k in range(n_spokes):
        side = 1 if k % 2 else -1
        angle = math.tau * (k + phase) / n_spokes
        at_hub = angle + (1.1 if k // 2 % 2 else -1.1)
        inner = center + 0.028 * _around(frame, at_hub) + side * 0.06 * frame[:, 2]
        parts.wire([inner, center + (radius - 0.05) * _around(frame, angle)], THIN, STEEL)


def _around(frame: np.ndarray, angle: float) -> np.ndarray:
    """Unit vector [3] at an angle about the last column of `frame`."""
    return math.cos(angle) * frame[:, 0] + math.sin(angle) * frame[:, 1]


def _net(parts: Parts, rng: np.random.Generator) -> None:
    """A sagging net of ropes between two bent posts at the back, with knots."""
    left, right = np.array([-0.72, 0.72, FLOOR]), np.array([0.5, 0.86, FLOOR])
    for foot in (left, right):
        parts.wire([foot, foot + (0, 0.02, 0.7), foot + (0, -0.04, 1.55)], 1.6 * THICK, DARK, 0.2)
        parts.ball(foot + (0, -0.04, 1.55), 0.03, BRASS)
    n, rows = 22, 16
    u, v = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, rows + 1), indexing="ij")
    sag = rng.uniform(0.16, 0.24)
    points = left + u[..., None] * (right - left)
    points[..., 1] -= sag * np.sin(math.pi * u) * np.sin(math.pi * v)
    points[..., 2] += 0.28 + 1.22 * v - 0.16 * np.sin(math.pi * u) * v
    for k in range(n + 1):
        parts.wire(points[k], THIN, ROPE)
    for k in range(rows + 1):
        parts.wire(points[:, k], THIN if 0 < k < rows else THICK, ROPE)
    for k in range(0, n + 1, 2):
        for j in range(0, rows + 1, 2):
            parts.ball(points[k, j], 1.6 * THICK, RED if (k + j) % 4 else BLUE)


def _cage(parts: Parts, foot, radius: float, height: float) -> None:
    """A bird cage: bars that meet above, hoops, and a ball that hangs within."""
    foot, n = np.asarray(foot, float), 26
    t = np.linspace(0, 1, 13)[:, None]
    straight = 0.62 * height
    for k in range(n):
        outward = np.array([math.cos(math.tau * k / n), math.sin(math.tau * k / n), 0])
        dome = foot + radius * np.cos(t * math.pi / 2) * outward
        dome = dome + (straight + (height - straight) * np.sin(t * math.pi / 2)) * np.array(UP)
        parts.wire([foot + radius * outward, *dome], THIN, BRASS, 0.12)
    for z in (0.01, 0.3, straight):
        parts.ring(foot + z * np.array(UP), UP, radius, THICK, BRASS)
    parts.wire([foot + (0, 0, height), foot + (0, 0, 0.5)], THIN, DARK)
    parts.ball(foot + (0, 0, 0.42), 0.1, Material((0.75, 0.60, 0.05), (0.05, 0.25, 0.3), "noise", 12))
    parts.ring(foot + (0, 0, height + 0.04), (0, 1, 0), 0.04, THICK, BRASS)


def _spring(parts: Parts, foot, radius: float, height: float, turns: int) -> None:
    parts.wire(circle(foot, UP, radius, 24 * turns, turns, height), THICK, COPPER)
    parts.rod(foot, np.asarray(foot) + (0, 0, height + 0.05), THIN, DARK)
    parts.ball(np.asarray(foot) + (0, 0, height + 0.07), 0.035, COPPER)


def _chain(parts: Parts, start, end) -> None:
    """Links, each turned by a right angle, which hang in an arc from start to end."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    n = 30
    t = np.linspace(0, 1, n + 1)[:, None]
    points = start + t * (end - start) - 4 * 0.26 * t * (1 - t) * np.array(UP)
    for k in range(n):
        along = unit_vector(points[k + 1] - points[k])
        frame = frame_of(along)
        parts.ring((points[k] + points[k + 1]) / 2, frame[:, k % 2], 0.024, THIN, STEEL)


def _grass(parts: Parts, rng: np.random.Generator) -> None:
    """Bent stalks, each with a bead on its tip."""
    for _ in range(26):
        angle, reach = rng.uniform(0, math.tau), rng.uniform(0.03, 0.2)
        foot = np.array([0.05, -0.12, FLOOR]) + (*rng.uniform(-0.12, 0.12, 2), 0)
        height, lean = rng.uniform(0.4, 1.1), np.array([math.cos(angle), math.sin(angle), 0]) * reach
        t = np.linspace(0, 1, 9)[:, None]
        points = foot + t * height * np.array(UP) + t**2 * lean * 2
        green = Material((0.08, 0.26, 0.05)) if rng.random() < 0.6 else Material((0.30, 0.32, 0.05))
        parts.wire(points, THIN, green, 0.15)
        parts.ball(points[-1], rng.uniform(0.012, 0.022), (RED, BRASS, BLUE)[rng.integers(3)])
