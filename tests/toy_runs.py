# SPDX-License-Identifier: Apache-2.0
"""Options that train the toy scene within a second."""

from pathlib import Path

from nerfkit import config as config_module
from tests.toy_scene import write_scene

BOX = (-0.8, -0.8, -0.7, 0.8, 0.8, 0.9)
STEPS = 60


def write_options(folder: Path) -> Path:
    """The toy scene in `folder`/scene, and a file of options for it."""
    config = config_module.Config(device="cpu")
    config.data.path, config.data.box = str(write_scene(folder / "scene", size=(15, 13))), BOX
    config.model.levels, config.model.log2_table, config.model.max_resolution = 2, 10, 24
    config.model.hidden = config.model.state = 16
    config.sampling.step, config.sampling.occupancy_resolution = 0.08, 8
    config.trainer.steps, config.trainer.samples, config.trainer.log_every = STEPS, 1024, 20
    config.trainer.learning_rate, config.trainer.warmup, config.trainer.background_warmup = 0.03, 5, 0
    config.eval.comparisons = 1
    config_module.dump(config, folder / "options.toml")
    return folder / "options.toml"
