# SPDX-License-Identifier: Apache-2.0
"""A grid of cubic cells over a box, worked on in blocks of them: what is held in memory is one block's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nerfkit.model.base import Model
from nerfkit.model.sampling import ContractedSampler

BLOCK = 16  # cells a side: fewer are far from a surface than in larger ones
CORNERS_ALONG = np.arange(BLOCK + 1)


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

    @property
    def blocks(self) -> np.ndarray:
        """Blocks along x, y, z, [3] int."""
        return -(-np.array(self.cells) // BLOCK)

    def corners(self, block: np.ndarray) -> tuple[int, int, int]:
        """Corners of a block [3] along x, y, z: one more than cells, shared with the next block."""
        return tuple((np.minimum(BLOCK, np.array(self.cells) - block * BLOCK) + 1).tolist())

    def points(self, blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions [P, 3] float32 of corners of blocks [B, 3], block after block, x slowest; the block [P] of each."""
        positions = [self._points(block) for block in blocks]
        counts = torch.tensor([len(part) for part in positions])
        number = torch.arange(len(blocks)).repeat_interleave(counts)
        return torch.tensor(np.concatenate(positions), dtype=torch.float32, device=device), number.to(device)

    def _points(self, block: np.ndarray) -> np.ndarray:
        """Corners [P, 3] float64 of one block."""
        axes = [
            self.origin[axis] + self.cell * (block[axis] * BLOCK + CORNERS_ALONG[:n])
            for axis, n in enumerate(self.corners(block))
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)

    def split(self, blocks: np.ndarray, values: Tensor) -> list[np.ndarray]:
        """Values [P] at the corners of blocks, in the order of `points`, as one array [X, Y, Z] for each."""
        shapes = [self.corners(block) for block in blocks]
        parts = values.cpu().split([math.prod(shape) for shape in shapes])
        return [part.view(shape).numpy() for part, shape in zip(parts, shapes, strict=True)]

    def bounds(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest corners [N, 3] of blocks [N, 3]."""
        low = self.origin + self.cell * BLOCK * blocks
        return low, low + self.cell * BLOCK

    def all_blocks(self) -> np.ndarray:
        """All blocks [N, 3], x slowest."""
        return np.stack(np.meshgrid(*map(np.arange, self.blocks), indexing="ij"), axis=-1).reshape(-1, 3)

    def blocks_of(self, points: np.ndarray, reach: float) -> np.ndarray:
        """Flat numbers of the blocks within `reach` of points [P, 3] along each axis, unique; `reach` < a block."""
        found, last = [], self.blocks - 1
        inside = (
            (points >= self.origin - reach) & (points <= self.origin + self.cell * np.array(self.cells) + reach)
        ).all(1)
        points = points[inside]
        for shift in np.stack(np.meshgrid([-reach, reach], [-reach, reach], [-reach, reach]), axis=-1).reshape(8, 3):
            block = np.floor((points + shift - self.origin) / (self.cell * BLOCK)).astype(np.int64)
            found.append(np.unique(np.ravel_multi_index(block.clip(0, last).T, self.blocks)))
        return np.unique(np.concatenate(found))

    def unflat(self, numbers: np.ndarray) -> np.ndarray:
        """Blocks [N, 3] of flat numbers [N]."""
        return np.stack(np.unravel_index(numbers, self.blocks), axis=-1)


def occupied_blocks(grid: Grid, model: Model) -> np.ndarray:
    """Blocks [N, 3] that hold an occupied cell of the model's sampler, or are next to one; all if it has none.

    All, too, where the occupancy is of contracted space, whose cells are no boxes.
    """
    sampler = getattr(model, "sampler", None)
    occupancy, box = getattr(sampler, "occupancy", None), getattr(sampler, "box", None)
    blocks = grid.all_blocks()
    if occupancy is None or box is None or occupancy.dim() != 3 or tuple(box.shape) != (2, 3):
        return blocks
    if isinstance(sampler, ContractedSampler):
        return blocks
    sides = np.array(occupancy.shape)
    counts = np.zeros(sides + 1, dtype=np.int64)  # of occupied cells below each corner
    counts[1:, 1:, 1:] = occupancy.cpu().numpy().cumsum(0).cumsum(1).cumsum(2)
    box = box.double().cpu().numpy()
    low, high = ((corner - box[0]) / (box[1] - box[0]) * sides for corner in grid.bounds(blocks))
    first = (np.floor(low).astype(int) - 1).clip(0, sides)  # [N, 3]; occupancy was seen at random places of a cell
    end = (np.ceil(high).astype(int) + 1).clip(0, sides)
    total = np.zeros(len(blocks), dtype=np.int64)
    for corner in range(8):  # inclusion and exclusion
        upper = np.array([corner >> axis & 1 for axis in range(3)], dtype=bool)
        at = np.where(upper, end, first)
        total += (1 if upper.sum() % 2 else -1) * counts[tuple(at.T)]
    return blocks[(total != 0) & (first < end).all(axis=1)]
