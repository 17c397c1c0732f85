# SPDX-License-Identifier: Apache-2.0
"""Where samples are put along a ray, and which cells are occupied, in a box and in unbounded space."""

import math

import pytest
import torch
from torch import Tensor

from nerfkit.config import Config, DataConfig, SamplingConfig
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.cameras.lens import Lens
from nerfkit.model import sampling
from nerfkit.model.occupancy import BLOCK, REACHED_UPDATES
from nerfkit.model.sampling import FIRST_PASS_SAMPLES, OccupancySampler, build_sampler

SIDES = {"contracted": 1.0, "box": 10.0}  # half of data.box


def built(kind: str, side: float, values: dict) -> OccupancySampler:
    """A sampler with such options; what is none of them is an attribute."""
    names = ("update_every", "warmup_steps", "early_stop_transmittance")
    attributes = {name: values.pop(name) for name in names if name in values}
    data = DataConfig(box=(-side, -side, -side, side, side, side))
    sampler = build_sampler(Config("", size="large", data=data, sampling=SamplingConfig(kind, **values)).resolved())
    vars(sampler).update(attributes)
    return sampler


def sampler_of(kind: str = "contracted", **options) -> OccupancySampler:
    values = {"step_size": 0.05, "cone_angle": 0.05, "near": 0.1, "far": 100.0, "occupancy_resolution": 16} | options
    return built(kind, SIDES[kind], values)


def cube_sampler(**options) -> OccupancySampler:
    return built("box", 1.0, {"step_size": 0.1, "occupancy_resolution": 8} | options)


def ray(origin: tuple[float, ...], direction: tuple[float, ...]) -> Rays:
    return Rays(torch.tensor([origin]), torch.nn.functional.normalize(torch.tensor([direction]), dim=-1))


ALONG_X = ray((-3.0, 0.05, 0.05), (1.0, 0.0, 0.0))  # from 3 before the middle of the cube


def thin(positions: Tensor) -> Tensor:
    return torch.full(positions.shape[:1], 1e-4)


def wall(positions: Tensor) -> Tensor:
    return torch.full(positions.shape[:1], 1e4)


def forward_cameras(n: int = 2, lens: Lens | None = None) -> Cameras:
    """Cameras near the origin, side by side, which look down -z with 90 degrees."""
    pose = torch.eye(4)[None, :3].repeat(n, 1, 1)
    pose[:, 0, 3] = torch.linspace(-0.1, 0.1, n)
    return Cameras.from_lenses(pose, [lens or Lens("PINHOLE", (8.0, 8.0, 8.0, 8.0), 16, 16)] * n)


def cell_of(sampler: OccupancySampler, point: tuple[float, ...]) -> tuple[int, ...]:
    side = sampler.config.occupancy_resolution
    unit = sampler.to_unit(torch.tensor([point]))[0]  # [3]
    return tuple((unit * side).long().clamp(max=side - 1).tolist())


def test_samples_fill_the_box_and_lie_in_the_middle_of_their_intervals():
    samples = cube_sampler()(ALONG_X, thin)
    torch.testing.assert_close(samples.t_starts, 2 + 0.1 * torch.arange(20))
    torch.testing.assert_close(samples.t_ends - samples.t_starts, torch.full((20,), 0.1))
    torch.testing.assert_close(samples.positions[:, 0], -0.95 + 0.1 * torch.arange(20))
    shifted = cube_sampler()(ALONG_X, thin, torch.tensor([0.3]))  # by jitter, in steps
    assert shifted.t_starts[0] == pytest.approx(2 + 0.1 * 0.3)


def test_samples_move_with_their_ray():
    """As o + t d, at distances that stay; to ask for gradients changes nothing."""
    rays = Rays(*(x.clone().requires_grad_() for x in ALONG_X[:2]))
    samples = cube_sampler()(rays, thin)
    assert torch.equal(samples.positions, cube_sampler()(ALONG_X, thin).positions)
    samples.positions.sum().backward()
    torch.testing.assert_close(rays.origins.grad, torch.full((1, 3), 20.0))
    torch.testing.assert_close(rays.directions.grad, (samples.t_starts + samples.t_ends).sum().expand(1, 3) / 2)


def test_no_samples_nearer_than_near_and_farther_than_far():
    samples = cube_sampler(near=2.5, far=3.2)(ALONG_X, thin)
    found = samples.t_starts[0].item(), samples.t_ends[-1].item(), len(samples.t_ends)
    assert found == pytest.approx((2.5, 3.2, 7))
    sampler = cube_sampler(far=1.9)
    assert not sampler.hits(ALONG_X).any() and len(sampler(ALONG_X, thin).t_ends) == 0


