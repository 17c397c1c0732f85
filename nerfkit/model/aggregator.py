# SPDX-License-Identifier: Apache-2.0
"""Encoded features, near to far -> the ray's state at each sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.ops import lltm
from nerfkit.ops.lltm import why_no_kernel


class RayAggregator(nn.Module):
    """LLTM along the ray: the state at a sample summarises the samples before it."""

    ops = ("lltm",)

    def __init__(self, n_input: int, n_state: int):
        super().__init__()
        self.n_input, self.n_state = n_input, n_state
        bound = n_state**-0.5
        self.weight = nn.Parameter(torch.empty(3 * n_state, n_state + n_input).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(3 * n_state))

    def why_no_kernel(self, device: torch.device) -> str | None:
        """Why the fused kernel of `device` does not support the sizes; None if it does."""
        return why_no_kernel(device, self.n_state, self.n_input)

    def forward(self, encoded: Tensor, ray_offsets: Tensor) -> Tensor:
        """State [N, H] after each of the packed samples [N, C]."""
        h0, c0 = (encoded.new_zeros(ray_offsets.shape[0] - 1, self.n_state) for _ in range(2))  # [R, H]
        state, _, _ = lltm(encoded, ray_offsets, self.weight, self.bias, h0, c0)
        return state
