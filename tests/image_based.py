# SPDX-License-Identifier: Apache-2.0
"""Small trainings of the model "images", and images of which every pixel is known."""

import torch

from nerfkit.config import SamplingConfig
from nerfkit.data.cameras import Cameras
from nerfkit.data.lens import Lens
from nerfkit.data.pool import ImagePool
from nerfkit.model.images.blender import Blender
from nerfkit.model.images.depth_maps import EVERY, DepthMaps
from nerfkit.model.images.sources import Sources
from nerfkit.model.renderer import Renderer
from tests.rigs import look_at
from tests.trainers import make_trainer


def of_images(config):
    """The configuration, of the model "images"."""
    config.model.kind, config.model.options = "images", {"views": 3, "state": 8}
    config.model.density_bias = 4.0  # surfaces from the start
    return config


def disturb(blender: Blender, scale: float = 0.5) -> None:
    """Make the residual something: it is zero at first."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in blender.residual.parameters():
            parameter.copy_(scale * torch.randn_like(parameter))


def trained(config, steps: int = 40):
    trainer = make_trainer(config)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def see_all(trainer) -> None:
    """Give every view its turn of a depth map."""
    model = trainer.model
    for step in range(0, EVERY * len(trainer.cameras), EVERY):
        model.depth_maps.update(trainer.cameras, step, lambda rays: Renderer.forward(model, rays, torch.ones(3)))


def lenses() -> list[Lens]:
    return [
        Lens("OPENCV", (40.0, 42.0, 20.3, 15.1, -0.2, 0.05, 0.003, -0.002), 41, 30),
        Lens("PINHOLE", (30.0, 31.0, 13.0, 17.5), 27, 33),
        Lens("OPENCV_FISHEYE", (25.0, 25.0, 18.0, 14.0, 0.05, 0.0, 0.0, 0.0), 36, 28),
    ]


def mixed_sources(masked: bool = False) -> tuple[Sources, DepthMaps, Cameras, ImagePool]:
    """Three images of three lenses and sizes, whose colors are their own pixels' columns and rows; all see 2 far."""
    eyes = torch.tensor([[2.0, 0.3, 0.2], [1.8, -0.5, 0.4], [1.5, 0.8, -0.3]]).double().numpy()
    poses = torch.tensor(look_at(eyes, eyes[0] * 0), dtype=torch.float32)
    cameras = Cameras.of_lenses(poses, lenses())
    parts = []
    for view, (width, height) in enumerate(cameras.sizes()):
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        parts.append(torch.stack([column * 4, row * 4, torch.full_like(row, 60 * view)], -1).flatten(0, 1))
    pixels = torch.cat(parts).to(torch.uint8)
    ends = torch.tensor([len(part) for part in parts]).cumsum(0)
    first = torch.cat([ends.new_zeros(1), ends[:-1]])
    ignored = torch.zeros(len(pixels), dtype=torch.bool) if masked else None
    pool = ImagePool(pixels, first, tuple(cameras.sizes()), ignored)
    maps = DepthMaps(cameras, SamplingConfig())
    maps.depths.fill_(2.0)
    return Sources(cameras, pool), maps, cameras, pool
