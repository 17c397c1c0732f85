# SPDX-License-Identifier: Apache-2.0
"""Whether training still learns the shipped room, an unbounded place: what held-out views score, and their depth."""

from functools import cache
from statistics import mean

import numpy as np
import pytest
import torch
from torch import Tensor

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.metrics import psnr
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.trainer import Trainer
from tests.shipped_scene import ROOT, needs_images_of

DATA = ROOT / "data" / "room"

# PSNR of the 9 test views at 120x80 and median relative error of their depth, 1200 small steps, measured on a CPU core:
#
#              seed 0   20.22 dB  0.056
#              seed 1   20.31 dB  0.050
#              seed 2   20.24 dB  0.052
#            in a box   19.13 dB  0.246
#    lens turned over   19.10 dB  0.116   the distortion's sign is wrong, in training and in scoring
#        near ignored   is not seen here: see tests/test_captures.py
FLOOR, MOST_OFF = 19.8, 0.075  # between the seeds and the faults

# configs/room_cpu.toml at full size, 2000 steps: 20.37 dB and 0.024 with seed 0, 20.66 dB and 0.023 with seed 1.
WHOLE_FLOOR, WHOLE_MOST_OFF = 19.7, 0.045


def small_options(seed: int) -> Config:
    """The room at half its size, in steps."""
    config = config_module.load(["room_cpu"])
    config.seed, config.device, config.data.downscale = seed, "cpu", 2
    config.model.log2_table, config.model.hidden = 16, 16
    config.sampling.occupancy_resolution = 64
    config.sampling.step = config.sampling.cone = 0.06  # few intervals, so that a step has many rays
    config.trainer.steps, config.trainer.max_seconds = 1200, 0
    config.trainer.samples, config.trainer.max_rays = 4096, 4096
    config.trainer.warmup, config.trainer.background_warmup = 30, 60
    return config


@cache
def room(downscale: float) -> Scene:
    needs_images_of(DATA / "images")
    return load_scene(str(DATA), downscale=downscale)


def true_ranges(name: str, downscale: int) -> Tensor:
    """Exact ranges [H, W] in the files' units, means of `downscale` x `downscale` pixels; infinite without surface."""
    full = np.load(DATA / "depth" / f"{name}.npz")["depth_ray"].astype(np.float32)
    height, width = full.shape
    blocks = full.reshape(height // downscale, downscale, width // downscale, downscale)
    return torch.from_numpy(blocks.mean((1, 3)))


def trained(config: Config) -> tuple[float, float]:
    """Mean PSNR of the test views in dB, and the median relative error of their depth where there is a surface."""
    scene = room(config.data.downscale)
    views = scene.split("train")
    trainer = Trainer(config, views.cameras, views.load(), scene=scene)
    trainer.train()
    image_of, test = ImageRenderer(trainer.model.eval(), torch.ones(3)), scene.split("test")
    truth, errors, scores = test.load(), [], []
    for view, name in enumerate(test.names):
        images = image_of(test.cameras, view, ("rgb", "depth"))
        scores.append(psnr(images["rgb"], truth.image(view) / 255))
        true = true_ranges(name, int(config.data.downscale))
        surface = true.isfinite()
        errors.append(((scene.frame.distance_to_input(images["depth_ray"]) - true).abs() / true)[surface])
    return mean(scores), torch.cat(errors).median().item()


@pytest.mark.slow
def test_the_room_is_learned(monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 64)
    score, error = trained(small_options(seed=0))
    assert score > FLOOR and error < MOST_OFF, (score, error)


@pytest.mark.long
def test_the_rooms_recipe_in_a_quarter_of_its_steps():
    config = config_module.load(["room_cpu"])
    config.seed, config.device, config.trainer.steps, config.trainer.max_seconds = 0, "cpu", 2000, 0
    score, error = trained(config)
    assert score > WHOLE_FLOOR and error < WHOLE_MOST_OFF, (score, error)
