# SPDX-License-Identifier: Apache-2.0
"""Which points triangles hide from an eye: as every triangle says, asked one by one."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from orrery import sight  # noqa: E402

EYE, AXES = np.array([0.2, -0.1, 3.0]), np.eye(3)  # it looks down


def says_each(points: np.ndarray, triangles: np.ndarray, slack: float) -> np.ndarray:
    """By where the way meets each triangle's plane: points [P], bool."""
    result = np.zeros(len(points), dtype=bool)
    for a, b, c in triangles:
        way = points - EYE
        t, u, v = np.linalg.solve(
            np.stack([-way, np.broadcast_to(b - a, way.shape), np.broadcast_to(c - a, way.shape)], axis=-1),
            np.broadcast_to(EYE - a, way.shape)[..., None],
        )[..., 0].T
        before = t * np.linalg.norm(way, axis=1) < np.linalg.norm(way, axis=1) - slack
        result |= (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0) & before
    return result


@pytest.mark.parametrize("size", [0.05, 0.3, 5.0])  # the last reach behind the eye
@pytest.mark.parametrize("at_once", [300, sight.AT_ONCE])
def test_as_every_triangle_says(monkeypatch, size, at_once):
    monkeypatch.setattr(sight, "AT_ONCE", at_once)
    rng = np.random.default_rng(5)
    points = rng.uniform(-1, 1, (400, 3))
    triangles = rng.uniform(-1, 1, (int(40 / min(size, 1)), 1, 3)) + size * rng.normal(
        size=(int(40 / min(size, 1)), 3, 3)
    )
    found = sight.hidden(points, triangles, EYE, AXES, 0.01)
    assert (found == says_each(points, triangles, 0.01)).all() and 20 < found.sum() < 400


def test_what_is_within_a_closed_surface_is_hidden_and_its_front_is_not():
    """All of it: no gaps, however many eyes there are."""
    skimage = pytest.importorskip("skimage.measure")
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 33)] * 3, indexing="ij"), axis=-1)
    vertices, faces, _, _ = skimage.marching_cubes(0.8 - np.linalg.norm(grid, axis=-1), 0.0)
    ball = (vertices / 16 - 1)[faces]  # [F, 3, 3]
    outside, inside = ball.mean(axis=1), 0.6 * ball.mean(axis=1)
    assert sight.hidden(inside, ball, EYE, AXES, 1e-3).all()
    facing = ((EYE - outside) * outside).sum(axis=1) / np.linalg.norm(EYE - outside, axis=1)
    found = sight.hidden(outside, ball, EYE, AXES, 1e-3)
    assert found[facing < -0.05].all() and not found[facing > 0.05].any()


def test_no_points_are_not_hidden():
    assert sight.hidden(np.zeros((0, 3)), np.zeros((1, 3, 3)), EYE, AXES, 0.1).shape == (0,)
