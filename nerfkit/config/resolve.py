# SPDX-License-Identifier: Apache-2.0
"""From the options that were asked for to those that run, and what no option may be.

A value out of range, or one that contradicts another, is an error that names the option and its range.
"""

import dataclasses
import math
from typing import Any, get_type_hints

from nerfkit.config.recipe import BASE, CUBE, FIELD, Facts, Found, Recipe
from nerfkit.errors import ConfigError
from nerfkit.limits import MAX_INTERVALS, edge_distances
from nerfkit.option_types import AUTO, LARGEST, Range
from nerfkit.safe_io import did_you_mean, printable

MAX_ROWS = 2**31  # of all grid levels: row indices have 32 bits
MAX_TEXT = 4096  # characters of an option; the longest path


@dataclasses.dataclass(frozen=True)
class Decision:
    """The value of an option that was left as auto."""

    value: bool | int | float | str | tuple[float, ...]
    by: str  # scene, device, size, time or model
    why: str


def decide(asked: Any, new: Any, scene: Any, device: Any, model_class: Any) -> dict[str, Decision]:
    """Set what is auto in `new`, a copy of the configuration `asked`, and tell who decided each such option."""
    for option in BASE:  # the word stands for None in Python, too
        target, name = _place_of(option, new)
        if getattr(target, name) == AUTO:
            setattr(target, name, None)
    check(new)
    before = getattr(asked, "decisions", {})
    decisions = {option: made for option, made in before.items() if getattr(*_place_of(option, new)) == made.value}
    if scene is not None or device is not None:
        for option in decisions:
            setattr(*_place_of(option, new), None)
        decisions = {}
    _take_from_scene(asked, new, scene)
    facts = Facts(new, scene, _is_gpu(device or new.device))
    for option, cases in _recipe_of(new, model_class).items():
        target, name = _place_of(option, new)
        if getattr(target, name) is not None:
            continue
        value, condition = next(((x, condition) for x, condition in cases if condition.holds(facts)), (None, None))
        if condition is None:
            raise ConfigError(f"the recipe of the model {new.model.kind} has no value for {option} here; set it")
        why = f"because {condition.text}" if condition.text else "default"
        if isinstance(value, Found):
            value, why = value.of(facts), f"{value.text}, {why}"
        setattr(target, name, value)
        decisions[option] = Decision(value, condition.by, why)
    _check_split(asked, new, scene)
    check(new)
    return decisions


def _place_of(option: str, config: Any) -> tuple[Any, str]:
    group, _, name = option.rpartition(".")
    return (getattr(config, group) if group else config), name


def _recipe_of(config: Any, model_class: Any) -> Recipe:
    if model_class is not None:
        if unknown := model_class.recipe.keys() - BASE.keys():
            raise ConfigError(f"{model_class.__name__}.recipe: {', '.join(sorted(unknown))} cannot be auto")
        return BASE | model_class.recipe
    if config.model.kind != "field":
        raise ConfigError(f"the recipe of model.kind {config.model.kind} is in its class; pass that as model_class")
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
        for name, default in (("downscale", 1.0), ("masks", "ignore"), ("depth_unit", 0.0)):
            stated, read = getattr(asked.data, name), getattr(scene.source, name)
            if stated not in (default, read):
                raise ConfigError(
                    f"data.{name} is {stated}, but the scene was read with {read}; read it with the same options: "
                    "nerfkit.data.load.scene_of(config)"
                )
        for name in ("path", "sfm_dir", "format", "downscale", "masks", "depth_unit"):
            setattr(new.data, name, getattr(scene.source, name))
        frame = scene.transform
        if frame is not None and frame.scale != 1:  # that was found, not the files'
            known = (None, scene.source.box, CUBE, tuple(frame.box.flatten().tolist()))
            if new.data.box not in known:
                raise ConfigError(
                    "data.box is meant in the coordinates of the files, but the scene was read without it, in a frame "
                    "that nerfkit chose; give the box when the scene is read: nerfkit.load_scene(path, box=...)"
                )
    if new.data.format == "auto":
        new.data.format = scene.format_again


def _check_split(asked: Any, new: Any, scene: Any) -> None:
    """Raise ConfigError for views that were asked for by name and are not there."""
    split = asked.eval.split
    if scene is None or split in (None, AUTO) or split in scene.views or hasattr(asked, "decisions"):
        return
    if new.eval.after_training or new.eval.every:
        raise ConfigError(f"eval.split: the scene has no {split!r} views; use --eval.split {' or '.join(scene.views)}")


