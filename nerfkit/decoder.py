# SPDX-License-Identifier: Apache-2.0
"""Features, what the ray has seen, and direction -> density and color.

Density is a function of the point's features alone, so that occupancy, normals and exports can ask for it without a
ray. Color may see the ray: what encoder and aggregator add enters its first layer through projections that start at
zero, so the model begins as a plain grid field.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nerfkit.config import ModelConfig

MAX_LOG_DENSITY = 30.0
DIRECTION_FEATURES = 16


class Decoder(nn.Module):
    """Two small networks: features -> density and an embedding; embedding, context and direction -> color."""

    def __init__(self, config: ModelConfig, n_features: int):
        super().__init__()
        self.density_hidden = nn.Linear(n_features, config.hidden)
        self.density_out = nn.Linear(config.hidden, 1 + config.embedding)
        self.color_in = nn.Linear(config.embedding + DIRECTION_FEATURES, config.hidden)
        self.from_encoder = _zero_linear(n_features, config.hidden) if config.encoder else None
        self.from_aggregator = _zero_linear(config.state, config.hidden) if config.aggregator else None
        self.color_hidden = nn.Linear(config.hidden, config.hidden)
        self.color_out = nn.Linear(config.hidden, 3)

    def density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Density [N] per scene unit and embedding [N, E] of features [N, C]."""
        log_density, embedding = self.log_density(features)
        return torch.exp(log_density.clamp(max=MAX_LOG_DENSITY)), embedding

    def log_density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the density [N], finite where the density itself is 0 or limited, and embedding [N, E]."""
        out = self.density_out(F.relu(self.density_hidden(features)))
        return out[:, 0] - 1, out[:, 1:]

    def color(self, embedding: Tensor, directions: Tensor, encoded: Tensor | None, state: Tensor | None) -> Tensor:
        """Color [N, 3] in [0, 1] from embedding [N, E], unit directions [N, 3] and the ray's context."""
        hidden = self.color_in(torch.cat([embedding, spherical_harmonics(directions)], dim=-1))
        if self.from_encoder is not None:
            hidden = hidden + self.from_encoder(encoded)
        if self.from_aggregator is not None:
            hidden = hidden + self.from_aggregator(state)
        return self.color_out(F.relu(self.color_hidden(F.relu(hidden)))).sigmoid()


def _zero_linear(n_in: int, n_out: int) -> nn.Linear:
    linear = nn.Linear(n_in, n_out, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def spherical_harmonics(directions: Tensor) -> Tensor:
    """Real spherical harmonics of degrees 0 to 3, [N, 16], of unit directions [N, 3].

    Orthonormal over the sphere. Source: P. Sloan, "Efficient Spherical Harmonic Evaluation", 2013.
    """
    x, y, z = directions.unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    return torch.stack(
        [
            torch.full_like(x, 0.28209479177387814),
            -0.4886025119029199 * y,
            0.4886025119029199 * z,
            -0.4886025119029199 * x,
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.31539156525252005 * (3 * zz - 1),
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
            -0.5900435899266435 * y * (3 * xx - yy),
            2.890611442640554 * x * y * z,
            -0.4570457994644657 * y * (5 * zz - 1),
            0.3731763325901154 * z * (5 * zz - 3),
            -0.4570457994644657 * x * (5 * zz - 1),
            1.445305721320277 * z * (xx - yy),
            -0.5900435899266435 * x * (xx - 3 * yy),
        ],
        dim=-1,
    )
