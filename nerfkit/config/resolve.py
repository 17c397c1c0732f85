# SPDX-License-Identifier: Apache-2.0
"""From the options that were asked for to those that run: `Config.resolved`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nerfkit.config.checks import check
from nerfkit.config.recipe import FIELD, OTHERWISE, Facts, Found, Recipe
from nerfkit.errors import ConfigError


class Decision(NamedTuple):
    """The value of an option that may be auto."""

    value: Any
    by: str  # user, preset, scene, device or model
    why: str


def decide(
    asked: Any, new: Any, scene: Any, device: Any, model_class: Any, presets: Mapping[str, tuple[Any, str]]
) -> dict[str, Decision]:
    """Set what is auto in `new`, a copy of the configuration `asked`, and tell who decided each such option."""
    check(asked)
    before, decisions = getattr(asked, "decisions", {}), {}
    _take_from_scene(new, scene)
    facts = Facts(new, scene, _is_gpu(device or new.device))
    for option, cases in _recipe_of(new, model_class).items():
        group, _, name = option.rpartition(".")
        target = getattr(new, group) if group else new
        if (value := getattr(target, name)) is not None:
            decisions[option] = _asked(option, value, before, presets)
            continue
        value, condition = next((value, condition) for value, condition in cases if condition.holds(facts))
        computed = f"{value.text} " if isinstance(value, Found) else ""
        why = "" if condition is OTHERWISE else f"{computed}{condition.text}".strip()
        value = value.of(facts) if isinstance(value, Found) else value
        setattr(target, name, value)
        decisions[option] = Decision(value, condition.by, why or f"default of the model {new.model.kind}")
    _check_near_and_far(new, decisions, scene)
    _check_split(asked, new, scene)
    check(new)
    return decisions


def _asked(
    option: str, value: Any, before: Mapping[str, Decision], presets: Mapping[str, tuple[Any, str]]
) -> Decision:
    """Who set an option that is not auto."""
    if option in before and before[option].value == value:  # it was auto when these options were resolved
        return before[option]
    stated, preset = presets.get(option, (None, ""))
    is_presets = (tuple(stated) if isinstance(stated, list) else stated) == value
    return Decision(value, "preset", preset) if is_presets else Decision(value, "user", "")


def _recipe_of(config: Any, model_class: Any) -> Recipe:
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


def _take_from_scene(config: Any, scene: Any) -> None:
    """How the scene was read: a run is to find it again as it was."""
    if scene is None:
        return
    if scene.source is not None:
        for name in ("path", "sfm", "format", "downscale", "max_views", "masks"):
            setattr(config.data, name, getattr(scene.source, name))
    if config.data.format == "auto":
        config.data.format = scene.format_again


def _check_near_and_far(config: Any, decisions: Mapping[str, Decision], scene: Any) -> None:
    """Raise ConfigError if near is not below far, one of which the user may never have heard of."""
    near, far = config.sampling.near, config.sampling.far
    if near < far:
        return
    texts = []
    for name, value in (("near", near), ("far", far)):
        is_asked = decisions[f"sampling.{name}"].by in ("user", "preset")
        texts.append(f"sampling.{name} ({value:g}{'' if is_asked else ', as the scene has it'})")
    frame = getattr(scene, "frame", None)
    unit = f", of which one is {1 / frame.scale:.4g} in the files" if frame is not None else ""
    raise ConfigError(f"{texts[0]} must be below {texts[1]}, in the model's units{unit}; lower near, or raise far")


def _check_split(asked: Any, new: Any, scene: Any) -> None:
    """Raise ConfigError for views that were asked for by name and are not there."""
    split = asked.eval.split
    if scene is None or split is None or split in scene.views or hasattr(asked, "decisions"):
        return
    if new.eval.after_training or new.eval.every:
        raise ConfigError(
            f"eval.split: the scene has no {split} views, only {', '.join(scene.views)}; choose one of these with "
            "--eval.split"
        )
