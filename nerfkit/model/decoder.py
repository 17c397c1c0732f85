# SPDX-License-Identifier: Apache-2.0
"""Features, context along the ray, and direction -> density and color.

Density is a function of the point's features alone, so that occupancy, normals and exports can evaluate it without
a ray. Color may depend on the ray: encoded features and state enter its first layer through weights initialised to
zero, so the model starts as a plain grid field.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.config import ModelConfig
from nerfkit.nn import MLP
from nerfkit.ops.mlp import why_no_kernel
from nerfkit.ops.spherical_harmonics import N_HARMONICS

MAX_LOG_DENSITY = 30.0


class Decoder(nn.Module):
    """Two small networks: features -> density and an embedding; embedding, direction and context -> color.

    `context` are the widths of what the color network sees of the ray besides.
    """

    ops = ()  # but those of its networks

    def __init__(self, config: ModelConfig, n_features: int, context: tuple[int, ...] = ()):
        super().__init__()
        n_base_inputs = config.embedding + N_HARMONICS
        self.color_inputs = (config.embedding, N_HARMONICS, *context)  # widths
        self.density_bias = config.density_bias
        self.density_net = MLP(n_features, config.hidden, 1, config.embedding)
        self.color_net = MLP(n_base_inputs + sum(context), config.hidden, 2, 3)
        with torch.no_grad():
            first, _ = self.color_net.layers()[0]  # [hidden, n_base_inputs + n_context]
            first[:, :n_base_inputs].uniform_(-(n_base_inputs**-0.5), n_base_inputs**-0.5)
            first[:, n_base_inputs:].zero_()

    def why_no_kernel(self, device: torch.device | str, dtype: torch.dtype) -> str | None:
        """Why the fused kernel of `device` does not support both networks; None if it does."""
        nets = (self.density_net, self.density_net.widths[:1]), (self.color_net, self.color_inputs)
        reasons = (why_no_kernel(device, dtype, net.widths, inputs) for net, inputs in nets)
        return next(filter(None, reasons), None)

    def density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Density [N] per scene unit and embedding [N, E] of features [N, C]."""
        log_density, embedding = self.log_density(features)
        return torch.exp(log_density.clamp(max=MAX_LOG_DENSITY)), embedding

    def log_density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the density [N], finite where that underflows or is clamped, and embedding [N, E]."""
        embedding = self.density_net(features)
        return _at_least_float32(embedding[:, 0]) + self.density_bias, embedding

    def color(self, embedding: Tensor, directions: Tensor, *context: Tensor) -> Tensor:
        """Color [N, 3] in [0, 1] from embedding [N, E], `spherical_harmonics` of the directions [N, 16] and
        the ray's context: encoded features [N, C], state [N, H]."""
        return _at_least_float32(self.color_net(embedding, directions, *context)).sigmoid()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
