# SPDX-License-Identifier: Apache-2.0
"""An unknown name, a wrong type or a value out of range is an error that names the option and its range."""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any, get_type_hints

from nerfkit.errors import ConfigError
from nerfkit.limits import BACKENDS, CHOICES, MAX_INTERVALS, OPS, ladder_distances
from nerfkit.option_types import LARGEST, Range, one_line

MAX_ROWS = 2**31  # of all grid levels: row indices have 32 bits
MAX_TEXT = 4096  # characters of an option; the longest path


def check(config: Any) -> None:
    """Raise ConfigError for a value out of its range, and for values that contradict each other; auto is neither."""
    check_values(config, "")
    _check_box(config.data.box)
    _check_model(config.model)
    _check_sampling(config)
    _check_decay(config.trainer)
    _check_ops(config.ops)


def check_values(options: Any, prefix: str) -> None:
    hints = get_type_hints(type(options), include_extras=True)
    hints.pop("decisions", None)  # of a configuration that is resolved
    for name in vars(options).keys() - hints.keys() - {"decisions"}:  # set in Python, where a dataclass takes any name
        near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
        raise ConfigError(f"unknown option {prefix}{name}" + (f"; did you mean {prefix}{near[0]}?" if near else ""))
    for name, kind in hints.items():
        value, full_name = getattr(options, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            check_values(value, f"{full_name}.")
        elif isinstance(value, dict):
            for key, own in value.items():
                _check_text(f"a name in {full_name}", key)
                _check_value(f"{full_name}.{one_line(key)}", own, (Range(-LARGEST, LARGEST),))
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
            f"{name} must be text in UTF-8 of at most {MAX_TEXT} characters without NUL, got {one_line(text)!r:.60}"
        )


def _check_box(box: tuple[float, ...] | None) -> None:
    if box is None:
        return
    low, high = box[:3], box[3:]
    for a, b in zip(low, high, strict=True):
        if b - a < 1e-6 * max(1.0, abs(a), abs(b)):  # float32 would not tell them apart
            raise ConfigError(f"data.box: the lowest corner {low} must be below the highest {high} along x, y and z")


def _check_model(model: Any) -> None:
    if model.max_resolution is not None and model.max_resolution < model.base_resolution:
        raise ConfigError(
            f"model.max_resolution ({model.max_resolution}) must be at least "
            f"model.base_resolution ({model.base_resolution})"
        )
    if None not in (model.levels, model.log2_table) and model.levels * 2**model.log2_table > MAX_ROWS:
        raise ConfigError(
            f"model.log2_table ({model.log2_table}) is too large for {model.levels} levels: together they may have "
            f"2^{MAX_ROWS.bit_length() - 1} rows; lower it, or model.levels"
        )


def _check_sampling(config: Any) -> None:
    near, far, step = config.sampling.near, config.sampling.far, config.sampling.step
    if None not in (near, far) and near >= far:
        raise ConfigError(f"sampling.near ({near}) must be below sampling.far ({far})")
    if None in (near, far, step, config.sampling.kind, config.sampling.cone, config.data.box):
        return  # the scene decides yet
    if config.sampling.kind == "contracted":
        return _check_ladder(config.sampling)
    longest = min(math.dist(config.data.box[:3], config.data.box[3:]), far - near)
    if step > longest:
        raise ConfigError(f"sampling.step ({step:g}) is longer than the longest ray in data.box, {longest:g}; lower it")
    if longest / step > MAX_INTERVALS:
        raise ConfigError(
            f"sampling.step ({step:g}) cuts the longest ray in data.box, {longest:g}, into more than {MAX_INTERVALS} "
            "intervals; raise it, or make the box smaller"
        )


def _check_ladder(sampling: Any) -> None:
    """Of unbounded space."""
    try:
        ladder_distances(sampling.near, sampling.far, sampling.step, sampling.cone)
    except ValueError as error:
        raise ConfigError(f"sampling.near, far, step, cone: {error}") from None


def _check_decay(trainer: Any) -> None:
    rates = [rate for rate in (trainer.learning_rate, trainer.final_learning_rate) if rate is not None]
    if not rates or trainer.table_decay is None:
        return
    rate = max(rates)
    if rate * trainer.table_decay >= 1:
        raise ConfigError(
            f"trainer.table_decay ({trainer.table_decay:g}) times the learning rate, up to {rate:g}, must be below 1, "
            "or a step would turn the features round; lower one of them"
        )


def _check_ops(ops: Any) -> None:
    for op, backend in ops.overrides.items():
        if op not in OPS:
            near = difflib.get_close_matches(op[:100], OPS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the ops are {', '.join(OPS)}"
            raise ConfigError(f"ops.overrides: unknown op {one_line(op)!r}; {hint}")
        if backend not in CHOICES:
            raise ConfigError(
                f"ops.overrides: unknown backend {one_line(backend)!r} for {op}; choose auto, {', '.join(BACKENDS)}"
            )
