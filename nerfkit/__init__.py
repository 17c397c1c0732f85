# SPDX-License-Identifier: Apache-2.0
"""nerfkit: radiance fields in PyTorch with ops of their own.

>>> import nerfkit
>>> nerfkit.Config().model.kind
'field'
"""

import importlib
from typing import TYPE_CHECKING, Any

from nerfkit.version import __version__

if TYPE_CHECKING:
    from nerfkit import config as config
    from nerfkit import nn as nn
    from nerfkit import ops as ops
    from nerfkit import parallel as parallel
    from nerfkit.config import Config as Config
    from nerfkit.data.cameras.cameras import Cameras as Cameras
    from nerfkit.data.cameras.cameras import Rays as Rays
    from nerfkit.data.images.batch import Batch as Batch
    from nerfkit.data.images.pixels import blend as blend
    from nerfkit.data.load import load_scene as load_scene
    from nerfkit.data.scene import Scene as Scene
    from nerfkit.data.scene import Views as Views
    from nerfkit.errors import UserError as UserError
    from nerfkit.model.base import Model as Model
    from nerfkit.model.compositing import Rendering as Rendering
    from nerfkit.model.compositing import composite_samples as composite_samples
    from nerfkit.model.registry import build_model as build_model
    from nerfkit.model.registry import register_model as register_model
    from nerfkit.model.renderer import Renderer as Renderer
    from nerfkit.model.sampling import BoxSampler as BoxSampler
    from nerfkit.model.sampling import Samples as Samples
    from nerfkit.model.sampling import build_sampler as build_sampler
    from nerfkit.rendering.image_renderer import ImageRenderer as ImageRenderer
    from nerfkit.training.run.load import Run as Run
    from nerfkit.training.run.load import load_run as load_run
    from nerfkit.training.step.losses import squared_error as squared_error
    from nerfkit.training.step.losses import weighted_mean as weighted_mean
    from nerfkit.training.step.optim import LazyAdam as LazyAdam
    from nerfkit.training.trainer import Trainer as Trainer

# Public names, imported at first use, so that nerfkit.nn alone imports nothing else.
_PATHS = (
    "config.Config data.images.batch.Batch data.cameras.cameras.Cameras data.cameras.cameras.Rays "
    "data.load.load_scene data.images.pixels.blend data.scene.Scene data.scene.Views errors.UserError "
    "model.base.Model model.compositing.Rendering model.compositing.composite_samples model.registry.build_model "
    "model.registry.register_model model.renderer.Renderer model.sampling.build_sampler model.sampling.BoxSampler "
    "model.sampling.Samples rendering.image_renderer.ImageRenderer training.step.losses.squared_error "
    "training.step.losses.weighted_mean training.step.optim.LazyAdam training.run.load.Run "
    "training.run.load.load_run training.trainer.Trainer"
).split()
_HOME = {name: f"nerfkit.{module}" for module, _, name in (path.rpartition(".") for path in _PATHS)}
_SUBPACKAGES = ("config", "nn", "ops", "parallel")

__all__ = ["__version__", *_SUBPACKAGES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"nerfkit.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'nerfkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
