# SPDX-License-Identifier: Apache-2.0
"""The model of a training: which one, drawn from the seed, and whether it can see what the cameras look at."""

import threading
from collections.abc import Sequence

import torch

from nerfkit.config import Config, flat, to_dict
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.scene_transform.diagnostics import NEXT_TO_NONE
from nerfkit.errors import ConfigError, SceneError
from nerfkit.model.base import Model
from nerfkit.model.registry import MODELS, import_models, model_class

CHECKED_VIEWS = 256  # whose rays are asked whether they see anything
CHECKED_SIDE = 17  # rays of such a view, each way

_building = threading.Lock()


def class_of(config: Config, model: Model | type[Model] | None) -> type[Model]:
    if model is not None:
        return model if isinstance(model, type) else type(model)
    if config.model.kind not in MODELS:
        import_models(config.model.module)
    return model_class(config)


def built(config: Config, model: Model | type[Model], generator: torch.Generator) -> Model:
    """The model, drawn from the seed; raises ConfigError for one that was built from other options.

    Torch's generators stay as they are; on a CPU, the training's `generator` goes on behind the model's own numbers.
    """
    device = generator.device
    if isinstance(model, type):
        with _building, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(config.seed)
            made = model(config)
            if device.type == "cpu":
                generator.set_state(torch.get_rng_state())
        return made.to(device)
    model.backends = config.ops.choices()
    own, wanted = (flat(to_dict(options)) for options in (model.config, config))
    shaping = ("model.", "sampling.", "data.box")
    own.pop("model.kind")
    for name in own:
        if name.startswith(shaping) and own[name] != wanted.get(name):
            raise ConfigError(
                f"the model was built with {name} {own[name]}, this training has {wanted.get(name)}; give the model's "
                "class, or build the model from config.resolved(scene, device, model_class)"
            )
    return model.to(device)


def check_seen(model: Model, cameras: Cameras, box: Sequence[float]) -> None:
    """Raise SceneError if the model has nowhere to put a sample, but on next to no ray of the views."""
    device = cameras.focal.device
    views = torch.arange(0, len(cameras), max(len(cameras) // CHECKED_VIEWS, 1), device=device)
    parts = torch.arange(CHECKED_SIDE, device=device)
    view, row, column = (x.flatten() for x in torch.meshgrid(views, parts, parts, indexing="ij"))
    width, height = torch.tensor(cameras.sizes(), device=device)[view].unbind(-1)
    row, column = row * height // CHECKED_SIDE, column * width // CHECKED_SIDE
    rotation = cameras.camera_to_world[:, :, :3]
    error = (rotation @ rotation.mT - torch.eye(3, device=device, dtype=rotation.dtype)).abs().amax()
    if not error < 1e-2 or not cameras.positions.isfinite().all():  # NaN is not
        raise SceneError("camera_to_world holds matrices that are not rigid: scaled, skewed or not finite")
    seen = model.hits(cameras.rays(view, column, row))
    if seen.double().mean() < NEXT_TO_NONE or not seen.any():
        low, high = ([round(x, 3) for x in corner.tolist()] for corner in cameras.positions.aminmax(dim=0))
        raise SceneError(
            f"almost no ray of the training views meets data.box, {box[:3]} to {box[3:]}, at a distance between "
            f"sampling.near and sampling.far. The cameras are between {low} and {high}. Set data.box around what they "
            "look at; if it is right, check the poses: they have to be camera-to-world, with OpenGL axes"
        )
