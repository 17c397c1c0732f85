# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import Tensor

from nerfkit.config import SamplingConfig
from nerfkit.data.cameras import Rays
from nerfkit.model import sampling
from nerfkit.model.sampling import FIRST_PASS_SAMPLES, BoxSampler

N_RAYS = 200


def sampler_and_rays(device: str) -> tuple[BoxSampler, Rays]:
    """Rays through a cube, a third of it occupied: some have many more samples than a first round."""
    sampler = BoxSampler(SamplingConfig(step=0.01, occupancy_resolution=16), torch.tensor([[-1.0] * 3, [1.0] * 3]))
    sampler.occupancy.copy_(torch.rand(16, 16, 16) < 0.33)
    sampler.occupancy[:2] = False
    directions = torch.nn.functional.normalize(torch.randn(N_RAYS, 3), dim=-1)
    origins = -2 * directions + 0.7 * torch.randn(N_RAYS, 3)
    return sampler.to(device), Rays(origins.to(device), directions.to(device))


@pytest.mark.parametrize("density", [0.0, 2.0, 30.0, 1e4])
def test_rounds_find_the_same_samples(monkeypatch, device: str, density: float):
    sampler, rays = sampler_and_rays(device)
    looked: list[int] = []

    def density_fn(positions: Tensor) -> Tensor:
        looked.append(len(positions))
        return density * positions.square().sum(-1)

    found = {}
    for worth in (10**9, 0):
        monkeypatch.setattr(sampling, "TWO_PASS_THRESHOLD", worth)
        found[worth] = sampler(rays, density_fn)
    at_once, *rounds = looked
    counts = found[0].ray_offsets.diff()
    assert counts.max() > FIRST_PASS_SAMPLES or density > 1000
    for a, b in zip(found[0], found[10**9], strict=True):
        assert torch.equal(a, b)
    assert len(rounds) == 2 and rounds[0] > 0
    assert sum(rounds) == at_once if density <= 2 else sum(rounds) < at_once


def test_rounds_without_samples(monkeypatch, device: str):
    monkeypatch.setattr(sampling, "TWO_PASS_THRESHOLD", 0)
    sampler, rays = sampler_and_rays(device)
    assert len(sampler(rays, lambda positions: positions[:, 0].bfloat16().abs()).positions) > 0  # any type of density
    sampler.occupancy.zero_()
    samples = sampler(rays, lambda positions: positions[:, 0])
    assert len(samples.positions) == 0 and samples.ray_offsets.tolist() == [0] * (N_RAYS + 1)
