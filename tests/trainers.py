# SPDX-License-Identifier: Apache-2.0
"""Trainers of the toy scene."""

from pathlib import Path

import torch

from nerfkit.data.load import load_scene
from nerfkit.model.renderer import Renderer
from nerfkit.training.trainer import Trainer


def make_trainer(config, folder: Path, model=Renderer) -> Trainer:
    folder.mkdir(exist_ok=True)
    views = load_scene(config.data.path).split("train")
    return Trainer(config, views.cameras, views.load(lambda text: None), folder, torch.device(config.device), model)


def loss_of_a_step(trainer: Trainer) -> float:
    trainer.train_step()
    return trainer.training_step.loss.item()


def state_of(trainer: Trainer) -> dict:
    return trainer.renderer.state_dict() | {"random": torch.get_rng_state()}