def test_thin_samples_are_rendered_in_the_warm_up_alone():
    sampler = cube_sampler(alpha_threshold=0.01, update_every=4, warmup_steps=8)

    def density_fn(positions: Tensor) -> Tensor:
        return torch.where((positions[:, 0] * 5).floor() % 2 == 0, 1.0, 0.05)

    rendered = []
    for step in range(10):
        sampler.update(density_fn, step)
        sampler.occupancy.fill_(True)
        rendered.append(len(sampler(ALONG_X, density_fn).positions))
    assert rendered == [20] * 8 + [10] * 2


@pytest.mark.parametrize("jitter", [None, 1.0])
def test_intervals_reach_from_near_to_far_without_a_gap_and_grow_with_the_distance(jitter):
    sampler = sampler_of()
    given = None if jitter is None else torch.tensor([jitter])
    samples = sampler(ray((0.2, 0.1, 0.3), (1.0, 0.4, -0.2)), thin, given)
    starts, ends = samples.t_starts, samples.t_ends
    torch.testing.assert_close(starts[1:], ends[:-1])
    assert 0.1 <= starts[0] <= 0.16 and ends[-1] >= 100
    lengths, middle = ends - starts, (starts + ends) / 2
    assert (lengths >= 0.05 * 0.999).all()
    torch.testing.assert_close(lengths[middle > 2], 0.05 * middle[middle > 2], rtol=0.05, atol=0)
    assert len(starts) == sampler.max_samples_per_ray


def test_a_sample_is_where_its_cell_is_occupied_however_far():
    sampler, target = sampler_of(), (30.0, 12.0, -9.0)
    sampler.occupancy.zero_()
    sampler.occupancy[cell_of(sampler, target)] = True
    samples = sampler(ray((0.0, 0, 0), target), thin)
    assert samples.t_starts.min() < torch.tensor(target).norm() < samples.t_ends.max()
    assert len(sampler(ray((0.0, 0, 0), (-30.0, 12, -9)), thin).positions) == 0


@pytest.mark.parametrize("capacity, early_stop_transmittance", [(None, 1e-4), (None, 0.0), (40, 1e-4), (4000, 1e-4)])
def test_samples_of_hardly_any_opacity_are_not_rendered(capacity, early_stop_transmittance):
    """Those that are, are the visible ones above the threshold, near to far, of each ray that fits."""
    sampler = sampler_of(early_stop_transmittance=early_stop_transmittance)
    sampler.threshold.fill_(0.05)
    rays = Rays(torch.zeros(3, 3), torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [0, 1, 1], [1, 1, 0]])))

    def density_fn(points: Tensor) -> Tensor:
        return torch.where((10 * points.norm(dim=-1)).sin() > 0, 4.0, 1e-3)

    samples = sampler(rays, density_fn, None, capacity)
    starts = sampler.t_edges[:-2]
    lengths = sampler.t_edges[1:-1] - starts
    for r in range(3):
        middles = rays.directions[r] * (starts + lengths / 2)[:, None]
        thickness = density_fn(middles) * lengths
        deepest = -math.log(early_stop_transmittance or math.exp(-700))  # 0 hides nothing
        visible = thickness.cumsum(0) - thickness < deepest
        expected = starts[visible & (-torch.expm1(-thickness) >= 0.05)]
        found = samples.t_starts[samples.ray_offsets[r] : samples.ray_offsets[r + 1]]
        if samples.ray_complete[r]:
            torch.testing.assert_close(found, expected)
        else:
            assert len(found) == 0 and capacity == 40
    assert capacity is None or len(samples.t_starts) == capacity


