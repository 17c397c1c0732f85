# SPDX-License-Identifier: Apache-2.0
"""Marching cubes in blocks: what is inside in [0, 1] at the corners of a grid -> triangles where that is 0.5."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nerfkit.export.grid import BLOCK, Grid
from nerfkit.export.missing import optional

LEVEL = 0.5
NUDGE = 5e-4  # values are kept this far from the level, so that no vertex falls on a corner: by 0.001 cells at most
NO_EDGE = -1  # of vertices inside of a cell


class Piece(NamedTuple):
    """Triangles of some blocks. Vertices on one edge of the grid have one key, in whatever block they were found."""

    vertices: np.ndarray  # [V, 3] float64, in cells from the grid's first corner
    keys: np.ndarray  # [V] int64
    faces: np.ndarray  # [F, 3] int64, counter-clockwise seen from outside


NO_PIECE = Piece(np.zeros((0, 3)), np.zeros(0, np.int64), np.zeros((0, 3), np.int64))


def piece_of_block(grid: Grid, block: np.ndarray, inside: np.ndarray) -> Piece:
    """Triangles of one block, from values [X, Y, Z] at its corners, NaN where nothing is known."""
    known = np.isfinite(inside)
    values = np.where(known, inside, 0).astype(np.float32) - LEVEL
    values = np.where(np.abs(values) < NUDGE, np.where(values < 0, -NUDGE, NUDGE), values)
    if (values < 0).all() or (values > 0).all():
        return NO_PIECE
    measure = optional("skimage.measure", "a mesh")
    # Faces of scikit-image's "ascent" turn to where values are smaller, outside.
    vertices, faces, _, _ = measure.marching_cubes(values, 0.0, gradient_direction="ascent")
    vertices, faces = vertices.astype(np.float64), faces.astype(np.int64)
    if not known.all():
        faces = faces[_in_known_cells(vertices[faces].mean(axis=1), known)]
    vertices = vertices + block * BLOCK
    used = np.unique(faces)
    new = np.full(len(vertices), -1, dtype=np.int64)
    new[used] = np.arange(len(used))
    return Piece(vertices[used], _keys(grid, vertices[used]), new[faces])


def _in_known_cells(places: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether all eight corners of the cells around places [F, 3] are known, [F] bool."""
    cells = np.floor(places).astype(int).clip(0, np.array(known.shape) - 2)
    result = np.ones(len(cells), dtype=bool)
    for corner in range(8):
        result &= known[tuple((cells + [corner >> axis & 1 for axis in range(3)]).T)]
    return result


def _keys(grid: Grid, vertices: np.ndarray) -> np.ndarray:
    """The number [V] of the edge that a vertex is on; NO_EDGE for the few that are inside of a cell."""
    off = np.abs(vertices - np.round(vertices))  # [V, 3]: along its edge alone a vertex is off the corners
    axis = off.argmax(axis=1)
    off[np.arange(len(off)), axis] = 0
    whole = np.round(vertices).astype(np.int64)
    rows = np.arange(len(vertices))
    whole[rows, axis] = np.floor(vertices[rows, axis]).astype(np.int64)
    corners = np.array(grid.cells, dtype=np.int64) + 1
    number = ((whole[:, 0] * corners[1] + whole[:, 1]) * corners[2] + whole[:, 2]) * 3 + axis
    return np.where(off.max(axis=1, initial=0) < NUDGE / 4, number, NO_EDGE)


def joined(pieces: list[Piece]) -> Piece:
    """Pieces as one, in which a vertex that several have is there once."""
    pieces = [piece for piece in pieces if len(piece.faces)]
    if not pieces:
        return NO_PIECE
    starts = np.cumsum([0, *(len(piece.vertices) for piece in pieces)])
    vertices = np.concatenate([piece.vertices for piece in pieces])
    keys = np.concatenate([piece.keys for piece in pieces])
    faces = np.concatenate([piece.faces + start for piece, start in zip(pieces, starts, strict=False)])
    lonely = keys == NO_EDGE
    keys[lonely] = -1 - np.arange(lonely.sum())  # each for itself
    keys, first, number = np.unique(keys, return_index=True, return_inverse=True)
    faces = number[faces]
    whole = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 2] != faces[:, 0])
    return Piece(vertices[first], keys, faces[whole])
