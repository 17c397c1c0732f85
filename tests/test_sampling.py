# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Rays
from nerfkit.model import sampling
from nerfkit.model.sampling import FIRST_PASS_SAMPLES, BoxSampler
from tests.samplers import cube_sampler

N_RAYS = 200


def sampler_and_rays(device: str) -> tuple[BoxSampler, Rays]:
    """Rays through a cube, a third of it occupied: some have many more samples than a first round."""
    sampler = cube_sampler(step=0.01, occupancy_resolution=16)
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


def test_density_is_evaluated_in_parts_that_fit(monkeypatch, device: str):
    sampler, rays = sampler_and_rays(device)
    monkeypatch.setattr(sampling, "TWO_PASS_THRESHOLD", 0)
    found, looked = [], []

    def density_fn(positions: Tensor) -> Tensor:
        looked.append(len(positions))
        return positions.square().sum(-1)

    for most in (10**9, 10):
        looked.clear()
        monkeypatch.setattr(sampling, "MAX_ROWS", most)
        found.append(sampler(rays, density_fn))
    assert max(looked) == 10 and all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rounds_without_samples(monkeypatch, device: str):
    monkeypatch.setattr(sampling, "TWO_PASS_THRESHOLD", 0)
    sampler, rays = sampler_and_rays(device)
    assert len(sampler(rays, lambda positions: positions[:, 0].bfloat16().abs()).positions) > 0  # any type of density
    sampler.occupancy.zero_()
    samples = sampler(rays, lambda positions: positions[:, 0])
    assert len(samples.positions) == 0 and samples.ray_offsets.tolist() == [0] * (N_RAYS + 1)


def plain_sampler(**options) -> tuple[BoxSampler, Rays]:
    """One ray along x through a cube from -1 to 1, from 3 before its middle; all cells are occupied."""
    rays = Rays(torch.tensor([[-3.0, 0.05, 0.05]]), torch.tensor([[1.0, 0.0, 0.0]]))
    return cube_sampler(**options), rays


def thin(positions: Tensor) -> Tensor:
    return torch.full(positions.shape[:1], 1e-3)


def test_samples_fill_the_box_and_lie_in_the_middle_of_their_intervals():
    sampler, rays = plain_sampler()
    samples = sampler(rays, thin)
    torch.testing.assert_close(samples.t_starts, 2 + 0.1 * torch.arange(20))
    torch.testing.assert_close(samples.t_ends - samples.t_starts, torch.full((20,), 0.1))
    torch.testing.assert_close(samples.positions[:, 0], -0.95 + 0.1 * torch.arange(20))


def test_no_samples_nearer_than_near_and_farther_than_far():
    sampler, rays = plain_sampler(near=2.5, far=3.2)
    samples = sampler(rays, thin)
    assert (
        samples.t_starts[0] == pytest.approx(2.5)
        and samples.t_ends[-1] == pytest.approx(3.2)
        and len(samples.t_ends) == 7
    )
    sampler, rays = plain_sampler(far=1.9)
    assert not sampler.sees(rays).any() and len(sampler(rays, thin).t_ends) == 0


@pytest.mark.parametrize("jitter", [0.0, 0.3, 0.9])
def test_jitter_shifts_the_samples_by_steps(jitter: float):
    sampler, rays = plain_sampler()
    samples = sampler(rays, thin, torch.tensor([jitter]))
    assert samples.t_starts[0] == pytest.approx(2 + 0.1 * jitter)


def test_no_samples_behind_what_is_opaque():
    """Half the light passes a sample: 1, 1/2, 1/4, 1/8 are above a tenth."""
    for min_transmittance, n_samples in ((0.1, 4), (0.0, 20)):
        sampler, rays = plain_sampler(min_transmittance=min_transmittance)
        half = torch.log(torch.tensor(2.0)) / 0.1
        assert len(sampler(rays, lambda positions: half.expand(len(positions))).positions) == n_samples  # noqa: B023


def test_thin_samples_are_rendered_in_the_warm_up_alone():
    """Every other pair of samples has an opacity of 0.005, in cells that are occupied."""
    sampler, rays = plain_sampler(occupancy_threshold=0.01, update_every=4, warmup_steps=8)

    def density_fn(positions: Tensor) -> Tensor:
        return torch.where((positions[:, 0] * 5).floor() % 2 == 0, 1.0, 0.05)

    rendered = []
    for step in range(10):
        sampler.update(density_fn, step)
        sampler.occupancy.fill_(True)
        rendered.append(len(sampler(rays, density_fn).positions))
    assert rendered == [20] * 8 + [10] * 2
