# SPDX-License-Identifier: Apache-2.0
"""Which cells are occupied."""

import math

import pytest
import torch
from torch import Tensor

from nerfkit.data.cameras.lens import Lens
from nerfkit.model.occupancy import BLOCK, REACHED_UPDATES
from nerfkit.parallel import Processes
from tests.samplers import cell_of, cube_sampler, forward_cameras, ray, sampler_of, thin


def in_one_corner(positions: Tensor) -> Tensor:
    """Dense where all coordinates are above one half; elsewhere an opacity per interval of 0.005."""
    return torch.where((positions > 0.5).all(-1), 30.0, 0.05)


def test_cells_are_occupied_above_the_threshold():
    sampler = cube_sampler(occupancy_threshold=0.01)
    sampler.update(in_one_corner, 0)
    wanted = torch.zeros(8, 8, 8, dtype=torch.bool)
    wanted[6:, 6:, 6:] = True
    assert torch.equal(sampler.occupancy, wanted) and sampler.stats()["occupied"] == round(8 / 512, 4)
    sampler = cube_sampler(occupancy_threshold=0.001)
    sampler.update(in_one_corner, 0)
    assert sampler.occupancy.all()


def test_a_field_that_is_empty_all_over_keeps_its_densest_cells():
    """Below the threshold the mean takes its place: what is to be learned must have samples."""
    sampler = cube_sampler(occupancy_threshold=0.5)
    sampler.update(lambda positions: 0.01 * (positions[:, 0] + 1), 0)
    assert sampler.occupancy[7].all() and not sampler.occupancy[0].any()


def test_what_is_gone_is_forgotten_step_by_step():
    """A cell's opacity falls by a tenth an update: from 0.95 it is below one half after seven."""
    sampler = cube_sampler(occupancy_threshold=0.5, update_every=1, warmup_steps=100)
    sampler.update(in_one_corner, 0)
    occupied = []
    for step in range(1, 10):
        sampler.update(lambda positions: torch.full(positions.shape[:1], 7.1), step)  # an opacity of 0.508
        occupied.append(int(sampler.opacity.max() > 0.51))
    assert occupied == [1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_updates_come_every_few_steps_and_at_first_of_all_cells():
    sampler = cube_sampler(update_every=4, warmup_steps=5)
    counts = []
    for step in range(10):
        looked: list[int] = []
        sampler.update(lambda positions: (looked.append(len(positions)), thin(positions))[1], step)  # noqa: B023
        counts.append(sum(looked))
    assert counts == [512, 0, 0, 0, 512, 0, 0, 0, 128 + 64, 0]


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_cells_that_no_camera_sees_are_never_occupied(kind: str):
    sampler = sampler_of(kind)
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


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_seen_cells_are_saved_with_the_model(kind: str):
    sampler, other = sampler_of(kind), sampler_of(kind)
    sampler.observe(forward_cameras())
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.seen, sampler.seen) and torch.equal(other.occupancy, sampler.occupancy)


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_blocks_that_no_training_ray_reaches_are_empty_until_one_does(kind: str):
    sampler = sampler_of(kind, warmup_steps=0, update_every=1)
    sampler.train()
    reached, behind = (3.0, 0.0, 0.0), (0.0, 0.0, 8.0)

    def wall(points: Tensor) -> Tensor:
        return torch.full(points.shape[:1], 1e4)

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


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_rows_of_a_capacity_that_nobody_uses_reach_nothing(kind: str):
    """They lie at the origin, which then would never be emptied."""
    sampler = sampler_of(kind)
    sampler.train()
    sampler.unreached.fill_(7)
    sampler(ray((2.5, 0, 0), (1.0, 0, 0)), lambda points: torch.full(points.shape[:1], 1e4), capacity=64)
    cells = [cell_of(sampler, point) for point in ((3.0, 0.0, 0.0), (0.0, 0.0, 0.0))]
    reached, origin = (sampler.unreached[tuple(i // BLOCK for i in cell)] for cell in cells)
    assert (reached, origin) == (0, 7)


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_images_that_take_turns_empty_no_blocks(kind: str):
    sampler = sampler_of(kind, warmup_steps=0, update_every=1)
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
