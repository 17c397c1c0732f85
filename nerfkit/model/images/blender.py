# SPDX-License-Identifier: Apache-2.0
"""What the images see -> a residual on the field's color."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.model.images.lookup import LookUps
from nerfkit.nn import LLTMCell

N_INPUTS = 12  # of a look-up: its color, that less the field's, its direction, its agreement, whether it is valid


class Blender(nn.Module):
    r"""The LLTM over the K look-ups of a ray, in the order of their angles, the nearest last.

    .. math::
        w_k \propto v_k \exp(u \cdot h_k), \quad
        residual = \max_k v_k\, \tanh(a \cdot h_K + e)\,(\sum_k w_k c_k - color)

    with v the agreement of a look-up, 0 where it is not valid. a and e start at zero, and so does the residual.
    """

    ops = ()

    def __init__(self, n_state: int):
        super().__init__()
        self.cell = LLTMCell(N_INPUTS, n_state)
        self.weigh = nn.Linear(n_state, 1)
        self.residual = nn.Linear(n_state, 1)
        nn.init.zeros_(self.residual.weight)
        nn.init.zeros_(self.residual.bias)

    def forward(self, found: LookUps, color: Tensor) -> Tensor:
        """Residual [R, 3] on the field's color [R, 3]; 0 for a ray without valid look-ups."""
        agreement = found.agreement[..., None]  # [R, K, 1]
        valid = found.valid[..., None]
        values = [found.color, found.color - color[:, None], found.direction, agreement, torch.ones_like(agreement)]
        seen = torch.where(valid, torch.cat(values, dim=-1), 0)  # [R, K, 12]
        state, logits = None, []
        for one in seen.unbind(1):
            state = self.cell(one, state)
            logits.append(self.weigh(state[0]))
        weights = agreement * torch.stack(logits, dim=1).float().clamp(-10, 10).exp()  # [R, K, 1]
        blended = (weights * found.color).sum(1) / weights.sum(1).clamp(min=1e-12)  # [R, 3]
        share = self.residual(state[0]).float().tanh()  # [R, 1]
        return agreement.amax(1) * share * (blended - color)
