# SPDX-License-Identifier: Apache-2.0
"""The toy scene as people photograph it: exposure that changes from image to image, poses that are not exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images.pixels import blend
from nerfkit.metrics import color_corrected, psnr
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.evaluator import aligned
from nerfkit.training.step.adjustments import rotated
from nerfkit.training.trainer import Trainer
from tests.toy_scene import BALLS, RADII, drawn_eye, look_at, trace_directions

WIDTH, HEIGHT, N_TRAIN, N_TEST, DISTANCE = 40, 30, 14, 3, 3.0
LENS = Lens("OPENCV", (54.0, 56.0, 20.5, 14.6, -0.12, 0.03, 5e-4, -3e-4), WIDTH, HEIGHT)
WHITE = torch.ones(3)


@dataclass
class NoisyCapture:
    """Cameras as they are given, where they really stood, and what they saw."""

    given: Cameras  # of the training views
    true: Cameras
    images: Tensor  # [V, H, W, 4] uint8
    test: Cameras
    truth: Tensor  # [3, H, W, 3] in [0, 1], over white


def poses(n: int) -> Tensor:
    """Camera-to-world [n, 3, 4] around the balls."""
    generator = np.random.default_rng(0)
    found = [look_at(DISTANCE * drawn_eye(generator))[:3] for _ in range(n)]
    return torch.tensor(np.stack(found), dtype=torch.float32)


def capture(seed: int, gains: float = 0.0, degrees: float = 0.0) -> NoisyCapture:
    """The balls through a lens with distortion. Each training image is `gains` brighter or darker, and a third of
    that in each channel (standard deviations of logarithms); its pose is off by `degrees`, and by as much of a radian
    of the distance, rms. The mean of both is none."""
    n = N_TRAIN + N_TEST
    cameras = Cameras.from_lenses(poses(n), [LENS] * n)
    straight = Cameras.from_lenses(torch.eye(4)[None, :3], [LENS])
    local = straight.image_rays(0).directions.unflatten(0, (HEIGHT, WIDTH)).double().numpy()  # [H, W, 3]
    images = torch.tensor(np.stack([trace_directions(p.double().numpy(), local) for p in cameras.camera_to_world]))
    truth = blend(images[N_TRAIN:], WHITE)
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(N_TRAIN, 1, generator=generator) + torch.randn(N_TRAIN, 3, generator=generator) / 3
    factors = torch.exp(gains * spread)  # [V, 3]
    factors /= factors.mean(0)
    images = images[:N_TRAIN].clone()
    images[..., :3] = (images[..., :3] * factors[:, None, None]).clamp(0, 255).round().to(torch.uint8)
    errors = torch.randn(N_TRAIN, 6, generator=generator)
    errors = (errors - errors.mean(0)) * math.radians(degrees) / math.sqrt(3)
    true, test = cameras[:N_TRAIN], cameras[N_TRAIN:]
    axes = rotated(true.camera_to_world[:, :, :3].mT, errors[:, None, :3]).mT
    position = true.positions + DISTANCE * errors[:, 3:]
    given = replace(true, camera_to_world=torch.cat([axes, position[..., None]], dim=-1))
    return NoisyCapture(given, true, images, test, truth)


def trained(config: Config, of: NoisyCapture) -> Trainer:
    config.seed, config.trainer.steps, config.data.background = 0, 400, "random"
    config.trainer.learning_rate = 0.015
    trainer = Trainer(config, of.given, of.images, device="cpu")
    trainer.train()
    trainer.model.eval()
    return trainer


def score(trainer: Trainer, of: NoisyCapture, kind: str = "") -> float:
    """Mean PSNR of the test views: as they are, with the light fitted ("cc") or the pose ("aligned")."""
    image_of, found = ImageRenderer(trainer.model, WHITE), []
    for view, truth in enumerate(of.truth):
        cameras = of.test
        if kind == "aligned":
            cameras, view = aligned(trainer.model, trainer.config, cameras, view, truth, None, WHITE), 0
        seen = image_of(cameras, view)
        render = color_corrected(seen["rgb"], seen["opacity"], truth, WHITE) if kind == "cc" else seen["rgb"]
        found.append(psnr(render, truth))
    return sum(found) / len(found)


def pixels_off(cameras: Cameras, true: Cameras) -> float:
    """Where cameras see the balls' surfaces, beside where they should [pixels, rms]."""
    directions = np.random.default_rng(1).normal(size=(3, 50, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    points = (BALLS[:, None] + RADII[:, None, None] * directions).reshape(-1, 3)
    points = torch.tensor(points, dtype=torch.float32)
    errors = [cameras.project(points, view)[0] - true.project(points, view)[0] for view in range(len(true))]
    return float(torch.stack(errors).square().sum(-1).mean().sqrt())
