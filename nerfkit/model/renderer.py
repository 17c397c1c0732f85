# SPDX-License-Identifier: Apache-2.0
"""The pipeline from rays to colors: the file to read first.

sampling    rays + occupancy grid        -> samples     packed: N samples of R rays
grid        sample positions [N, 3]      -> features    [N, C]
encoder     features along each ray      -> encoded     [N, C]
aggregator  encoded, near to far         -> state       [N, H]
decoder     features, context, direction -> density [N], rgb [N, 3]
compositing density, rgb, intervals      -> color [R, 3], opacity [R], depth [R]
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from nerfkit.config import FIELD, Config
from nerfkit.data.cameras.cameras import Rays
from nerfkit.model.base import Model
from nerfkit.model.compositing import Rendering, composite_samples
from nerfkit.model.sampling import box_of, build_sampler
from nerfkit.model.stages import Decoder, FeatureGrid, RayAggregator, RayEncoder
from nerfkit.ops import spherical_harmonics
from nerfkit.ops.lltm import why_no_kernel as why_no_lltm


class Renderer(Model):
    """A radiance field and how rays see it.

    A stage is replaced by a subclass that overrides the method which builds it; see examples/own_encoder.py.
    """

    recipe = FIELD
    ops = ("spherical_harmonics", "composite")  # and those of its stages
    half_precision = True

    def __init__(self, config: Config):
        super().__init__(config)
        config = self.config
        self.sampler = build_sampler(config)
        self.grid = self.build_grid(config)
        channels = self.grid.n_features
        self.encoder = self.build_encoder(config, channels)
        width = getattr(self.encoder, "n_outputs", channels)
        self.aggregator = self.build_aggregator(config, width)
        context = (width,) * (self.encoder is not None)
        context += (getattr(self.aggregator, "lltm_size", 0),) * (self.aggregator is not None)
        self.decoder = self.build_decoder(config, channels, context)

    def build_grid(self, config: Config) -> torch.nn.Module:
        """Positions [N, 3] -> features [N, n_features]."""
        return FeatureGrid(config.model, box_of(config), contracted=config.sampling.kind == "contracted")

    def build_encoder(self, config: Config, channels: int) -> torch.nn.Module | None:
        """Features [N, channels], ray_offsets [R+1] -> [N, channels], or [N, n_outputs] of the module; or none."""
        return RayEncoder(channels) if config.model.encoder else None

    def build_aggregator(self, config: Config, channels: int) -> torch.nn.Module | None:
        """Encoded [N, channels], ray_offsets [R+1] -> state [N, lltm_size of the module]; or none."""
        return RayAggregator(channels) if config.model.aggregator else None

    def build_decoder(self, config: Config, channels: int, context: tuple[int, ...]) -> torch.nn.Module:
        """The networks for density and color, which sees `context`, widths of encoded features and state."""
        return Decoder(config.model, channels, context)

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        """Render `rays` over `background` [R, 3] or [3].

        With a `capacity` there are that many samples, without synchronizing: see `BoxSampler`. The sampler has
        evaluated the density of these samples before, without gradients, to find the visible ones.
        """
        samples = self.sampler(rays, self.density, jitter, capacity)
        with self.autocast(rays.origins.device):
            features = self.grid(samples.positions)
            encoded = self.encoder(features, samples.ray_offsets) if self.encoder else features
            state = self.aggregator(encoded, samples.ray_offsets) if self.aggregator else None
            density, geometry_features = self.decoder.density(features)
            directions = spherical_harmonics(rays.directions, samples.ray_index, geometry_features.dtype)  # [N, 16]
            context = [x for x, stage in ((encoded, self.encoder), (state, self.aggregator)) if stage]
            rgb = self.decoder.color(geometry_features, directions, *context)
            if self.training:
                self.sampler.fade_in(samples, density, rgb)
            return composite_samples(samples, density, rgb, background)

    def density(self, positions: Tensor) -> Tensor:
        """Density [N] per scene unit at world positions [N, 3]."""
        with self.autocast(positions.device):
            return self.decoder.density(self.grid(positions))[0]

    def _height(self, positions: Tensor) -> Tensor:
        with self.autocast(positions.device):
            return self.decoder.log_density(self.grid(positions))[0]  # the density may underflow to 0

    def tables(self) -> list[Tensor]:
        return [self.grid.table]

    def _unfit(self, device: torch.device) -> dict[str, str | None]:
        unfit = {}
        if isinstance(self.decoder, Decoder):
            dtype = torch.float16 if self.half_precision and device.type == "cuda" else torch.float32
            unfit["mlp"] = self.decoder.why_no_kernel(device, dtype)
        if isinstance(self.aggregator, RayAggregator):
            unfit["lltm"] = why_no_lltm(device, self.aggregator.lltm_size, self.aggregator.n_input)
        return unfit

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Half precision for features and networks on a GPU; elsewhere the caller's autocast applies."""
        # Without the cache: casts made under no_grad would be reused where gradients are needed.
        if self.half_precision and device.type == "cuda":
            return torch.autocast(device.type, torch.float16, cache_enabled=False)
        return nullcontext()
