# SPDX-License-Identifier: Apache-2.0
"""What a field is made of, as modules: the multi-resolution feature grid, and a small network of linear layers."""

import torch
from torch import Tensor, nn

from nerfkit.ops import grid_encode, mlp
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import layers, n_parameters


class FeatureGrid(nn.Module):
    """Learned features of points in the unit cube: dense levels where they fit, hashed levels above.

    Equation and source at `nerfkit.ops.grid_encode`.

    Args:
        levels: L; features_per_level: F.
        log2_hashmap_size: a level has at most 2**log2_hashmap_size rows.
        base_resolution, max_resolution: cells per side of the first and the last level, in geometric steps between.

    Call: points [..., 3] float32 or float64 in [0, 1] -> [..., L*F] in the dtype of the table.

    >>> FeatureGrid(levels=4, features_per_level=2, log2_hashmap_size=12, max_resolution=64)(torch.rand(5, 7, 3)).shape
    torch.Size([5, 7, 8])
    """

    ops = ("grid_encode",)

    def __init__(
        self, levels: int = 16, features_per_level: int = 2, log2_hashmap_size: int = 19, base_resolution: int = 16,
        max_resolution: int = 2048, device=None, dtype: torch.dtype | None = None,
    ):  # fmt: skip
        super().__init__()
        self.max_entries = 2**log2_hashmap_size
        growth = (max_resolution / base_resolution) ** (1 / max(levels - 1, 1))
        self.resolutions = [round(base_resolution * growth**level) for level in range(levels)]
        self.n_features = levels * features_per_level
        rows = sum(level_entries(n, self.max_entries) for n in self.resolutions)
        self.table = nn.Parameter(torch.empty(rows, features_per_level, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1e-4, as in instant-ngp."""
        nn.init.uniform_(self.table, -1e-4, 1e-4)

    def extra_repr(self) -> str:
        return f"resolutions={self.resolutions}, features={self.table.shape[1]}, max_entries={self.max_entries}"

    def forward(self, points: Tensor) -> Tensor:
        if points.shape[-1:] != (3,):
            raise ValueError(f"FeatureGrid: points must have 3 coordinates last, got {list(points.shape)}")
        flat = points.reshape(-1, 3)
        out = grid_encode(flat, self.table, self.resolutions, self.max_entries)  # [N, L*F]
        return out.view(*points.shape[:-1], self.n_features)


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
        return layers(self.packed, self.widths)

    def extra_repr(self) -> str:
        return f"widths={self.widths}"

    def forward(self, *inputs: Tensor) -> Tensor:
        return mlp(self.packed, self.widths, *inputs)
