# SPDX-License-Identifier: Apache-2.0
"""Which points are hidden from an eye by triangles, exactly: the way to each is met with all that may lie on it.

Points that stand for a surface, drawn into a depth buffer, would not do: light falls through the gaps between them, and
among a hundred cameras some looks through a gap at most of what is hidden.
"""

from __future__ import annotations

import numpy as np

SIDE = 384  # squares of the eye's picture, each way, by which triangles and points are brought together
AT_ONCE = 2_000_000  # pairs of a triangle and a square, and of a triangle and a point
NEAR = 1e-6  # depth from which a corner has a place in the picture


def hidden(points: np.ndarray, triangles: np.ndarray, eye: np.ndarray, axes: np.ndarray, slack: float) -> np.ndarray:
    """Whether a triangle lies between the eye and points [P, 3], more than `slack` before the point, [P] bool.

    Args:
        points: before the eye.
        triangles: [F, 3, 3], corners.
        eye: [3].
        axes: [3, 3], columns right, up and back.
        slack: a point on a triangle is not hidden by that one, nor by its neighbours.
    """
    result = np.zeros(len(points), dtype=bool)
    if not len(points):
        return result
    place, _ = _picture(points, eye, axes)
    low = place.min(axis=0)
    square = (place.max(axis=0) - low).clip(1e-12) / SIDE
    row, column = ((place - low) / square).astype(int).clip(0, SIDE - 1).T
    number = row * SIDE + column
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], np.arange(SIDE * SIDE + 1))  # of a square's points in `order`
    corners, depth = _picture(triangles, eye, axes)  # [F, 3, 2], [F, 3]
    whole = (depth > NEAR).all(axis=1)[:, None]  # others reach behind the eye: they may be anywhere in the picture
    start = np.where(whole, (corners.min(axis=1) - low) / square, 0)
    end = np.where(whole, (corners.max(axis=1) - low) / square, SIDE)
    face = np.flatnonzero((depth > NEAR).any(axis=1) & (end >= 0).all(axis=1) & (start < SIDE).all(axis=1))
    start, end = (np.floor(x[face]).clip(0, SIDE - 1).astype(int) for x in (start, end))
    size = end - start + 1
    for mine, k in _expanded(size.prod(axis=1)):
        at = (start[mine, 0] + k // size[mine, 1]) * SIDE + start[mine, 1] + k % size[mine, 1]
        for pair, n in _expanded(first[at + 1] - first[at]):
            point = order[first[at[pair]] + n]
            open_ = ~result[point]
            point, on = point[open_], face[mine[pair[open_]]]
            result[point[_between(points[point], triangles[on], eye, slack)]] = True
    return result


def _picture(points: np.ndarray, eye: np.ndarray, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places [..., 2] in a picture of unit focal length, without meaning up to a depth of NEAR, and depths [...]."""
    local = (points - eye) @ axes
    depth = -local[..., 2]
    return local[..., :2] / depth.clip(NEAR)[..., None], depth


def _expanded(counts: np.ndarray):
    """Numbers [N] of items, each as often as it counts, and which time it is [N]: about AT_ONCE together."""
    total = np.cumsum(counts)
    cuts = np.searchsorted(total, np.arange(AT_ONCE, total[-1] if len(total) else 0, AT_ONCE))
    for part in np.split(np.arange(len(counts)), np.unique(cuts)):
        item = np.repeat(part, counts[part])
        before = np.repeat(np.cumsum(counts[part]) - counts[part], counts[part])
        yield item, np.arange(len(item)) - before


def _between(points: np.ndarray, triangles: np.ndarray, eye: np.ndarray, slack: float) -> np.ndarray:
    """Whether the way from the eye to each point [N, 3] meets its triangle [N, 3, 3] before the slack, [N] bool."""
    a, way = triangles[:, 0], points - eye
    ab, ac, to_eye = triangles[:, 1] - a, triangles[:, 2] - a, eye - a
    across, turned = np.cross(way, ac), np.cross(to_eye, ab)
    with np.errstate(divide="ignore", invalid="ignore"):  # along the triangle's plane: NaN, which is not between
        scale = 1 / np.einsum("ij,ij->i", ab, across)
        u, v, t = (np.einsum("ij,ij->i", *pair) * scale for pair in ((to_eye, across), (way, turned), (ac, turned)))
        short = t * np.linalg.norm(way, axis=1) < np.linalg.norm(way, axis=1) - slack
        return (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0) & short
