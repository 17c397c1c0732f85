# SPDX-License-Identifier: Apache-2.0
"""Sampling, training and options in unbounded space."""

import math

import pytest
import torch
from torch import Tensor

from nerfkit.config import Config, SamplingConfig, check
from nerfkit.contraction import contract
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.lens import Lens
from nerfkit.errors import ConfigError
from nerfkit.model.contracted import REACHED_UPDATES, ContractedSampler
from nerfkit.model.renderer import Renderer
from nerfkit.parallel import Processes
from nerfkit.training.alignment import aligned
from nerfkit.training.losses import default_loss, spacing
from nerfkit.training.trainer import Trainer
from tests.naming import raises_naming

CUBE = torch.tensor([[-1.0] * 3, [1.0] * 3])


def sampler_of(**options) -> ContractedSampler:
    values = {"step": 0.05, "cone": 0.05, "near": 0.1, "far": 100.0, "occupancy_resolution": 16} | options
    return ContractedSampler(SamplingConfig(kind="contracted", **values), CUBE)


def ray(origin: tuple[float, ...], direction: tuple[float, ...]) -> Rays:
    return Rays(torch.tensor([origin]), torch.nn.functional.normalize(torch.tensor([direction]), dim=-1))


def thin(positions: Tensor) -> Tensor:
    return torch.full(positions.shape[:1], 1e-4)


def forward_cameras(n: int = 2, lens: Lens | None = None) -> Cameras:
    """Cameras near the origin, side by side, which look down -z with 90 degrees."""
    pose = torch.eye(4)[None, :3].repeat(n, 1, 1)
    pose[:, 0, 3] = torch.linspace(-0.1, 0.1, n)
    return Cameras.of_lenses(pose, [lens or Lens("PINHOLE", (8.0, 8.0, 8.0, 8.0), 16, 16)] * n)


def cell_of(sampler: ContractedSampler, point: tuple[float, ...]) -> tuple[int, ...]:
    side = sampler.config.occupancy_resolution
    unit = (contract(torch.tensor([point]), sampler.box) + 2) / 4
    return tuple((unit[0] * side).long().clamp(max=side - 1).tolist())


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


def test_cells_that_no_camera_sees_are_never_occupied():
    sampler = sampler_of()
    sampler.observe(forward_cameras())
    ahead, behind, beside = (0.0, 0.0, -5.0), (0.0, 0.0, 5.0), (9.0, 0.0, -1.0)
    for _ in range(3):
        sampler.update(lambda points: torch.full(points.shape[:1], 1e4), 0)
        assert sampler.occupancy[cell_of(sampler, ahead)]
        assert not sampler.occupancy[cell_of(sampler, behind)] and not sampler.occupancy[cell_of(sampler, beside)]
    assert 0.1 < sampler.stats()["seen"] < 0.5


def test_what_is_nearer_than_near_is_not_seen():
    sampler = sampler_of(near=1.5, occupancy_resolution=32)
    sampler.observe(forward_cameras())
    assert not sampler.occupancy[cell_of(sampler, (0.0, 0, -0.6))]
    assert sampler.occupancy[cell_of(sampler, (0.0, 0, -3.0))]


def test_a_fisheye_sees_what_is_beside_it():
    wide = Lens("OPENCV_FISHEYE", (5.0, 5.0, 8.0, 8.0, 0.0, 0.0, 0.0, 0.0), 16, 16)  # 90 degrees to the side at 7.85
    beside = (9.0, 0.0, 0.2)
    seen = []
    for lens in (wide, None):
        sampler = sampler_of(occupancy_resolution=32)
        sampler.observe(forward_cameras(lens=lens))
        seen.append(bool(sampler.seen[cell_of(sampler, beside)]))
    assert seen == [True, False]


