# SPDX-License-Identifier: Apache-2.0
"""Directions of pixels of many perspective lenses, interpolated between the nodes of a grid for each.

Distortion is smooth: with nodes every 8 pixels the directions of a phone's lens of 1080x1920 are right to 0.004 pixels,
in about a hundredth of the memory of a map for each. The error grows with the square of the spacing, and as the images
are made smaller: at 270x480 it is 0.015 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.lens import Lens, for_rays


class LensGrids(NamedTuple):
    """Displacement grids of K lenses, one behind the other."""

    displacements: Tensor  # [nodes of all, 2] float32, undistorted minus distorted, in focal lengths
    offset: Tensor  # [K] int64, first node of each lens
    cells: Tensor  # [K, 2] int64, across and down
    cell_size: Tensor  # [K, 2] float32 [pixels]
    focal: Tensor  # [K, 2] float32 [pixels]
    center: Tensor  # [K, 2] float32 [pixels]


def pack_grids(lenses: Sequence[Lens], spacing: int = 8, device: torch.device | str = "cpu") -> LensGrids:
    """Displacement grids of perspective lenses for `lens_directions`, about spacing^2 / 2 times smaller than maps.

    Raises SceneError where more than 2 % of a lens's pixels lie in cells that have a node without a direction.
    """
    grids = [lens.displacement_grid(spacing, device) for lens in lenses]
    sizes = torch.tensor([grid.shape[0] * grid.shape[1] for grid in grids])
    cells = torch.tensor([lens.grid_cells(spacing) for lens in lenses])
    sides = torch.tensor([(lens.width, lens.height) for lens in lenses])
    packed = LensGrids(
        torch.cat([grid.flatten(0, 1) for grid in grids]),
        (sizes.cumsum(0) - sizes).to(device),
        cells.to(device),
        (sides / cells).float().to(device),
        torch.tensor([lens.focal for lens in lenses]).to(device),
        torch.tensor([lens.center for lens in lenses]).to(device),
    )
    for index, grid in enumerate(grids):
        if grid.isnan().any():
            _check_grid(lenses[index], packed, index)
    return packed


def lens_directions(grids: LensGrids, lens: Tensor, column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Unit directions [R, 3] float32 in OpenGL axes of the centres of pixels, and which are valid [R] bool.

    lens, column and row are [R] int64. Nothing waits for the GPU. Where not valid, the direction is the axis.
    """
    pixels = torch.stack([column, row], dim=-1) + 0.5  # [R, 2]
    cells = grids.cells[lens]  # [R, 2]
    place = pixels / grids.cell_size[lens]
    cell = torch.minimum(place.long(), cells - 1)
    right, down = (place - cell)[:, :, None].unbind(1)  # [R, 1] each, from 0 to 1 within the cell
    first = grids.offset[lens] + cell[:, 1] * (cells[:, 0] + 1) + cell[:, 0]
    below = first + cells[:, 0] + 1
    numbers, pair = grids.displacements.flatten(), torch.arange(2, device=lens.device)

    def between(node: Tensor) -> Tensor:
        """The row of nodes that starts at node [R], interpolated, [R, 2]."""
        # Number by number: on a GPU, torch takes rows of a few numbers a block each.
        left = numbers.take(2 * node[:, None] + pair)
        return left + right * (numbers.take(2 * node[:, None] + 2 + pair) - left)

    upper = between(first)
    moved = upper + down * (between(below) - upper)
    plane = (pixels - grids.center[lens]) / grids.focal[lens] + moved
    valid = ~plane.isnan().any(-1)
    return for_rays(torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1), valid), valid


def _check_grid(lens: Lens, grids: LensGrids, index: int) -> None:
    """Refuse a lens of `grids` if too many of its pixels are not valid."""
    valid = []
    for pixels in lens.pixel_chunks(grids.offset.device):
        column, row = pixels.long().unbind(-1)
        valid.append(lens_directions(grids, torch.full_like(column, index), column, row)[1])
    lens.check_share(torch.cat(valid))
