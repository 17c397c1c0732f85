# SPDX-License-Identifier: Apache-2.0
"""A model whose samples outside of a crop are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nerfkit.crop import Crop
from nerfkit.data.cameras.cameras import Rays
from nerfkit.errors import UserError
from nerfkit.model.base import Model
from nerfkit.model.sampling import DensityFn, OccupancySampler, Samples
from nerfkit.ops.packed import offsets_from_counts, sum_rays


@contextmanager
def cropped(model: Model, crop: Crop | None) -> Iterator[None]:
    """Inside, the model samples its rays in the crop alone, and what lies behind all else is seen; without one nothing
    changes. Raises UserError for a model without a sampler."""
    if crop is None:
        yield
        return
    sampler = getattr(model, "sampler", None)
    if sampler is None:
        raise UserError(f"the model {type(model).__name__} has no sampler, so it cannot be cropped")
    model.sampler = CroppedSampler(sampler, crop)
    try:
        yield
    finally:
        model.sampler = sampler


class CroppedSampler(nn.Module):
    """The samples of another sampler that lie in a crop; none but them, on each ray."""

    def __init__(self, sampler: OccupancySampler, crop: Crop):
        super().__init__()
        self.sampler, self.crop = sampler, crop
        self.ops, self.fade_in = sampler.ops, sampler.fade_in

    @property
    def max_rays_rendered(self) -> int:
        """As many as without the crop: it is marched outside, too."""
        return self.sampler.max_rays_rendered

    def forward(
        self, rays: Rays, density_fn: DensityFn, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Samples:
        """As `BoxSampler.forward`, without a capacity."""
        if capacity is not None:
            raise ValueError("a crop changes how many samples there are, so it takes no capacity")

        def density(positions: Tensor) -> Tensor:
            """0 outside, so that nothing there hides what is behind."""
            values = density_fn(positions)
            return torch.where(self.crop.inside(positions), values, torch.zeros_like(values))

        samples = self.sampler(rays, density, jitter)
        inside = self.crop.inside(samples.positions)  # [N]
        n_rays = samples.ray_offsets.shape[0] - 1
        counts = sum_rays(inside.long()[:, None], samples.ray_index, n_rays)[:, 0]  # [R]
        return Samples(*(x[inside] for x in samples[:4]), offsets_from_counts(counts), samples.ray_complete)
