# SPDX-License-Identifier: Apache-2.0
"""Trainers of the toy scene."""

import torch

from nerfkit.data.load import load_scene
from nerfkit.model.registry import build_model
from nerfkit.training.randomness import seed_everything
from nerfkit.training.trainer import Trainer


def make_trainer(config, model=build_model, **options) -> Trainer:
    views = load_scene(config.data.path).split("train")
    images = views.load(lambda text: None)
    seed_everything(config.seed)
    return Trainer(config, views.cameras, images, model=model(config), **options)


def loss_of_a_step(trainer: Trainer) -> float:
    trainer.train_step()
    return trainer.training_step.loss.item()


def state_of(trainer: Trainer) -> dict:
    return trainer.model.state_dict() | {"random": torch.get_rng_state()}
