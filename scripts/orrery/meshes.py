# SPDX-License-Identifier: Apache-2.0
"""Triangle meshes: primitives as a workshop makes them, and how to place and join them. Scene units."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

ORIGIN = (0.0, 0.0, 0.0)


class Mesh(NamedTuple):
    """Triangles that share vertices."""

    vertices: np.ndarray  # [V, 3]
    faces: np.ndarray  # [F, 3] indices of vertices
    uv: np.ndarray | None = None  # [V, 2] texture coordinates
    normals: np.ndarray | None = None  # [V, 3] unit normals of a smooth surface; None: flat faces


def grid_faces(n_rows: int, n_columns: int) -> np.ndarray:
    """Faces [2 * n_rows * n_columns, 3] of a lattice of n_rows + 1 by n_columns + 1 vertices, row by row."""
    row, column = np.meshgrid(np.arange(n_rows), np.arange(n_columns), indexing="ij")
    corner = (row * (n_columns + 1) + column).ravel()
    right, below = corner + 1, corner + n_columns + 1
    across = below + 1
    return np.concatenate([np.stack([corner, below, across], 1), np.stack([corner, across, right], 1)])


def merge(meshes: list[Mesh]) -> Mesh:
    """One mesh out of several. It has normals only if all of them do; a missing uv becomes 0."""
    counts = [len(mesh.vertices) for mesh in meshes]
    starts = np.cumsum([0, *counts[:-1]])
    uv = [np.zeros((n, 2)) if mesh.uv is None else mesh.uv for mesh, n in zip(meshes, counts, strict=True)]
    smooth = all(mesh.normals is not None for mesh in meshes)
    return Mesh(
        np.concatenate([mesh.vertices for mesh in meshes]),
        np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=True)]),
        np.concatenate(uv),
        np.concatenate([mesh.normals for mesh in meshes]) if smooth else None,
    )


def transform(mesh: Mesh, rotation=None, translation=ORIGIN) -> Mesh:
    """Rotate by a matrix [3, 3] (None: not at all), then translate by a vector [3]."""
    rotation = np.eye(3) if rotation is None else rotation
    return mesh._replace(
        vertices=mesh.vertices @ rotation.T + np.asarray(translation),
        normals=None if mesh.normals is None else mesh.normals @ rotation.T,
    )


def rotation_about(axis: str, degrees: float) -> np.ndarray:
    """Rotation matrix [3, 3] about "x", "y" or "z", counterclockwise as seen from the tip of the axis."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    j, k = (("xyz".index(axis) + step) % 3 for step in (1, 2))
    rotation = np.eye(3)
    rotation[j, j] = rotation[k, k] = cos
    rotation[j, k], rotation[k, j] = -sin, sin
    return rotation


def arc(center_r: float, center_z: float, radius: float, start: float, stop: float, n: int = 9) -> list:
    """n points (r, z) of a circular arc between two angles in degrees: a piece of a profile for `lathe`."""
    angles = [math.radians(angle) for angle in np.linspace(start, stop, n)]
    return [(center_r + radius * math.cos(a), center_z + radius * math.sin(a)) for a in angles]


def lathe(profile, n_around: int = 96, corner: float = 28) -> Mesh:
    """Turn a profile [(r, z), ...] about z. Walking along it, outside is on the right.

    The surface is smooth except where the profile bends by more than `corner` degrees.
    u runs around, v along the length of the profile.
    """
    profile = np.asarray(profile, float)
    steps = np.diff(profile, axis=0)
    length = np.linalg.norm(steps, axis=1).sum()
    walked = 0.0
    parts = []
    for run in _smooth_runs(profile, steps, corner):
        lengths = np.linalg.norm(np.diff(run, axis=0), axis=1)
        v = (walked + np.concatenate([[0], np.cumsum(lengths)])) / length
        walked += lengths.sum()
        parts.append(_revolve(run, v, n_around))
    return merge(parts)


