# SPDX-License-Identifier: Apache-2.0
"""A grid of cubic cells over the exported box, worked on block by block, and its surface by marching cubes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.crop import Crop
from nerfkit.data.scene_transform.transform import SceneTransform, corner_text
from nerfkit.errors import UserError
from nerfkit.export.writing import optional
from nerfkit.model.base import Model
from nerfkit.model.sampling import BoxSampler

BLOCK = 16  # cells a side: fewer are far from a surface than in larger ones
LEVEL = 0.5  # of what is inside, on the surface
NUDGE = 5e-4  # values are kept this far from the level, so that no vertex falls on a corner: by 0.001 cells at most
NO_EDGE = -1  # of vertices inside of a cell


def domain(model: Model, config: Config, crop: Crop | None, transform: SceneTransform | None) -> np.ndarray:
    """The box to export, [2, 3] float64 in the model's frame; raises UserError if the crop leaves nothing.

    For an object the sampler's box, cut by the crop. For a place the crop alone, or without one its middle.
    """
    box = np.array(config.data.box).reshape(2, 3)
    if config.sampling.kind == "contracted":
        return box if crop is None else crop.bounds()
    of_sampler = getattr(getattr(model, "sampler", None), "box", None)
    box = box if of_sampler is None else of_sampler.double().cpu().numpy()
    if crop is None:
        return box
    bounds = crop.bounds()
    cut = np.stack([np.maximum(box[0], bounds[0]), np.minimum(box[1], bounds[1])])
    if not (cut[0] < cut[1]).all():
        corners = np.array(list(itertools.product(*box.T)))  # [8, 3]
        if crop.frame == "files" and transform is not None:
            corners = transform.to_input(corners)
        raise UserError(
            f"{crop.where}: the box {corner_text(np.array([crop.low, crop.high]))} lies outside of what was trained, "
            f"{corner_text(np.stack([corners.min(axis=0), corners.max(axis=0)]))} in the same coordinates; change it, "
            "or take it away"
        )
    return cut


@dataclass(frozen=True, eq=False)
class Grid:
    """Cubic cells; values belong to their corners, of which a side has one more than cells."""

    origin: np.ndarray  # [3] float64, position of the first corner
    cell: float  # edge length [model units]
    cells: tuple[int, int, int]  # along x, y, z

    @classmethod
    def over(cls, box: np.ndarray, resolution: int) -> Grid:
        """Cells in a box [2, 3] whose longest side has `resolution` of them; they may reach over its upper sides."""
        sides = box[1] - box[0]
        cell = float(sides.max() / resolution)
        cells = np.maximum(np.ceil(sides / cell - 1e-6), 1).astype(int)
        return cls(box[0].astype(np.float64), cell, tuple(cells.tolist()))

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Which points [P, 3] lie in a cell, bool."""
        return ((points >= self.origin) & (points <= self.origin + self.cell * np.array(self.cells))).all(axis=1)

    @property
    def n_blocks(self) -> np.ndarray:
        return -(-np.array(self.cells) // BLOCK)

    def mark(self, found: np.ndarray, points: np.ndarray, reach: float | np.ndarray) -> None:
        """Set, in `found` [n_blocks] bool, the blocks within `reach`, [3] or one for all axes, of points [P, 3]."""
        upper, side = self.origin + self.cell * np.array(self.cells), self.cell * BLOCK
        points = points[((points >= self.origin - reach) & (points <= upper + reach)).all(1)]
        for shift in itertools.product(np.linspace(-1, 1, math.ceil(2 * np.max(reach) / side) + 1), repeat=3):
            block = np.floor((points + np.multiply(shift, reach) - self.origin) / side).astype(np.int64)
            found[tuple(block.clip(0, self.n_blocks - 1).T)] = True

    def corners(self, block: np.ndarray) -> tuple[int, int, int]:
        """Corners of a block [3] along x, y, z: one more than cells, shared with the next block."""
        return tuple((np.minimum(BLOCK, np.array(self.cells) - block * BLOCK) + 1).tolist())

    def points(self, blocks: np.ndarray, device: torch.device) -> Tensor:
        """Positions [P, 3] float32 of corners of blocks [B, 3], block after block, x slowest."""
        corners = [block * BLOCK + np.indices(self.corners(block)).reshape(3, -1).T for block in blocks]
        return torch.tensor(self.origin + self.cell * np.concatenate(corners), dtype=torch.float32, device=device)

    def split(self, blocks: np.ndarray, values: Tensor) -> list[np.ndarray]:
        """Values [P] at the corners of blocks, in the order of `points`, as one array [X, Y, Z] for each."""
        shapes = [self.corners(block) for block in blocks]
        parts = values.cpu().split([math.prod(shape) for shape in shapes])
        return [part.view(shape).numpy() for part, shape in zip(parts, shapes, strict=True)]


def occupied_blocks(grid: Grid, model: Model) -> np.ndarray:
    """Blocks [N, 3] in or beside an occupied cell of the model's sampler; all where it has none that are boxes."""
    sampler = getattr(model, "sampler", None)
    if not isinstance(sampler, BoxSampler):
        return np.argwhere(np.ones(grid.n_blocks, dtype=bool))
    (low, high), occupied = sampler.box.double().cpu().numpy(), sampler.occupancy.cpu().numpy()
    cell, found = (high - low) / occupied.shape, np.zeros(grid.n_blocks, dtype=bool)
    # Half a cell from its middle and one more: occupancy was seen at random places of a cell.
    grid.mark(found, low + cell * (np.argwhere(occupied) + 0.5), 1.5 * cell)
    return np.argwhere(found)


class Piece(NamedTuple):
    """Triangles of some blocks. Vertices on one edge of the grid have one key, in whatever block they were found."""

    vertices: np.ndarray  # [V, 3] float64, in cells from the grid's first corner
    keys: np.ndarray  # [V] int64
    faces: np.ndarray  # [F, 3] int64, counter-clockwise seen from outside


NO_PIECE = Piece(np.zeros((0, 3)), np.zeros(0, np.int64), np.zeros((0, 3), np.int64))


def piece_of_block(grid: Grid, block: np.ndarray, inside: np.ndarray) -> Piece:
    """Triangles of a block, by marching cubes, where values [X, Y, Z] at its corners are 0.5; NaN: nothing is known."""
    known = np.isfinite(inside)
    values = np.where(known, inside, 0).astype(np.float32) - LEVEL
    values = np.where(np.abs(values) < NUDGE, np.where(values < 0, -NUDGE, NUDGE), values)
    if (values < 0).all() or (values > 0).all():
        return NO_PIECE
    measure = optional("skimage.measure", "a mesh")
    # Faces of scikit-image's "ascent" turn to where values are smaller, outside.
    vertices, faces, _, _ = measure.marching_cubes(values, 0.0, gradient_direction="ascent")
    vertices, faces = vertices.astype(np.float64), faces.astype(np.int64)
    for axis in range(3):  # a cell is known if its eight corners are
        known = np.logical_and(*(np.delete(known, end, axis) for end in (0, -1)))
    cell = np.floor(vertices[faces].mean(axis=1)).astype(int).clip(0, np.array(known.shape) - 1)  # [F, 3]
    faces = faces[known[tuple(cell.T)]]
    vertices = vertices + block * BLOCK
    return Piece(vertices, _keys(grid, vertices), faces)


def _keys(grid: Grid, vertices: np.ndarray) -> np.ndarray:
    """The number [V] of the edge that a vertex is on; NO_EDGE for the few that are inside of a cell."""
    off = np.abs(vertices - np.round(vertices))  # [V, 3]: along its edge alone a vertex is off the corners
    rows, axis = np.arange(len(off)), off.argmax(axis=1)
    off[rows, axis] = 0
    whole = np.round(vertices).astype(np.int64)
    whole[rows, axis] = np.floor(vertices[rows, axis]).astype(np.int64)
    corners = np.array(grid.cells, dtype=np.int64) + 1
    number = ((whole[:, 0] * corners[1] + whole[:, 1]) * corners[2] + whole[:, 2]) * 3 + axis
    return np.where(off.max(axis=1, initial=0) < NUDGE / 4, number, NO_EDGE)


def joined(pieces: list[Piece]) -> Piece:
    """Pieces as one, in which a vertex that several have is there once."""
    pieces = [NO_PIECE, *pieces]
    starts = np.cumsum([0, *(len(piece.vertices) for piece in pieces[:-1])])
    vertices, keys = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("vertices", "keys"))
    faces = np.concatenate([piece.faces + start for piece, start in zip(pieces, starts, strict=True)])
    lonely = keys == NO_EDGE
    own = np.where(lonely, -1 - np.cumsum(lonely), keys)  # each for itself
    _, first, number = np.unique(own, return_index=True, return_inverse=True)
    return Piece(vertices[first], keys[first], number[faces])