def check(config: Any) -> None:
    """Raise ConfigError for a value out of its range, and for values that contradict each other; auto is neither."""
    check_names(config)
    check_values(config, "")
    _check_box(config.data.box)
    _check_model(config.model)
    _check_sampling(config)


def check_names(options: Any, prefix: str = "") -> None:
    """Raise ConfigError for a name that is no option: in Python a dataclass takes any."""
    known = get_type_hints(type(options))
    for name in vars(options).keys() - known.keys() - {"decisions"}:  # of a configuration that is resolved
        raise ConfigError(f"unknown option {prefix}{name}{did_you_mean(name, known, prefix)}")
    for name in filter(lambda name: dataclasses.is_dataclass(getattr(options, name)), known):
        check_names(getattr(options, name), f"{prefix}{name}.")


def check_values(options: Any, prefix: str) -> None:
    hints = get_type_hints(type(options), include_extras=True)
    hints.pop("decisions", None)  # of a configuration that is resolved
    for name, kind in hints.items():
        value, full_name = getattr(options, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            check_values(value, f"{full_name}.")
        elif isinstance(value, dict):
            for key, own in value.items():
                _check_text(f"a name in {full_name}", key)
                _check_value(f"{full_name}.{printable(key)}", own, (Range(-LARGEST, LARGEST),))
        else:
            _check_value(full_name, value, getattr(kind, "__metadata__", ()))


def _check_value(name: str, value: Any, metadata: tuple) -> None:
    if isinstance(value, str):
        _check_text(name, value)
    elif value is not None:
        for limits in metadata:
            if isinstance(limits, Range):
                limits.check(name, value)


def _check_text(name: str, text: str) -> None:
    """Require text that a TOML file can hold and, as most of it is a path, the system accepts as one."""
    is_unicode = text.encode(errors="replace").decode() == text
    if len(text) > MAX_TEXT or "\0" in text or not is_unicode:
        raise ConfigError(
            f"{name} must be text in UTF-8 of at most {MAX_TEXT} characters without NUL, got '{printable(text, 60)}'"
        )


def _check_box(box: tuple[float, ...] | None) -> None:
    low, high = (box[:3], box[3:]) if box is not None else ((), ())
    for a, b in zip(low, high, strict=True):
        if b - a < 1e-6 * max(1.0, abs(a), abs(b)):  # float32 would not tell them apart
            is_far = "; it is too small so far from the origin: leave it out, or subtract one point from all positions"
            corners = f"the lowest corner {low} must be below the highest {high} along x, y and z"
            raise ConfigError(f"data.box: {corners}{is_far * (a < b)}")


def _check_model(model: Any) -> None:
    if model.max_resolution is not None and model.max_resolution < model.base_resolution:
        raise ConfigError(
            f"model.max_resolution ({model.max_resolution}) must be at least "
            f"model.base_resolution ({model.base_resolution})"
        )
    if None not in (model.levels, model.log2_hashmap_size) and model.levels * 2**model.log2_hashmap_size > MAX_ROWS:
        raise ConfigError(
            f"model.log2_hashmap_size {model.log2_hashmap_size} is too large for {model.levels} levels: together "
            f"their tables may have at most 2^{MAX_ROWS.bit_length() - 1} rows; lower it, or model.levels"
        )


def _check_sampling(config: Any) -> None:
    near, far, step = config.sampling.near, config.sampling.far, config.sampling.step_size
    if None not in (near, far) and near >= far:
        raise ConfigError(
            f"sampling.near ({near:g}) must be below sampling.far ({far:g}), in model units; lower near, or raise far"
            + "; options left at auto follow from the scene" * hasattr(config, "decisions")
        )
    if None in (near, far, step, config.sampling.kind, config.sampling.cone_angle, config.data.box):
        return  # the scene decides yet
    if config.sampling.kind == "contracted":
        try:
            edge_distances(near, far, step, config.sampling.cone_angle)
        except ValueError as error:
            raise ConfigError(f"sampling.near, far, step_size, cone_angle: {error}") from None
        return
    longest = min(math.dist(config.data.box[:3], config.data.box[3:]), far - near)
    if step > longest:
        raise ConfigError(
            f"sampling.step_size ({step:g}) is longer than the longest ray in data.box, {longest:g}; lower it"
        )
    if longest / step > MAX_INTERVALS:
        raise ConfigError(
            f"sampling.step_size ({step:g}) cuts the longest ray in data.box, {longest:g}, into more than "
            f"{MAX_INTERVALS} intervals; raise it, or make the box smaller"
        )