def _smooth_runs(profile: np.ndarray, steps: np.ndarray, corner: float) -> list[np.ndarray]:
    """Cut a profile [P, 2] at its corners; the pieces share the point of the cut."""
    directions = np.degrees(np.arctan2(steps[:, 1], steps[:, 0]))
    turns = np.abs((np.diff(directions) + 180) % 360 - 180)
    cuts = [0, *(np.flatnonzero(turns > corner) + 1), len(profile) - 1]
    return [profile[first : last + 1] for first, last in zip(cuts[:-1], cuts[1:], strict=True)]


def _revolve(run: np.ndarray, v: np.ndarray, n_around: int) -> Mesh:
    """Surface of revolution of a smooth run [P, 2] of (r, z) with texture coordinate v [P]."""
    angles = np.linspace(0, math.tau, n_around + 1)  # the seam has its vertices twice, with u = 0 and u = 1

    def around(rz: np.ndarray) -> np.ndarray:
        r, z = rz[None, :, 0], np.broadcast_to(rz[None, :, 1], (n_around + 1, len(rz)))
        return np.stack([r * np.cos(angles)[:, None], r * np.sin(angles)[:, None], z], -1).reshape(-1, 3)

    tangents = np.gradient(run, axis=0) if len(run) > 2 else np.repeat(np.diff(run, axis=0), 2, 0)
    normals = np.stack([tangents[:, 1], -tangents[:, 0]], 1)
    # Where an arc starts at the end of a line, the profile has a point twice: faces without area, no normal.
    normals /= np.linalg.norm(normals, axis=1, keepdims=True) + 1e-12
    uv = np.stack(np.broadcast_arrays((angles / math.tau)[:, None], v[None, :]), -1).reshape(-1, 2)
    return Mesh(around(run), grid_faces(n_around, len(run) - 1), uv, around(normals))


