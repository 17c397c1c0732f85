# SPDX-License-Identifier: Apache-2.0
"""Features, what the ray has seen, and direction -> density and color.

Density is a function of the point's features alone, so that occupancy, normals and exports can ask for it without a
ray. Color may see the ray: what encoder and aggregator add enters its first layer through weights that start at zero,
so the model begins as a plain grid field.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nerfkit.config import ModelConfig
from nerfkit.nn import MLP

MAX_LOG_DENSITY = 30.0
DIRECTION_FEATURES = 16


class Decoder(nn.Module):
    """Two small networks: features -> density and an embedding; embedding, direction and context -> color."""

    def __init__(self, config: ModelConfig, n_features: int):
        super().__init__()
        n_plain = config.embedding + DIRECTION_FEATURES
        n_context = n_features * config.encoder + config.state * config.aggregator
        self.density_net = MLP(n_features, config.hidden, 1, config.embedding)
        self.color_net = MLP(n_plain + n_context, config.hidden, 2, 3)
        with torch.no_grad():
            first, _ = self.color_net.layers()[0]  # [hidden, n_plain + n_context]
            first[:, :n_plain].uniform_(-(n_plain**-0.5), n_plain**-0.5)
            first[:, n_plain:].zero_()

    def density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Density [N] per scene unit and embedding [N, E] of features [N, C]."""
        log_density, embedding = self.log_density(features)
        return torch.exp(log_density.clamp(max=MAX_LOG_DENSITY)), embedding

    def log_density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the density [N], finite where the density itself is 0 or limited, and embedding [N, E]."""
        embedding = self.density_net(features)
        return _at_least_float32(embedding[:, 0]) - 1, embedding

    def color(self, embedding: Tensor, directions: Tensor, *context: Tensor) -> Tensor:
        """Color [N, 3] in [0, 1] from embedding [N, E], `SphericalHarmonics` of the directions [N, 16] and what is
        known of the ray: encoded features [N, C], state [N, H]."""
        return _at_least_float32(self.color_net(embedding, directions, *context)).sigmoid()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Each harmonic as a sum of coefficient * monomial. Source: P. Sloan, "Efficient Spherical Harmonic Evaluation", 2013.
HARMONICS = (
    ((0.28209479177387814, ""),),
    ((-0.4886025119029199, "y"),),
    ((0.4886025119029199, "z"),),
    ((-0.4886025119029199, "x"),),
    ((1.0925484305920792, "xy"),),
    ((-1.0925484305920792, "yz"),),
    ((0.9461746957575601, "zz"), (-0.31539156525252005, "")),
    ((-1.0925484305920792, "xz"),),
    ((0.5462742152960396, "xx"), (-0.5462742152960396, "yy")),
    ((-1.7701307697799304, "xxy"), (0.5900435899266435, "yyy")),
    ((2.890611442640554, "xyz"),),
    ((-2.2852289973223286, "yzz"), (0.4570457994644657, "y")),
    ((1.865881662950577, "zzz"), (-1.1195289977703462, "z")),
    ((-2.2852289973223286, "xzz"), (0.4570457994644657, "x")),
    ((1.445305721320277, "xxz"), (-1.445305721320277, "yyz")),
    ((-0.5900435899266435, "xxx"), (1.7701307697799304, "xyy")),
)
MONOMIALS = sorted({monomial for harmonic in HARMONICS for _, monomial in harmonic})


class SphericalHarmonics(nn.Module):
    """Real spherical harmonics of degrees 0 to 3, [R, 16], of unit directions [R, 3]; orthonormal over the sphere."""

    def __init__(self):
        super().__init__()
        factors = [[" xyz".index(letter) for letter in monomial.rjust(3)] for monomial in MONOMIALS]
        weights = torch.zeros(len(MONOMIALS), len(HARMONICS))
        for column, harmonic in enumerate(HARMONICS):
            for coefficient, monomial in harmonic:
                weights[MONOMIALS.index(monomial), column] = coefficient
        self.register_buffer("factors", torch.tensor(factors).t().contiguous(), persistent=False)  # [3, M]
        self.register_buffer("weights", weights, persistent=False)  # [M, 16]

    def forward(self, directions: Tensor) -> Tensor:
        one_xyz = F.pad(directions, (1, 0), value=1.0)  # [R, 4]
        a, b, c = (one_xyz.index_select(1, factor) for factor in self.factors)  # [R, M] each
        with torch.autocast(directions.device.type, enabled=False):
            return (a * b * c) @ self.weights.to(directions.dtype)
