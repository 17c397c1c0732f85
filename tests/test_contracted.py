# SPDX-License-Identifier: Apache-2.0
"""Sampling, training and options in unbounded space."""

import math

import pytest
import torch
from torch import Tensor

from nerfkit.config import Config, check
from nerfkit.data.cameras.cameras import Rays
from nerfkit.errors import ConfigError
from nerfkit.model.renderer import Renderer
from nerfkit.training.alignment import aligned
from nerfkit.training.step.losses import Distortion, spacing, squared_error
from nerfkit.training.trainer import Trainer
from tests.naming import raises_naming
from tests.samplers import cell_of, forward_cameras, ray, sampler_of, thin


@pytest.mark.parametrize("jitter", [None, 0.0, 0.3, 1.0])
def test_intervals_reach_from_near_to_far_without_a_gap_and_grow_with_the_distance(jitter):
    sampler = sampler_of()
    given = None if jitter is None else torch.tensor([jitter])
    samples = sampler(ray((0.2, 0.1, 0.3), (1.0, 0.4, -0.2)), thin, given)
    starts, ends = samples.t_starts, samples.t_ends
    torch.testing.assert_close(starts[1:], ends[:-1])
    assert 0.1 <= starts[0] <= 0.16 and ends[-1] >= 100
    lengths = ends - starts
    middle = (starts + ends) / 2
    assert (lengths >= 0.05 * 0.999).all()
    torch.testing.assert_close(lengths[middle > 2], 0.05 * middle[middle > 2], rtol=0.05, atol=0)
    assert len(starts) == sampler.max_samples_per_ray


def test_a_sample_is_where_its_cell_is_occupied_however_far():
    sampler = sampler_of()
    target = (30.0, 12.0, -9.0)
    sampler.occupancy.zero_()
    sampler.occupancy[cell_of(sampler, target)] = True
    samples = sampler(ray((0.0, 0, 0), target), thin)
    distance = torch.tensor(target).norm()
    assert len(samples.positions) > 0
    assert samples.t_starts.min() < distance < samples.t_ends.max()
    assert len(sampler(ray((0.0, 0, 0), (-30.0, 12, -9)), thin).positions) == 0


def test_rays_of_an_image_fit_into_memory():
    """All cells of an untrained field are occupied, and each ray passes many of them."""
    sampler = sampler_of(step=1e-3, cone=1e-3)
    assert sampler.max_rays_rendered * len(sampler.ladder) <= 2**25
    sampler.occupancy.zero_()
    assert sampler.max_rays_rendered == 2**18


@pytest.mark.parametrize("min_transmittance", [1e-4, 0.0])
@pytest.mark.parametrize("capacity", [None, 40, 4000])
def test_samples_of_hardly_any_opacity_are_not_rendered(capacity, min_transmittance):
    """Those that are, are the visible ones above the threshold, near to far, of each ray that fits."""
    sampler = sampler_of(min_transmittance=min_transmittance)
    sampler.threshold.fill_(0.05)
    rays = Rays(torch.zeros(3, 3), torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [0, 1, 1], [1, 1, 0]])))

    def density_fn(points: Tensor) -> Tensor:
        return torch.where((10 * points.norm(dim=-1)).sin() > 0, 4.0, 1e-3)

    samples = sampler(rays, density_fn, None, capacity)
    starts = sampler.ladder[:-2]
    lengths = sampler.ladder[1:-1] - starts
    for r in range(3):
        middles = rays.directions[r] * (starts + lengths / 2)[:, None]
        thickness = density_fn(middles) * lengths
        visible = thickness.cumsum(0) - thickness < -math.log(min_transmittance or math.exp(-700))  # 0 hides nothing
        expected = starts[visible & (-torch.expm1(-thickness) >= 0.05)]
        found = samples.t_starts[samples.ray_offsets[r] : samples.ray_offsets[r + 1]]
        if samples.ray_complete[r]:
            torch.testing.assert_close(found, expected)
        else:
            assert len(found) == 0 and capacity == 40
    assert capacity is None or len(samples.t_starts) == capacity


def small_config(**trainer) -> Config:
    config = Config(device="cpu")
    config.data.box = (-1.0, -1, -1, 1, 1, 1)
    config.model.levels, config.model.log2_table, config.model.max_resolution = 4, 10, 64
    for name, value in {
        "kind": "contracted", "step": 0.05, "cone": 0.05, "near": 0.1, "far": 100.0, "occupancy_resolution": 16,
    }.items():  # fmt: skip
        setattr(config.sampling, name, value)
    for name, value in ({"steps": 4, "samples": 2048} | trainer).items():
        setattr(config.trainer, name, value)
    return config.resolved()