def ball(radius: float, n_around: int = 64) -> Mesh:
    """Sphere about the origin. u is the longitude, v the latitude (0 south, 1 north)."""
    latitude = np.linspace(-math.pi / 2, math.pi / 2, n_around // 2 + 1)
    profile = np.stack([radius * np.cos(latitude), radius * np.sin(latitude)], 1)
    mesh = lathe(profile, n_around, corner=200)
    mesh.uv[:, 1] = 0.5 + np.arcsin(np.clip(mesh.vertices[:, 2] / radius, -1, 1)) / math.pi
    return mesh._replace(normals=mesh.vertices / radius)


def tube(path, radius, n_around: int = 14) -> Mesh:
    """Round rod along a polyline [P, 3] with flat ends; `radius` is one number or one per point [P]."""
    path = np.asarray(path, float)
    radius = np.broadcast_to(np.asarray(radius, float), (len(path),))
    tangents = np.gradient(path, axis=0)
    tangents /= np.linalg.norm(tangents, axis=1, keepdims=True)
    x, y = _frames_along(tangents)

    def with_ends(rows: np.ndarray) -> np.ndarray:  # the end rows shrink to almost a point: the caps
        return np.concatenate([rows[:1], rows, rows[-1:]])

    path, x, y = with_ends(path), with_ends(x), with_ends(y)
    radius = np.concatenate([[1e-5], radius, [1e-5]])
    angles = np.linspace(0, math.tau, n_around + 1)
    outward = x[:, None] * np.cos(angles)[None, :, None] + y[:, None] * np.sin(angles)[None, :, None]
    vertices = path[:, None] + radius[:, None, None] * outward
    normals = outward.copy()
    normals[0], normals[-1] = -tangents[0], tangents[-1]
    return Mesh(vertices.reshape(-1, 3), grid_faces(len(path) - 1, n_around), None, normals.reshape(-1, 3))


def _frames_along(tangents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two unit vectors [P, 3] across each tangent [P, 3], carried along the path without a twist."""
    seed = [0, 0, 1.0] if abs(tangents[0, 2]) < 0.9 else [1.0, 0, 0]  # anything that is not along the path
    x = np.cross(tangents[0], seed)
    x /= np.linalg.norm(x)
    xs, ys = [], []
    for tangent in tangents:
        x = x - tangent * (x @ tangent)
        x /= np.linalg.norm(x)
        xs.append(x)
        ys.append(np.cross(tangent, x))
    return np.array(xs), np.array(ys)


def annulus(inner: np.ndarray, outer: np.ndarray, bottom: float, top: float, chamfer: float) -> Mesh:
    """Flat-shaded slab with chamfered edges between two closed outlines.

    inner, outer: [N + 1] radii at angles from 0 to 2 pi. u runs around, v outward from the inner outline (0).
    """
    n = len(outer) - 1
    angles = np.linspace(0, math.tau, n + 1)
    outline = [  # once around the cross-section
        (inner, bottom + chamfer),
        (inner + chamfer, bottom),
        (outer - chamfer, bottom),
        (outer, bottom + chamfer),
        (outer, top - chamfer),
        (outer - chamfer, top),
        (inner + chamfer, top),
        (inner, top - chamfer),
        (inner, bottom + chamfer),
    ]
    width = outer.mean() - inner[0]
    parts = []
    for edge in zip(outline[:-1], outline[1:], strict=True):
        circles = [np.stack([r * np.cos(angles), r * np.sin(angles), np.full(n + 1, z)], -1) for r, z in edge]
        v = [(r - inner[0]).mean() / width for r, _ in edge]
        uv = np.stack([np.repeat(angles / math.tau, 2), np.tile(v, n + 1)], -1)
        parts.append(Mesh(np.stack(circles, 1).reshape(-1, 3), grid_faces(n, 1), uv))
    return merge(parts)


def ring(inner: float, outer: float, bottom: float, top: float, n_around: int = 256, chamfer: float = 0.003) -> Mesh:
    """Round flat ring about z between two radii and two heights."""
    return annulus(np.full(n_around + 1, inner), np.full(n_around + 1, outer), bottom, top, chamfer)


def box(center, size) -> Mesh:
    """Block with its edges along the axes, from its center [3] and its edge lengths [3]."""
    half = (-0.5, 0.5)
    corners = np.array([[x, y, z] for x in half for y in half for z in half]) * size + center
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    first = np.arange(6)[:, None] * 4  # each side has its own four vertices: the edges stay sharp
    faces = np.concatenate([first + [0, 1, 2], first + [0, 2, 3]])
    return Mesh(np.concatenate([corners[list(side)] for side in sides]), faces)


def gear(
    teeth: int,
    module: float,
    bottom: float,
    top: float,
    spokes: int = 5,
    phase: float = 0.0,
    bore: float = 0.03,
) -> Mesh:
    """Spur gear about z: a rim with trapezoidal teeth, spokes and a hub.

    module: pitch diameter over number of teeth; two wheels mesh if they share it. phase: turn in radians.
    bore: radius of the hole. A pinion too small for spokes has none.
    """
    pitch = module * teeth / 2
    tip, root = pitch + module, pitch - 1.2 * module
    points = 10  # of the outline, per tooth
    across = (np.arange(teeth * points + 1) % points) / points
    rise, fall = np.clip((across - 0.16) / 0.14, 0, 1), np.clip((0.84 - across) / 0.14, 0, 1)
    teeth_outline = root + (tip - root) * np.minimum(rise, fall)
    rim_inner = np.full(teeth * points + 1, max(root - 0.030, bore + 0.03))
    parts = [
        annulus(rim_inner, teeth_outline, bottom, top, 0.0025),
        ring(bore, bore + 0.035, bottom - 0.008, top + 0.008, 64, 0.003),
    ]
    reach = root - 0.028  # where a spoke ends, inside the rim
    if reach > bore + 0.05:
        center = ((bore + 0.03 + reach) / 2, 0, (bottom + top) / 2)
        spoke = box(center, (reach - bore - 0.028, 0.026, (top - bottom) * 0.7))
        parts += [transform(spoke, rotation_about("z", 360 * s / spokes)) for s in range(spokes)]
    return transform(merge(parts), rotation_about("z", math.degrees(phase)))
