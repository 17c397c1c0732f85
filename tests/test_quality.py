# SPDX-License-Identifier: Apache-2.0
"""Whether training still learns the shipped scenes, an object and a room: what held-out views score, and the depth."""

from functools import cache
from statistics import mean

import numpy as np
import pytest
import torch
from torch import Tensor

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.data.images.pixels import blend
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.metrics import psnr
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.trainer import Trainer
from tests.test_shipped_data import ROOT, needs_images_of

WHITE = torch.ones(3)

# The object: PSNR of its 20 test views at 50x50 in dB, seeds 0 to 7, measured on a CPU:
#
#             mean  deviation  lowest  highest
#     field  23.14       0.42   22.46    23.65
#   encoder  24.02       0.35   23.30    24.34
#      lltm  23.45       0.64   22.68    24.54
#      both  23.78       0.38   23.21    24.34
#
# The deviation of one run is 0.46 over all, that of a mean of three seeds 0.27.
MARGIN = 0.8  # three deviations of a mean of three
FLOOR = 21.5  # three and a half deviations of one run below the field's mean
VARIANTS = {"field": (False, False), "both": (True, True)}

# The room: PSNR of its 9 test views at 120x80 and median relative error of their depth, 1200 small steps, on a CPU:
#
#              seed 0   20.22 dB  0.056
#              seed 1   20.31 dB  0.050
#              seed 2   20.24 dB  0.052
#            in a box   19.13 dB  0.246
#    lens turned over   19.10 dB  0.116   the distortion's sign is wrong, in training and in scoring
#        near ignored   is not seen here: see tests/test_captures.py
ROOM_FLOOR, ROOM_MOST_OFF = 19.8, 0.075  # between the seeds and the faults

# configs/room_cpu.toml at full size, 2000 steps: 20.37 dB and 0.024 with seed 0, 20.66 dB and 0.023 with seed 1.
WHOLE_FLOOR, WHOLE_MOST_OFF = 19.7, 0.045


@cache
def scene(kind: str, downscale: float) -> Scene:
    folder = ROOT / "data" / kind
    needs_images_of(folder / ("images" if kind == "room" else "train"))
    return load_scene(str(folder), downscale=downscale)


def options(preset: str, steps: int, downscale: float) -> Config:
    config = config_module.load([preset])
    config.seed, config.device, config.data.downscale = 0, "cpu", downscale
    config.trainer.steps, config.trainer.max_seconds = steps, 0
    return config


@pytest.fixture
def short_warmup(monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 64)


@cache
def object_score(variant: str, seed: int) -> float:
    """Mean PSNR of the test views after three seconds of training in miniature."""
    config = options("orrery_cpu", 400, 8)
    config.seed = seed
    config.model.encoder, config.model.aggregator = VARIANTS[variant]
    config.model.log2_table, config.model.base_resolution, config.model.max_resolution = 14, 16, 96
    config.model.hidden = 16
    config.sampling.step, config.sampling.occupancy_resolution = 0.04, 24
    config.trainer.samples = 4096
    train, test = (scene("orrery", 8).split(split) for split in ("train", "test"))
    trainer = Trainer(config, train.cameras, train.load())
    trainer.train()
    image_of, images = ImageRenderer(trainer.model.eval(), WHITE), test.load()
    assert (test.cameras.width, test.cameras.height) == (50, 50)
    views = range(len(test.cameras))
    return mean(psnr(image_of(test.cameras, view)["rgb"], blend(images.image(view), WHITE)) for view in views)


def test_the_shipped_scene_is_learned(short_warmup):
    assert object_score("both", 0) > FLOOR


@pytest.mark.slow
def test_no_stage_along_the_ray_costs_quality(short_warmup):
    """Means of three seeds; see the table above for what is chance."""
    field, both = ([object_score(variant, seed) for seed in (0, 1, 2)] for variant in ("field", "both"))
    assert min(*field, *both) > FLOOR
    assert mean(both) > mean(field) - MARGIN, (field, both)


def true_ranges(name: str, downscale: int) -> Tensor:
    """Exact ranges [H, W] in the files' units, means of `downscale` x `downscale` pixels; infinite without surface."""
    full = np.load(ROOT / "data" / "room" / "depth" / f"{name}.npz")["depth_ray"].astype(np.float32)
    height, width = full.shape
    blocks = full.reshape(height // downscale, downscale, width // downscale, downscale)
    return torch.from_numpy(blocks.mean((1, 3)))


def room_scores(config: Config) -> tuple[float, float]:
    """Mean PSNR of the test views in dB, and the median relative error of their depth where there is a surface."""
    room = scene("room", config.data.downscale)
    trainer = Trainer(config, scene=room)
    trainer.train()
    image_of, test = ImageRenderer(trainer.model.eval(), WHITE), room.split("test")
    truth, errors, scores = test.load(), [], []
    for view, name in enumerate(test.names):
        images = image_of(test.cameras, view, ("rgb", "depth"))
        scores.append(psnr(images["rgb"], truth.image(view) / 255))
        true = true_ranges(name, int(config.data.downscale))
        errors.append(((room.frame.distance_to_input(images["depth_ray"]) - true).abs() / true)[true.isfinite()])
    return mean(scores), torch.cat(errors).median().item()


@pytest.mark.slow
def test_the_room_is_learned(short_warmup):
    """At half its size, in steps."""
    config = options("room_cpu", 1200, 2)
    config.model.log2_table, config.model.hidden = 16, 16
    config.sampling.occupancy_resolution = 64
    config.sampling.step = config.sampling.cone = 0.06  # few intervals, so that a step has many rays
    config.trainer.samples = 4096
    score, error = room_scores(config)
    assert score > ROOM_FLOOR and error < ROOM_MOST_OFF, (score, error)


@pytest.mark.long
def test_the_rooms_recipe_in_a_quarter_of_its_steps():
    score, error = room_scores(options("room_cpu", 2000, 1))
    assert score > WHOLE_FLOOR and error < WHOLE_MOST_OFF, (score, error)
