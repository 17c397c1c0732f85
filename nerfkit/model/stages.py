# SPDX-License-Identifier: Apache-2.0
"""The stages that learn: positions -> features -> encoded along the ray -> state along the ray -> density and color.

Density is a function of the point's features alone, so that occupancy, normals and exports can evaluate it without
a ray. Color may depend on the ray: encoded features and state enter its first layer through weights initialised to
zero, so the model starts as a plain grid field.
"""

import torch
from torch import Tensor, nn

from nerfkit.config import ModelConfig
from nerfkit.contraction import contract
from nerfkit.nn import MLP
from nerfkit.nn import FeatureGrid as GridOfUnitCube
from nerfkit.ops import depthwise_conv1d, lltm
from nerfkit.ops.mlp import why_no_kernel as why_no_mlp
from nerfkit.ops.spherical_harmonics import N_HARMONICS

CONV_KERNEL = 3  # taps of the convolution along the ray: wider ones cost time, and gained nothing
MAX_LOG_DENSITY = 30.0


class FeatureGrid(GridOfUnitCube):
    """Multi-resolution grid over a box, or over contracted space: dense levels where they fit, hashed levels above."""

    def __init__(self, config: ModelConfig, box: Tensor, contracted: bool = False):
        resolutions = config.base_resolution, config.max_resolution
        super().__init__(config.levels, config.features_per_level, config.log2_hashmap_size, *resolutions)
        self.contracted = contracted
        self.register_buffer("box", box.clone())  # [2, 3]

    def forward(self, positions: Tensor) -> Tensor:
        """Features [N, C] of positions [N, 3] of the model."""
        if self.contracted:
            return super().forward((contract(positions, self.box) + 2) / 4)
        return super().forward((positions - self.box[0]) / (self.box[1] - self.box[0]))


class RayEncoder(nn.Module):
    """Depthwise convolution along the ray, added to its input."""

    ops = ("depthwise_conv1d",)

    def __init__(self, channels: int):
        super().__init__()
        drawn = torch.normal(0.0, 1.0, (channels, CONV_KERNEL))
        # Without values nothing is divided: torch would import its compiler for it, for seconds.
        self.weight = nn.Parameter(drawn if drawn.is_meta else drawn / CONV_KERNEL)  # [C, k]
        self.bias = nn.Parameter(torch.zeros(channels))  # [C]
        taps = [tap == CONV_KERNEL // 2 for tap in range(CONV_KERNEL)]
        self.register_buffer("identity_tap", torch.tensor(taps), persistent=False)  # [k]

    def forward(self, features: Tensor, ray_offsets: Tensor) -> Tensor:
        """Encoded features [N, C] of packed features [N, C]."""
        return depthwise_conv1d(features, self.taps(), self.bias, ray_offsets)

    def taps(self) -> Tensor:
        """Weight [C, k] with the residual sum within the convolution."""
        return self.weight + self.identity_tap.to(self.weight.dtype)


class RayAggregator(nn.Module):
    """LLTM along the ray: the state at a sample summarises the samples before it."""

    ops = ("lltm",)

    def __init__(self, n_input: int, lltm_size: int = 16):
        super().__init__()
        self.n_input, self.lltm_size = n_input, lltm_size
        bound = lltm_size**-0.5
        self.weight = nn.Parameter(torch.empty(3 * lltm_size, lltm_size + n_input).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(3 * lltm_size))

    def forward(self, encoded: Tensor, ray_offsets: Tensor) -> Tensor:
        """State [N, H] after each of the packed samples [N, C]."""
        h0, c0 = (encoded.new_zeros(ray_offsets.shape[0] - 1, self.lltm_size) for _ in range(2))  # [R, H]
        state, _, _ = lltm(encoded, ray_offsets, self.weight, self.bias, h0, c0)
        return state


class Decoder(nn.Module):
    """Two small networks: features -> density and geometry features; these, direction, `context` (widths) -> color."""

    ops = ()  # but those of its networks
    n_geometry_features = 16  # outputs of the density network: first the density; the color network sees all
    density_bias = -1.0  # logarithm of the density where the network's output is 0, as at first: a thin haze

    def __init__(self, config: ModelConfig, n_features: int, context: tuple[int, ...] = ()):
        super().__init__()
        self.color_inputs = (self.n_geometry_features, N_HARMONICS, *context)  # widths
        n_base_inputs = self.n_geometry_features + N_HARMONICS
        self.density_net = MLP(n_features, config.mlp_width, 1, self.n_geometry_features)
        self.color_net = MLP(sum(self.color_inputs), config.mlp_width, 2, 3)
        with torch.no_grad():
            first, _ = self.color_net.layers()[0]  # [hidden, n_base_inputs + n_context]
            first[:, :n_base_inputs].uniform_(-(n_base_inputs**-0.5), n_base_inputs**-0.5)
            first[:, n_base_inputs:].zero_()

    def why_no_kernel(self, device: torch.device | str, dtype: torch.dtype) -> str | None:
        """Why the fused kernel of `device` does not support both networks; None if it does."""
        nets = (self.density_net, self.density_net.widths[:1]), (self.color_net, self.color_inputs)
        reasons = (why_no_mlp(device, dtype, net.widths, inputs) for net, inputs in nets)
        return next(filter(None, reasons), None)

    def density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Density [N] per model unit and geometry features [N, E] of features [N, C]."""
        log_density, geometry_features = self.log_density(features)
        return torch.exp(log_density.clamp(max=MAX_LOG_DENSITY)), geometry_features

    def log_density(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the density [N], finite where that underflows or is clamped, and geometry features [N, E]."""
        geometry_features = self.density_net(features)
        return _at_least_float32(geometry_features[:, 0]) + self.density_bias, geometry_features

    def color(self, geometry_features: Tensor, directions: Tensor, *context: Tensor) -> Tensor:
        """Color [N, 3] in [0, 1] from geometry features [N, E], `spherical_harmonics` of the directions [N, 16] and
        the ray's context: encoded features [N, C], state [N, H]."""
        return _at_least_float32(self.color_net(geometry_features, directions, *context)).sigmoid()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