@pytest.mark.parametrize("density", [2.0, 1e4])
def test_two_passes_find_the_same_samples(monkeypatch, device: str, density: float):
    """Also where the density is evaluated in parts that fit into memory. The rays go through a cube, a third of it
    occupied: some have many more samples than a first pass."""
    sampler = cube_sampler(step_size=0.01, occupancy_resolution=16).to(device)
    sampler.occupancy.copy_(torch.rand(16, 16, 16) < 0.33)
    sampler.occupancy[:2] = False
    directions = torch.nn.functional.normalize(torch.randn(200, 3), dim=-1)
    rays = Rays((-2 * directions + 0.7 * torch.randn(200, 3)).to(device), directions.to(device))
    looked, found = [], []

    def density_fn(positions: Tensor) -> Tensor:
        looked.append(len(positions))
        return density * positions.square().sum(-1)

    for threshold, rows in ((10**9, 10**9), (0, 10**9), (0, 10)):
        monkeypatch.setattr(sampling, "TWO_PASS_THRESHOLD", threshold)
        monkeypatch.setattr(sampling, "MAX_ROWS", rows)
        found.append(sampler(rays, density_fn))
    at_once, first, second, *parts = looked
    assert found[0].ray_offsets.diff().max() > FIRST_PASS_SAMPLES or density > 1000
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert first > 0 and (first + second == at_once if density <= 2 else first + second < at_once)
    assert max(parts) == 10
    sampler.occupancy.zero_()
    nothing = sampler(rays, density_fn)
    assert len(nothing.positions) == 0 and nothing.ray_offsets.tolist() == [0] * 201


@pytest.mark.parametrize("room, share", [(8.0, 1.0), (0.5, 0.1)])
def test_two_passes_with_a_capacity_find_the_same_samples(device: str, room: float, share: float):
    """Of the rays whose intervals fit; of the others none, and they are known to be incomplete."""
    sampler = sampler_of(step_size=0.01).to(device)
    directions = torch.nn.functional.normalize(torch.randn(100, 3), dim=-1).to(device)
    rays = Rays(0.3 * torch.randn(100, 3).to(device), directions)

    def density_fn(positions: Tensor) -> Tensor:
        return 20.0 * (positions.norm(dim=-1) > 1.5)

    wanted, sampler.passes_of_capacity = sampler(rays, density_fn), room
    capacity = len(wanted.t_starts) + 10
    found = sampler(rays, density_fn, None, capacity)
    complete = found.ray_complete
    assert complete.float().mean() >= share and complete.all() == (share == 1)
    for ray in range(100):
        rows, own = (slice(*x.ray_offsets[ray : ray + 2].tolist()) for x in (wanted, found))
        expected = wanted.t_starts[rows] if complete[ray] else wanted.t_starts[:0]
        assert torch.equal(found.t_starts[own], expected)


def in_one_corner(positions: Tensor) -> Tensor:
    """Dense where all coordinates are above one half; elsewhere an opacity per interval of 0.005."""
    return torch.where((positions > 0.5).all(-1), 30.0, 0.05)


def test_cells_are_occupied_above_the_threshold():
    sampler = cube_sampler(alpha_threshold=0.01)
    sampler.update(in_one_corner, 0)
    wanted = torch.zeros(8, 8, 8, dtype=torch.bool)
    wanted[6:, 6:, 6:] = True
    assert torch.equal(sampler.occupancy, wanted) and sampler.stats()["occupied"] == round(8 / 512, 4)
    sampler = cube_sampler(alpha_threshold=0.001)
    sampler.update(in_one_corner, 0)
    assert sampler.occupancy.all()


def test_a_field_that_is_empty_all_over_keeps_its_densest_cells():
    """Below the threshold the mean takes its place: what is to be learned must have samples."""
    sampler = cube_sampler(alpha_threshold=0.5)
    sampler.update(lambda positions: 0.01 * (positions[:, 0] + 1), 0)
    assert sampler.occupancy[7].all() and not sampler.occupancy[0].any()


def test_what_is_gone_is_forgotten_step_by_step():
    """A cell's opacity falls by a tenth an update: from 0.95 it is below one half after seven."""
    sampler = cube_sampler(alpha_threshold=0.5, update_every=1, warmup_steps=100)
    sampler.update(in_one_corner, 0)
    occupied = []
    for step in range(1, 10):
        sampler.update(lambda positions: torch.full(positions.shape[:1], 7.1), step)  # an opacity of 0.508
        occupied.append(int(sampler.opacity.max() > 0.51))
    assert occupied == [1, 1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", list(SIDES))
def test_cells_that_no_camera_sees_are_never_occupied(kind: str):
    """Nor in a model that is read from a file."""
    sampler, other = sampler_of(kind), sampler_of(kind)
    sampler.set_training_cameras(forward_cameras())
    ahead, behind, beside = (0.0, 0.0, -5.0), (0.0, 0.0, 5.0), (9.0, 0.0, -1.0)
    for _ in range(3):
        sampler.update(wall, 0)
        assert sampler.occupancy[cell_of(sampler, ahead)]
        assert not sampler.occupancy[cell_of(sampler, behind)] and not sampler.occupancy[cell_of(sampler, beside)]
    assert 0.1 < sampler.stats()["seen"] < 0.5
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.seen, sampler.seen) and torch.equal(other.occupancy, sampler.occupancy)
    farther = sampler_of(kind, near=4.0, occupancy_resolution=32)
    farther.set_training_cameras(forward_cameras())
    too_near, far_enough = (cell_of(farther, (0.0, 0.0, z)) for z in (-0.6, -5.0))
    assert not farther.occupancy[too_near] and farther.occupancy[far_enough]


