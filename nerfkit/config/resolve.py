# SPDX-License-Identifier: Apache-2.0
"""From the options that were asked for to those that run: `Config.resolved`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nerfkit.config.checks import check
from nerfkit.config.recipe import BASE, CUBE, FIELD, OTHERWISE, SMALL, Facts, Found, Recipe
from nerfkit.errors import ConfigError
from nerfkit.option_types import AUTO


class Decision(NamedTuple):
    """The value of an option that may be auto."""

    value: Any
    by: str  # user, preset, scene, device or model
    why: str


def decide(
    asked: Any, new: Any, scene: Any, device: Any, model_class: Any, presets: Mapping[str, tuple[Any, str]]
) -> dict[str, Decision]:
    """Set what is auto in `new`, a copy of the configuration `asked`, and tell who decided each such option."""
    for option in BASE:  # the word stands for None in Python, too
        target, name = _place_of(option, new)
        if getattr(target, name) == AUTO:
            setattr(target, name, None)
    check(new)
    before, decisions = getattr(asked, "decisions", {}), {}
    if scene is not None or device is not None:
        _forget(new, before)
    _take_from_scene(asked, new, scene)
    facts = Facts(new, scene, _is_gpu(device or new.device))
    for option, cases in _recipe_of(new, model_class).items():
        target, name = _place_of(option, new)
        if (value := getattr(target, name)) is not None:
            decisions[option] = _asked(option, value, before, presets)
            continue
        value, condition = next(((x, condition) for x, condition in cases if condition.holds(facts)), (None, None))
        if condition is None:
            raise ConfigError(f"the recipe of the model {new.model.kind} says nothing of {option} here")
        computed = f"{value.text} " if isinstance(value, Found) else ""
        why = "" if condition is OTHERWISE else f"{computed}{condition.text}".strip()
        value = value.of(facts) if isinstance(value, Found) else value
        setattr(target, name, value)
        by = decisions["size"].by if condition is SMALL else condition.by
        decisions[option] = Decision(value, by, why or f"default of the model {new.model.kind}")
    _check_near_and_far(new, decisions, scene)
    _check_split(asked, new, scene)
    check(new)
    return decisions


def _place_of(option: str, config: Any) -> tuple[Any, str]:
    """The group that an option is in, and its name there."""
    group, _, name = option.rpartition(".")
    return (getattr(config, group) if group else config), name


def _forget(new: Any, before: Mapping[str, Decision]) -> None:
    """Leave to be decided anew what nobody asked for."""
    for option, decision in before.items():
        target, name = _place_of(option, new)
        if decision.by not in ("user", "preset") and getattr(target, name) == decision.value:
            setattr(target, name, None)


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
        if unknown := model_class.recipe.keys() - BASE.keys():
            raise ConfigError(f"{model_class.__name__}.recipe: {', '.join(sorted(unknown))} cannot be auto")
        return BASE | model_class.recipe
    if config.model.kind != "field":
        raise ConfigError(f"the recipe of model.kind {config.model.kind} is its class's; pass that as model_class")
    return FIELD


def _is_gpu(device: Any) -> bool:
    """Whether `device` is a GPU; "auto" asks torch."""
    if str(device) == "auto":
        from nerfkit.device import pick_device

        device = pick_device("auto")
    return not str(device).startswith("cpu")


def _take_from_scene(asked: Any, new: Any, scene: Any) -> None:
    """How the scene was read, for a run is to find it again; raises ConfigError for options that contradict it."""
    if scene is None:
        return
    if scene.source is not None:
        for name, default in (("downscale", 1.0), ("max_views", 0), ("masks", "ignore")):
            stated, read = getattr(asked.data, name), getattr(scene.source, name)
            if stated not in (default, read):
                raise ConfigError(
                    f"data.{name} is {stated}, but the scene was read with {read}; read it with the same options: "
                    "nerfkit.data.load.scene_of(config)"
                )
        for name in ("path", "sfm", "format", "downscale", "max_views", "masks"):
            setattr(new.data, name, getattr(scene.source, name))
        _check_box(new.data.box, scene)
    if new.data.format == "auto":
        new.data.format = scene.format_again


def _check_box(box: Any, scene: Any) -> None:
    """Raise ConfigError for a box in the coordinates of the files where the scene is in a frame that was found."""
    if box is None or box == scene.source.box or scene.frame is None or scene.frame.scale == 1:
        return
    if box not in (CUBE, tuple(scene.frame.box.flatten().tolist())):
        raise ConfigError(
            "data.box is meant in the coordinates of the files, but the scene was read without it, in a frame that was "
            "found; give it when the scene is read: nerfkit.load_scene(path, box=...)"
        )


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
    if scene is None or split in (None, AUTO) or split in scene.views or hasattr(asked, "decisions"):
        return
    if new.eval.after_training or new.eval.every:
        raise ConfigError(
            f"eval.split: the scene has no {split} views, only {', '.join(scene.views)}; choose one of these with "
            "--eval.split"
        )
