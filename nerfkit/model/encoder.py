# SPDX-License-Identifier: Apache-2.0
"""Features along each ray -> features mixed with their neighbours'."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.ops import depthwise_conv1d


class RayEncoder(nn.Module):
    """Depthwise convolution along the ray, added to its input."""

    ops = ("depthwise_conv1d",)

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, kernel) / kernel)  # [C, k]
        self.bias = nn.Parameter(torch.zeros(channels))  # [C]
        identity_tap = torch.arange(kernel) == kernel // 2
        self.register_buffer("identity_tap", identity_tap, persistent=False)  # [k]

    def forward(self, features: Tensor, ray_offsets: Tensor) -> Tensor:
        """Encoded features [N, C] of packed features [N, C]."""
        weight = self.weight + self.identity_tap.to(self.weight.dtype)  # the residual sum within the convolution
        return depthwise_conv1d(features, weight, self.bias, ray_offsets)