@pytest.mark.parametrize("n_cameras, kept", [(24, ["many", "far"]), (4, ["one", "many", "far"])])
def test_what_is_close_to_a_camera_and_seen_by_few_stays_empty(n_cameras: int, kept: list[str]):
    """A cloud there explains an image, and no other image could tell; but few cameras cannot be choosy."""
    cameras = forward_cameras(n_cameras)
    cameras.camera_to_world[0, 0, 3] = 0.8  # one stands apart
    sampler = sampler_of(near=0.1, occupancy_resolution=64)
    sampler.set_training_cameras(cameras)
    points = {"one": (0.8, 0.0, -0.25), "many": (0.0, 0.0, -0.3), "far": (3.0, 0.0, -2.4)}
    assert [name for name, point in points.items() if sampler.occupancy[cell_of(sampler, point)]] == kept


def test_a_lens_of_more_than_a_half_space_sees_what_is_behind_its_camera():
    """Of 240 degrees: 110 degrees off the axis, not 130, and nothing of the half space behind it with 170 degrees."""
    seen = {}
    for degrees in (240, 170):
        focal = 16 / math.radians(degrees / 2)
        lens = Lens("FISHEYE", (focal, focal, 16.0, 16.0), 32, 32)
        sampler = sampler_of(occupancy_resolution=64)
        sampler.set_training_cameras(forward_cameras(lens=lens))
        for angle in (60, 110, 130, 180):
            away = math.radians(angle)
            point = (0.0, 6 * math.sin(away), -6 * math.cos(away))
            seen[degrees, angle] = bool(sampler.seen[cell_of(sampler, point)])
    assert {key for key, is_seen in seen.items() if is_seen} == {(240, 60), (240, 110), (170, 60)}


def test_blocks_that_no_training_ray_reaches_are_empty_until_one_does():
    sampler = sampler_of(warmup_steps=0, update_every=1)
    reached, behind = (3.0, 0.0, 0.0), (0.0, 0.0, 8.0)
    for step in range(REACHED_UPDATES + 1):
        sampler.opacity.fill_(1.0)
        sampler.update(wall, step)
        sampler(ray((2.5, 0, 0), (1.0, 0, 0)), wall)
        with torch.no_grad():
            sampler(ray((0.0, 0, 0), (0.0, 0, 1)), lambda points: 5000 * thin(points))  # as of a view that is scored
    assert sampler.occupancy[cell_of(sampler, reached)] and not sampler.occupancy[cell_of(sampler, behind)]
    assert sampler.stats()["reached"] < 0.1
    sampler.occupancy.fill_(True)
    sampler(ray((0.0, 0, 0), (0.0, 0, 1)), lambda points: 5000 * thin(points))
    sampler.update(wall, REACHED_UPDATES + 1)
    assert sampler.occupancy[cell_of(sampler, behind)]


def test_rows_of_a_capacity_that_nobody_uses_reach_nothing():
    """They lie at the origin, which then would never be emptied."""
    sampler = sampler_of()
    sampler.unreached.fill_(7)
    sampler(ray((2.5, 0, 0), (1.0, 0, 0)), wall, capacity=64)
    cells = [cell_of(sampler, point) for point in ((3.0, 0.0, 0.0), (0.0, 0.0, 0.0))]
    assert [sampler.unreached[tuple(i // BLOCK for i in cell)] for cell in cells] == [0, 7]


def test_images_that_take_turns_empty_no_blocks():
    sampler = sampler_of(warmup_steps=0, update_every=1)
    sampler.set_training_cameras(forward_cameras(), all_at_once=False)
    for step in range(REACHED_UPDATES + 1):
        sampler.update(wall, step)
    assert sampler.occupancy[cell_of(sampler, (0.0, 0.0, -5.0))]
