# SPDX-License-Identifier: Apache-2.0
"""A small network of linear layers as a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.ops import mlp
from nerfkit.ops.mlp import layers, n_parameters


class MLP(nn.Module):
    """Linear layers with ReLU between them: equation and source at `nerfkit.ops.mlp`.

    Args:
        n_in: width of the inputs together; hidden: width of each hidden layer, n_hidden of them; n_out: of the output.

    Call: inputs [N, I_k] that lie side by side -> [N, n_out]. `layers()` gives weight [out, in] and bias [out] of each
    layer, as views of the one parameter that holds them all.

    >>> MLP(n_in=5, hidden=16, n_hidden=2, n_out=3)(torch.rand(7, 2), torch.rand(7, 3)).shape
    torch.Size([7, 3])
    """

    ops = ("mlp",)

    def __init__(
        self, n_in: int, hidden: int, n_hidden: int, n_out: int, device=None, dtype: torch.dtype | None = None
    ):
        super().__init__()
        self.widths = (n_in, *[hidden] * n_hidden, n_out)
        self.packed = nn.Parameter(torch.empty(n_parameters(self.widths), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1/sqrt(fan-in), as nn.Linear."""
        with torch.no_grad():
            for weight, bias in self.layers():
                bound = weight.shape[1] ** -0.5
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias [out] of each layer, as views."""
        return layers(self.packed, self.widths)

    def extra_repr(self) -> str:
        return f"widths={self.widths}"

    def forward(self, *inputs: Tensor) -> Tensor:
        return mlp(self.packed, self.widths, *inputs)
