# SPDX-License-Identifier: Apache-2.0
"""Sample positions -> grid features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.config import ModelConfig
from nerfkit.ops import grid_encode
from nerfkit.ops.grid_encode import level_entries


class FeatureGrid(nn.Module):
    """Multi-resolution grid over a box: dense levels where they fit, hashed levels above."""

    def __init__(self, config: ModelConfig, box: Tensor):
        super().__init__()
        self.max_entries = 2**config.log2_table
        self.resolutions = level_resolutions(config.levels, config.base_resolution, config.max_resolution)
        self.n_features = config.levels * config.features
        self.register_buffer("box", box.clone())  # [2, 3]
        rows = sum(level_entries(n, self.max_entries) for n in self.resolutions)
        self.table = nn.Parameter(torch.empty(rows, config.features).uniform_(-1e-4, 1e-4))

    def forward(self, positions: Tensor) -> Tensor:
        """Features [N, C] of world positions [N, 3]."""
        unit = (positions - self.box[0]) / (self.box[1] - self.box[0])
        return grid_encode(unit, self.table, self.resolutions, self.max_entries)


def level_resolutions(levels: int, base: int, finest: int) -> list[int]:
    """Cells a side of each level, in geometric steps from `base` to `finest`.

    >>> level_resolutions(4, 16, 128)
    [16, 32, 64, 128]
    """
    growth = (finest / base) ** (1 / max(levels - 1, 1))
    return [round(base * growth**level) for level in range(levels)]
