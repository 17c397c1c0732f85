# SPDX-License-Identifier: Apache-2.0
"""Sample positions -> grid features."""

from __future__ import annotations

from torch import Tensor

from nerfkit import nn
from nerfkit.config import ModelConfig
from nerfkit.contraction import contract


class FeatureGrid(nn.FeatureGrid):
    """Multi-resolution grid over a box, or over contracted space: dense levels where they fit, hashed levels above."""

    def __init__(self, config: ModelConfig, box: Tensor, contracted: bool = False):
        super().__init__(
            config.levels, config.features, config.log2_table, config.base_resolution, config.max_resolution
        )
        self.contracted = contracted
        self.register_buffer("box", box.clone())  # [2, 3]

    def forward(self, positions: Tensor) -> Tensor:
        """Features [N, C] of world positions [N, 3]."""
        if self.contracted:
            return super().forward((contract(positions, self.box) + 2) / 4)
        return super().forward((positions - self.box[0]) / (self.box[1] - self.box[0]))
