# SPDX-License-Identifier: Apache-2.0
"""What the images see -> a residual on the field's color."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.model.images.lookup import LookUps
from nerfkit.nn import LLTMCell

N_INPUTS = 11  # of a look-up: its color, that less the field's, its direction, whether it is valid


class Blender(nn.Module):
    r"""The LLTM over the K look-ups of a ray, in the order of their angles, the nearest last.

    .. math::
        w = softmax_k(u \cdot h_k), \quad residual = \tanh(a)\,(\sum_k w_k c_k - color) + b, \quad
        [a, b] = A h_K + e

    over valid look-ups. A and e start at zero, and so does the residual.
    """

    def __init__(self, n_state: int):
        super().__init__()
        self.cell = LLTMCell(N_INPUTS, n_state)
        self.weigh = nn.Linear(n_state, 1)
        self.residual = nn.Linear(n_state, 4)
        nn.init.zeros_(self.residual.weight)
        nn.init.zeros_(self.residual.bias)

    def forward(self, found: LookUps, color: Tensor) -> Tensor:
        """Residual [R, 3] on the field's color [R, 3]; 0 for a ray without valid look-ups."""
        valid = found.valid[..., None]  # [R, K, 1]
        values = [found.color, found.color - color[:, None], found.direction, torch.ones_like(found.color[..., :1])]
        seen = torch.where(valid, torch.cat(values, dim=-1), 0)  # [R, K, 11]
        state, logits = None, []
        for one in seen.unbind(1):
            state = self.cell(one, state)
            logits.append(self.weigh(state[0]))
        logits = torch.stack(logits, dim=1).float().masked_fill(~valid, -1e4)  # [R, K, 1]
        weights = logits.softmax(1) * valid
        share, offset = self.residual(state[0]).float().split([1, 3], dim=-1)  # [R, 1], [R, 3]
        blended = (weights * found.color).sum(1)  # [R, 3]
        return valid.any(1) * (share.tanh() * (blended - color) + offset)
