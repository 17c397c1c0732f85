# SPDX-License-Identifier: Apache-2.0
"""Models by name: `model.kind` chooses one."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import torch

from nerfkit.config import Config
from nerfkit.errors import ConfigError
from nerfkit.model.base import Model
from nerfkit.model.renderer import Renderer
from nerfkit.safe_io import did_you_mean

MODELS: dict[str, type[Model]] = {"field": Renderer}


def register_model(kind: str) -> Callable[[type[Model]], type[Model]]:
    """Decorator: register a model as `model.kind`; a later one of that name replaces an earlier one."""

    def register(model: type[Model]) -> type[Model]:
        MODELS[kind] = model
        return model

    return register


def import_models(module: str) -> None:
    """Import a module of the user's that registers models. Raises ConfigError."""
    if module:
        import_own(module, "model.module")


def import_own(module: str, option: str) -> ModuleType:
    """A module of the user's, which `option` names, from the working folder if nowhere else. Raises ConfigError."""
    here = os.getcwd()
    is_new = here not in sys.path
    sys.path += [here] * is_new  # last, and for this import alone: the folder may hold files called as packages are
    try:
        return importlib.import_module(module)
    except (ImportError, SyntaxError, ValueError, TypeError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "?")
        where = "; start nerfkit in the folder of that module, or add the folder to PYTHONPATH" * is_missing
        raise ConfigError(f"{option}: cannot import {module!r}: {error}{where}") from None
    finally:
        if is_new:
            sys.path.remove(here)


def build_model(config: Config) -> Model:
    """A new model of `config.model.kind`; raises ConfigError if none of that name is registered."""
    return model_class(config)(config)


def model_class(config: Config) -> type[Model]:
    """The class of `config.model.kind`; raises ConfigError if none of that name is registered."""
    kind = config.model.kind
    if kind not in MODELS:
        module = config.model.module or "mypackage.mymodel"
        raise ConfigError(
            f"there is no model {kind!r}, only {', '.join(map(repr, MODELS))}{did_you_mean(kind, MODELS)}; for one of "
            f"your own, whose code you trust, add --model.module {module} to nerfkit train, --module {module} to the "
            "other commands"
        )
    return MODELS[kind]


def model_bytes(config: Config) -> int:
    """Bytes of the model's parameters and buffers, without allocating them; 0 if unknown."""
    try:
        with torch.device("meta"):
            model = build_model(config)
    except RuntimeError:  # a custom model whose constructor reads values
        return 0
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))
