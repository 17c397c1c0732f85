# SPDX-License-Identifier: Apache-2.0
"""Small samplers, rays and cameras for tests."""

import torch
from torch import Tensor

from nerfkit.config import Config, DataConfig, SamplingConfig
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.cameras.lens import Lens
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.model.sampling import build_sampler

CUBE = torch.tensor([[-1.0] * 3, [1.0] * 3])
BOXES = {"contracted": CUBE, "box": 10 * CUBE}


def sampler_of(kind: str = "contracted", **options) -> OccupancyGrid:
    values = {"step": 0.05, "cone": 0.05, "near": 0.1, "far": 100.0, "occupancy_resolution": 16} | options
    data = DataConfig(box=tuple(BOXES[kind].flatten().tolist()))
    return built(Config(data=data), kind, values)


def cube_sampler(**options) -> OccupancyGrid:
    """In a box from -1 to 1."""
    values = {"step": 0.1, "occupancy_resolution": 8} | options
    return built(Config(size="large", data=DataConfig(box=(-1.0, -1, -1, 1, 1, 1))), "box", values)


def built(config: Config, kind: str, values: dict) -> OccupancyGrid:
    """A sampler of such options; what is none of them is an attribute."""
    own = {name: values.pop(name) for name in ("update_every", "warmup_steps") if name in values}
    config.sampling = SamplingConfig(kind=kind, **values)
    sampler = build_sampler(config.resolved())
    vars(sampler).update(own)
    return sampler


def ray(origin: tuple[float, ...], direction: tuple[float, ...]) -> Rays:
    return Rays(torch.tensor([origin]), torch.nn.functional.normalize(torch.tensor([direction]), dim=-1))


def thin(positions: Tensor) -> Tensor:
    return torch.full(positions.shape[:1], 1e-4)


def forward_cameras(n: int = 2, lens: Lens | None = None) -> Cameras:
    """Cameras near the origin, side by side, which look down -z with 90 degrees."""
    pose = torch.eye(4)[None, :3].repeat(n, 1, 1)
    pose[:, 0, 3] = torch.linspace(-0.1, 0.1, n)
    return Cameras.of_lenses(pose, [lens or Lens("PINHOLE", (8.0, 8.0, 8.0, 8.0), 16, 16)] * n)


def cell_of(sampler: OccupancyGrid, point: tuple[float, ...]) -> tuple[int, ...]:
    side = sampler.config.occupancy_resolution
    unit = sampler.unit_of(torch.tensor([point]))[0]  # [3]
    return tuple((unit * side).long().clamp(max=side - 1).tolist())