def test_the_field_is_defined_everywhere_with_finite_gradients():
    model = Renderer(small_config())
    far = [1.0, 1e3, 1e10, 1e30]
    points = torch.tensor([[0.0, 0, 0], [1, 1, 1], [-1, 0.5, 1]] + [[x, -x / 3, x] for x in far], requires_grad=True)
    density = model.density(points)
    density.sum().backward()
    assert density.isfinite().all() and points.grad.isfinite().all()
    assert model.normals(points).isfinite().all()


def test_far_points_have_densities_of_their_own():
    model = Renderer(small_config())
    with torch.no_grad():
        for parameter in model.grid.parameters():
            parameter.normal_()
    density = model.density(torch.tensor([[2.0, 0, 0], [5.0, 0, 0], [50.0, 0, 0], [50.0, 20, 0]]))
    assert len(density.unique()) == 4


def test_a_field_starts_as_a_thin_haze():
    density = Renderer(small_config()).density(torch.rand(100, 3))
    torch.testing.assert_close(density.log().mean(), torch.tensor(-1.0), atol=0.2, rtol=0)


def test_training_lowers_both_terms_of_the_loss():
    torch.manual_seed(0)
    images = torch.tensor([220, 60, 30], dtype=torch.uint8).expand(2, 16, 16, 3)
    trainer = Trainer(small_config(steps=60, distortion=0.1), forward_cameras(), images)
    seen = []
    for step in trainer.steps():
        if step in (5, 60):
            seen.append(trainer.pop_stats())
    assert set(seen[0]) >= {"loss.mse", "loss.distortion", "psnr", "seen"}
    assert seen[1]["loss.mse"] < seen[0]["loss.mse"]
    assert seen[0]["loss.distortion"] > 0
    assert trainer.model.sampler.seen.float().mean() < 1


def test_no_distortion_loss_without_a_weight():
    config = small_config()
    config.trainer.distortion = 0.0
    trainer = Trainer(config, forward_cameras(), torch.zeros(2, 16, 16, 3, dtype=torch.uint8))
    for _ in trainer.steps():
        pass
    assert not any("distortion" in name for name in trainer.pop_stats())


def test_the_distortion_losss_weight_rises_to_its_full_value():
    """From nothing, so that samples do not draw together in front of a camera before there is a scene."""
    config = small_config(steps=100, distortion=0.5)
    distortion = Distortion(config)
    seen = []

    def wrapped(rendering, batch):  # a loss of one's own, beside it
        seen.append((distortion(rendering, batch) / distortion(rendering, batch._replace(progress=None))).item())
        return squared_error(rendering, batch)

    images = torch.full((2, 16, 16, 3), 99, dtype=torch.uint8)
    for _ in Trainer(config, forward_cameras(), images, loss_fn=wrapped).steps():
        pass
    assert seen[0] == 0 and seen[10] == pytest.approx(0.5) and seen[-1] == pytest.approx(1)


def test_a_pose_that_is_looked_for_leaves_the_sampler_alone():
    """What training rays reach is noted; the rays of a view that is scored are none."""
    config = small_config()
    trainer = Trainer(config, forward_cameras(), torch.full((2, 16, 16, 3), 99, dtype=torch.uint8))
    for _ in trainer.steps():
        pass
    trainer.model.sampler.unreached.fill_(7)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    truth = torch.full((16, 16, 3), 0.4)
    aligned(trainer.model, config, trainer.cameras, 1, truth, None, torch.ones(3))
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    trainer.train_step()
    assert (trainer.model.sampler.unreached == 0).any(), "those of a step do count"


def test_distortion_counts_distances_as_the_intervals_are_long():
    config = small_config()
    near, far, linear = spacing(config)
    assert near == 0 and far == linear == pytest.approx(1.0), "one unit, whatever the range of the scene"
    config.sampling.kind = "box"
    assert spacing(config)[1] == pytest.approx(12**0.5)


def test_ranges_that_no_ladder_fits_are_refused_by_name():
    config = small_config()
    config.sampling.step, config.sampling.cone = 1e-6, 0.0
    with raises_naming(ConfigError, "sampling", "step", "cone"):
        check(config)
    config = small_config()
    config.sampling.near, config.sampling.far = 5.0, 2.0
    with raises_naming(ConfigError, "sampling.near", 5.0, "sampling.far", 2.0):
        check(config)
    with raises_naming(ConfigError, "sampling.kind", "sphere", "contracted"):
        config = small_config()
        config.sampling.kind = "sphere"
        Renderer(config)
