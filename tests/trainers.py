# SPDX-License-Identifier: Apache-2.0
"""Trainers of the toy scene."""

import torch

from nerfkit.data.load import load_scene
from nerfkit.training.trainer import Trainer


def make_trainer(config, model=None, **options) -> Trainer:
    """`model`: None, a class of models, or a function of the configuration that returns one."""
    views = load_scene(config.data.path).split("train")
    images = views.load(lambda text: None)
    if model is not None and not isinstance(model, type):
        torch.manual_seed(config.seed)
        model = model(config)
    return Trainer(config, views.cameras, images, model=model, **options)


def trained(config, steps: int, model=None, **options) -> Trainer:
    trainer = make_trainer(config, model, **options)
    for _ in range(steps):
        trainer.timed_step()
    return trainer


def state_of(trainer: Trainer) -> dict:
    return trainer.model.state_dict() | {"random": trainer.generator.get_state()}
