# SPDX-License-Identifier: Apache-2.0
"""How long a training takes on this machine, and how large its images are worth while: some steps are tried."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from nerfkit.config import Config, DataConfig
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.capture import PosedImage
from nerfkit.data.scene import Scene, Views
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.device import pick_device
from nerfkit.training.trainer import Trainer

SIDE, VIEWS = 128, 8  # pixels of a side, and views, that are tried
LATER = 1000  # the step that is the first tried one: when the occupancy grid is updated seldom
UNTIMED, TIMED, SECONDS = 3, 48, 0.7  # steps that are tried, and how long the timed ones may take together
SAMPLES_PER_RAY = 16  # of a field that has found what is empty
FORWARD = 1 / 3  # share of a step that is rendering
LEAST_SIDE = 128  # pixels: no smaller images are proposed


def forecast(
    transform: SceneTransform, data: DataConfig, images: list[PosedImage], n_test: int
) -> tuple[float, float, str]:
    """The data.downscale at which training draws each pixel about once, unless one is given, the seconds that training
    and scoring take with it and the default options, and on which device.

    Of training `images` whose lenses are of the size that data.downscale gives, and `n_test` more.
    """
    device, chosen = pick_device("auto"), evenly(len(images), VIEWS)
    poses = transform.to_model(np.stack([images[k].camera_to_world for k in chosen]))
    lenses = [images[k].lens.resized(SIDE, SIDE) for k in chosen]
    cameras = Cameras.from_lenses(torch.tensor(poses, dtype=torch.float32), lenses)
    scene = Scene("", "", {"train": Views(cameras, [], [])}, tuple(transform.up.tolist()), transform)
    gray = torch.full((len(chosen), SIDE, SIDE, 3), 128, dtype=torch.uint8)
    trainer = Trainer(Config(data=data), cameras, gray, scene=scene, device=device)
    settings, trainer.step = trainer.config.trainer, LATER
    for _ in range(UNTIMED):
        trainer.train_step()
    trainer.settle()
    began, first = time.perf_counter(), trainer.step
    while time.perf_counter() - began < SECONDS and trainer.step - first < TIMED:
        trainer.train_step()
    trainer.settle()
    trainer.training_step.release_graph()
    step = (time.perf_counter() - began) / (trainer.step - first)
    n_steps = min(settings.steps, settings.max_seconds / step) if settings.max_seconds else settings.steps
    lenses = [image.lens for image in images]
    n_pixels, least = sum(x.width * x.height for x in lenses), min(min(x.width, x.height) for x in lenses) / LEAST_SIDE
    drawn = n_steps * settings.samples_per_step / SAMPLES_PER_RAY
    halvings = min(round(math.log2(n_pixels / drawn) / 2), math.floor(math.log2(least)))
    smaller = 2.0 ** max(0, halvings) if data.downscale == 1 else 1.0
    scored = n_test / len(images) * n_pixels / smaller**2 * SAMPLES_PER_RAY / settings.samples_per_step  # in steps
    return data.downscale * smaller, step * (n_steps + FORWARD * scored), str(device)
