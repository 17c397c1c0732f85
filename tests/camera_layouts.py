# SPDX-License-Identifier: Apache-2.0
"""Cameras held in the ways that people hold them, made with numpy alone."""

from __future__ import annotations

import numpy as np

from nerfkit.data.capture import Points
from tests.captures import random_poses


def look_at(eyes: np.ndarray, targets: np.ndarray, up: tuple[float, float, float] = (0, 0, 1)) -> np.ndarray:
    """Poses [V, 3, 4], OpenGL axes, at `eyes` [V, 3] looking at `targets` [3] or [V, 3]."""
    back = eyes - targets
    back /= np.linalg.norm(back, axis=1, keepdims=True)
    right = np.cross(np.array(up, dtype=float), back)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    return np.stack([right, np.cross(back, right), back, eyes], axis=-1)


def ring(n: int = 30, start: float = 0.0, end: float = 2 * np.pi, radius: float = 3.0) -> np.ndarray:
    angle = np.linspace(start, end, n, endpoint=False)
    height = 1 + 0.5 * np.sin(5 * angle)
    eyes = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    return look_at(eyes, np.array([0, 0, 0.5]) + 0.05 * np.sin(np.outer(np.arange(n), [1.0, 2, 3])))


def grid(columns: int = 6, rows: int = 4) -> np.ndarray:
    """A wall of cameras that look along y at a point that is far compared to the wall."""
    x, z = np.meshgrid(np.linspace(-1, 1, columns), np.linspace(-0.6, 0.6, rows))
    eyes = np.stack([x.ravel(), np.zeros(x.size), z.ravel()], axis=1)
    return look_at(eyes, np.array([0, 9.0, 0]))


def corridor(n: int = 40, length: float = 30.0) -> np.ndarray:
    x = np.linspace(0, length, n)
    eyes = np.stack([x, 0.2 * np.sin(x), 1.6 + 0.05 * np.cos(3 * x)], axis=1)
    turn = 1.4 * np.sin(np.arange(n) * 0.9)
    return look_at(eyes, eyes + np.stack([np.cos(turn), np.sin(turn), -0.1 * np.cos(x)], axis=1))


LAYOUTS = {"ring": ring(), "half ring": ring(25, 0.3, 0.3 + np.pi), "grid": grid(), "corridor": corridor()}
KIND_OF = {"ring": "inward", "half ring": "inward", "grid": "forward", "corridor": "walk-through"}


def cloud(center: tuple[float, float, float], size: float, n_views: int, n: int = 500, seed: int = 0) -> Points:
    """A normal cloud of points, each seen by 2 to 5 of `n_views` views."""
    generator = np.random.default_rng(seed)
    tracks = generator.integers(2, 6, n)
    return Points(
        positions=np.array(center) + size * generator.normal(size=(n, 3)),
        colors=generator.integers(0, 256, (n, 3), dtype=np.uint8),
        track_lengths=tracks,
        views=generator.integers(0, n_views, tracks.sum()),
    )


def similarity(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    generator = np.random.default_rng(seed)
    return random_poses(1, generator)[0, :, :3], generator.normal(size=3) * 5, float(10 ** generator.uniform(-2, 2))


def moved(what: np.ndarray, change: tuple[np.ndarray, np.ndarray, float]) -> np.ndarray:
    """Poses [V, 3, 4] or points [P, 3] after a similarity."""
    rotation, translation, scale = change
    if what.shape[-2:] == (3, 4):
        places = moved(what[..., 3], change)
        return np.concatenate([rotation @ what[..., :3], places[..., None]], axis=-1)
    return scale * what @ rotation.T + translation