@pytest.mark.parametrize("model", ["FISHEYE", "OPENCV_FISHEYE"])
def test_a_lens_of_more_than_a_half_space_sees_what_is_behind_its_camera(model):
    """Of 240 degrees: 110 degrees off the axis, not 130, and nothing of the half space behind it with 170 degrees."""
    terms = () if model == "FISHEYE" else (0.0, 0.0, 0.0, 0.0)
    seen = {}
    for degrees in (240, 170):
        focal = 16 / math.radians(degrees / 2)
        lens = Lens(model, (focal, focal, 16.0, 16.0, *terms), 32, 32)
        sampler = sampler_of(occupancy_resolution=64)
        sampler.observe(forward_cameras(lens=lens))
        for angle in (60, 110, 130, 180):
            away = math.radians(angle)
            point = (0.0, 6 * math.sin(away), -6 * math.cos(away))
            seen[degrees, angle] = bool(sampler.seen[cell_of(sampler, point)])
    wanted = {(240, 60), (240, 110), (170, 60)}
    assert {key for key, is_seen in seen.items() if is_seen} == wanted


def test_seen_cells_are_saved_with_the_model():
    sampler, other = sampler_of(), sampler_of()
    sampler.observe(forward_cameras())
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.seen, sampler.seen) and torch.equal(other.occupancy, sampler.occupancy)


def test_blocks_that_no_training_ray_reaches_are_empty_until_one_does():
    sampler = sampler_of(occupancy_warmup=0, occupancy_every=1)
    sampler.train()
    reached, behind = (3.0, 0.0, 0.0), (0.0, 0.0, 60.0)

    def wall(points: Tensor) -> Tensor:
        return torch.full(points.shape[:1], 1e4)

    for step in range(REACHED_UPDATES + 1):
        sampler.opacity.fill_(1.0)
        sampler.update(wall, step)
        sampler(ray((2.5, 0, 0), (1.0, 0, 0)), wall)
        with torch.no_grad():
            sampler(ray((0.0, 0, 0), (0.0, 0, 1)), lambda points: 500 * thin(points))  # as of a view that is scored
    assert sampler.occupancy[cell_of(sampler, reached)] and not sampler.occupancy[cell_of(sampler, behind)]
    assert sampler.stats()["reached"] < 0.1
    sampler.occupancy.fill_(True)
    sampler(ray((0.0, 0, 0), (0.0, 0, 1)), lambda points: 500 * thin(points))
    sampler.update(wall, REACHED_UPDATES + 1)
    assert sampler.occupancy[cell_of(sampler, behind)]


def test_images_that_take_turns_empty_no_blocks():
    sampler = sampler_of(occupancy_warmup=0, occupancy_every=1)
    sampler.observe(forward_cameras(), all_at_once=False)
    for step in range(REACHED_UPDATES + 1):
        sampler.update(lambda points: torch.full(points.shape[:1], 1e4), step)
    assert sampler.occupancy[cell_of(sampler, (0.0, 0.0, -5.0))]


def test_what_a_ray_of_one_process_reaches_is_reached_for_all():
    class Two(Processes):
        size = 2

        def most(self, values: Tensor) -> Tensor:
            return torch.maximum(values, 255 - other)

    sampler = sampler_of()
    sampler.unreached.fill_(7)
    other = sampler.unreached.clone()
    other[3, 2, 1] = 0
    sampler.unreached[0, 0, 0] = 2
    sampler.agree(Two())
    assert sampler.unreached[3, 2, 1] == 0 and sampler.unreached[0, 0, 0] == 2 and sampler.unreached[1, 1, 1] == 7


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
    return config


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


@pytest.mark.parametrize("bias", [-4.6, -1.0])
def test_density_starts_at_its_bias(bias):
    config = small_config()
    config.model.density_bias = bias
    model = Renderer(config)
    density = model.density(torch.rand(100, 3))
    torch.testing.assert_close(density.log().mean(), torch.tensor(bias), atol=0.2, rtol=0)


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
    assert default_loss(config).__name__ == "squared_error"


def test_the_distortion_losss_weight_rises_to_its_full_value():
    """From nothing, so that samples do not draw together in front of a camera before there is a scene."""
    config = small_config(steps=100, distortion=0.5)
    loss = default_loss(config)
    seen = []

    def wrapped(rendering, batch):  # a loss of one's own, around it
        terms, full = loss(rendering, batch), loss(rendering, batch._replace(progress=None))
        seen.append((terms["distortion"] / full["distortion"]).item())
        return terms

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
