# SPDX-License-Identifier: Apache-2.0
"""From the options that were asked for to those that run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from nerfkit.config.checks import check
from nerfkit.config.options import Config
from nerfkit.config.recipe import FIELD, OTHERWISE, Facts, Found, Recipe
from nerfkit.config.toml_files import changes_of
from nerfkit.config.values import flat
from nerfkit.errors import ConfigError


class Decision(NamedTuple):
    """The value of an option that may be auto."""

    value: Any
    by: str  # user, preset, scene, device or model
    why: str


@dataclass
class ResolvedConfig(Config):
    """Options of which none is auto."""

    decisions: dict[str, Decision] = field(default_factory=dict)  # by the option's full name


def resolved(
    config: Config, scene: Any = None, device: Any = None, model_class: Any = None, presets: Iterable[str] = ()
) -> ResolvedConfig:
    """See `Config.resolved`."""
    check(config)
    before = config.decisions if isinstance(config, ResolvedConfig) else {}
    if before and scene is None:
        return config
    recipe = _recipe_of(config, model_class)
    groups = {f.name: getattr(config, f.name) for f in fields(Config)}
    new = ResolvedConfig(**{name: replace(x) if hasattr(x, "__dataclass_fields__") else x for name, x in groups.items()})
    _take_from_scene(new, scene)
    on_gpu = _is_gpu(device or config.device)
    facts = Facts(new, scene, on_gpu)
    in_presets = {name: (value, preset) for preset in presets for name, value in flat(changes_of(preset)).items()}
    for option, cases in recipe.items():
        group, _, name = option.rpartition(".")
        target = getattr(new, group) if group else new
        value = getattr(target, name)
        if value is not None:
            decision = Decision(value, "user", "")
            if option in before and before[option].value == value:
                decision = before[option]
            elif option in in_presets and _same(in_presets[option][0], value):
                decision = Decision(value, "preset", in_presets[option][1])
        else:
            value, condition = next((value, condition) for value, condition in cases if condition.holds(facts))
            computed = f"{value.text} " if isinstance(value, Found) else ""
            why = "" if condition is OTHERWISE else f"{computed}{condition.text}".strip()
            value = value.of(facts) if isinstance(value, Found) else value
            decision = Decision(value, condition.by, why or f"default of the model {config.model.kind}")
            setattr(target, name, value)
        new.decisions[option] = decision
    _check_near_and_far(new, scene)
    _check_split(config, new, scene)
    check(new)
    return new


def _same(a: Any, b: Any) -> bool:
    return (tuple(a) if isinstance(a, list) else a) == b


def _recipe_of(config: Config, model_class: Any) -> Recipe:
    if model_class is not None:
        return model_class.recipe
    if config.model.kind != "field":
        raise ConfigError(f"the recipe of model.kind {config.model.kind} is its class's; pass that as model_class")
    return FIELD


def _is_gpu(device: Any) -> bool:
    """Whether `device` is a GPU; "auto" asks torch."""
    if str(device) == "auto":
        from nerfkit.device import pick_device

        device = pick_device("auto")
    return not str(device).startswith("cpu")


def _take_from_scene(config: Config, scene: Any) -> None:
    """How the scene was read, where the options do not say it: a run is to find it again."""
    source = getattr(scene, "source", None)
    if source is not None and not config.data.path:
        for name in ("path", "sfm", "format", "downscale", "max_views", "masks"):
            setattr(config.data, name, getattr(source, name))
    if scene is not None and config.data.format == "auto":
        config.data.format = scene.format_again


def _check_near_and_far(config: ResolvedConfig, scene: Any) -> None:
    """Raise ConfigError if near is not below far, one of which the user may never have heard of."""
    near, far = config.sampling.near, config.sampling.far
    if near < far:
        return
    texts = [
        f"sampling.{name} ({value:g}{', as the scene has it' if config.decisions[f'sampling.{name}'].by != 'user' else ''})"
        for name, value in (("near", near), ("far", far))
    ]
    frame = getattr(scene, "frame", None)
    unit = f", of which one is {1 / frame.scale:.4g} in the files" if frame is not None else ""
    raise ConfigError(f"{texts[0]} must be below {texts[1]}, in the model's units{unit}; lower near, or raise far")


def _check_split(asked: Config, config: ResolvedConfig, scene: Any) -> None:
    """Raise ConfigError for views that were asked for by name and are not there."""
    split = asked.eval.split
    if scene is None or split is None or split in scene.views:
        return
    if (config.eval.after_training or config.eval.every) and not isinstance(asked, ResolvedConfig):
        raise ConfigError(
            f"eval.split: the scene has no {split} views, only {', '.join(scene.views)}; choose one of these with "
            "--eval.split"
        )
