# SPDX-License-Identifier: Apache-2.0
"""The pipeline from rays to colors: the file to read first.

sampling    rays + occupancy grid        -> samples     packed: N samples of R rays
grid        sample positions [N, 3]      -> features    [N, C]
encoder     features along each ray      -> encoded     [N, C]
aggregator  encoded, near to far         -> state       [N, H]
decoder     features, context, direction -> density [N], rgb [N, 3]
compositing density, rgb, intervals      -> color [R, 3], opacity [R], depth [R]
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from nerfkit.config import FIELD, Config
from nerfkit.data.cameras.cameras import Rays
from nerfkit.model.base import Model
from nerfkit.model.compositing import Rendering, composite_samples
from nerfkit.model.sampling import BoxSampler, ContractedSampler, box_of, build_sampler
from nerfkit.model.stages import Decoder, FeatureGrid, RayAggregator, RayEncoder
from nerfkit.ops import choices, render_rays, resolve, spherical_harmonics
from nerfkit.ops.lltm import why_no_kernel as why_no_lltm
from nerfkit.ops.render_rays import N_GEOMETRY, N_STATE
from nerfkit.ops.render_rays import why_no_kernel as why_no_frame

OF_THE_CHAIN = ("forward", "render", "density", "autocast")  # methods of a Renderer that its kernel stands for


class Renderer(Model):
    """A radiance field and how rays see it.

    A stage is replaced by a subclass that overrides the method which builds it; see examples/own_encoder.py.
    """

    recipe = FIELD
    ops = ("spherical_harmonics", "composite", "render_rays")  # and those of its stages
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
        """The networks of density and color. `context`: widths of encoded features and state, which color sees."""
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

    @property
    def is_one_kernel(self) -> bool:
        """Whether `render` is the kernel of `nerfkit.ops.render_rays`; BackendError where it is to be, and cannot."""
        device = next(self.parameters()).device
        chosen = (choices() | self.backends)["render_rays"]
        return resolve("render_rays", str(device), chosen, self._why_no_frame(device)).backend == "cuda"

    def render(self, rays: Rays, background: Tensor) -> Rendering:
        """As `forward`; where the GPU's one kernel takes the model, with a median depth and without samples."""
        if torch.is_grad_enabled() or not self.is_one_kernel:
            return self(rays, background)
        color, opacity, depth, median = render_rays(*rays[:2], background=background, **self._arguments(torch.float16))
        return Rendering(color, opacity, depth, median_depth=median)

    def _arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Those of `nerfkit.ops.render_rays` but rays and background, table and weights in `dtype`."""
        sampler, grid, decoder, config = self.sampler, self.grid, self.decoder, self.config.sampling
        nets = {"density_net": decoder.density_net.packed, "color_net": decoder.color_net.packed}
        weights = {"table": grid.table, **nets}
        if self.encoder:
            weights |= {"conv_weight": self.encoder.taps(), "conv_bias": self.encoder.bias}
        if self.aggregator:
            weights |= {"lltm_weight": self.aggregator.weight, "lltm_bias": self.aggregator.bias}
        if isinstance(sampler, ContractedSampler):
            spacing = {"step": None, "t_edges": sampler.t_edges}
        else:
            spacing = {"step": config.step_size, "near": config.near, "far": config.far}
        return {
            "occupancy": sampler.occupancy, "box": sampler.box, "threshold": sampler.threshold,
            "early_stop_transmittance": sampler.early_stop_transmittance, "density_bias": decoder.density_bias,
            "resolutions": grid.resolutions, "max_entries": grid.max_entries, "hidden": decoder.density_net.widths[1],
        } | spacing | {name: x.to(dtype) for name, x in weights.items()}  # fmt: skip

    def _why_no_frame(self, device: torch.device) -> str | None:
        """Why the kernel that renders images on `device` does not know this model; None if it does."""
        parts = self.sampler, self.grid, self.encoder, self.aggregator, self.decoder
        known = BoxSampler, ContractedSampler, FeatureGrid, RayEncoder, RayAggregator, Decoder, type(None)
        unknown = [type(part).__name__ for part in parts if type(part) not in known]
        changed = (x for x in OF_THE_CHAIN if getattr(type(self), x) is not getattr(Renderer, x))
        if unknown := [*unknown, *(f"{type(self).__name__}.{x}" for x in changed)]:
            return f"its kernel does not know {', '.join(unknown)}"
        net, n_features = self.decoder.density_net.widths, self.grid.table.shape[1]
        n_state = self.aggregator.lltm_size if self.aggregator else N_STATE
        if (net[-1], n_state) != (N_GEOMETRY, N_STATE) or net[1] != self.decoder.color_net.widths[1]:
            return (
                f"its kernel takes {N_GEOMETRY} geometry features, {N_STATE} units of state and networks of one width"
            )
        dtype = torch.float16 if self.half_precision else torch.float32
        taps = self.encoder.weight.shape[1] if self.encoder else 0
        return why_no_frame(device, dtype, n_features, self.grid.n_features, net[1], taps)

    def density(self, positions: Tensor) -> Tensor:
        """Density [N] per model unit at positions [N, 3] of the model."""
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
        return unfit | {"render_rays": self._why_no_frame(device)}

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Half precision for features and networks on a GPU; elsewhere the caller's autocast applies."""
        # Without the cache: casts made under no_grad would be reused where gradients are needed.
        if self.half_precision and device.type == "cuda":
            return torch.autocast(device.type, torch.float16, cache_enabled=False)
        return nullcontext()
