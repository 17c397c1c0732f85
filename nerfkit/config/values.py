# SPDX-License-Identifier: Apache-2.0
"""Options as nested dictionaries, and what differs between two sets of them."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, get_type_hints

import msgspec
import tomli_w

from nerfkit.config.checks import check, check_values
from nerfkit.config.options import Config
from nerfkit.errors import ConfigError
from nerfkit.option_types import AUTO, Auto, one_line

MAX_BYTES = 2**15  # of a TOML file; reading one takes time that grows with the square of its length


def to_dict(config: Config) -> dict[str, Any]:
    """`config` as nested dictionaries, the form of its TOML file."""
    plain = Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Config)})
    return msgspec.to_builtins(plain, enc_hook=lambda value: value.item())  # of numpy


def dumps(config: Config) -> str:
    """Every option, as the text of a TOML file; None is written auto. Raises ConfigError for more than can be read."""
    text = tomli_w.dumps(_written(to_dict(config)))
    if (n_bytes := len(text.encode())) > MAX_BYTES:
        raise ConfigError(f"the options take {n_bytes} bytes as TOML, more than {MAX_BYTES}; shorten model.options")
    return text


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: AUTO if value is None else _written(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


# Options that may change on resume: all others shape the checkpoint or what the field was trained for.
FREE_ON_RESUME = (
    "out", "device", "data.path", "data.format", "model.module", "trainer.steps", "trainer.max_seconds",
    "trainer.learning_rate", "trainer.final_learning_rate", "trainer.schedule", "trainer.table_decay",
    "trainer.save_every", "trainer.log_every", "trainer.capture", "trainer.deterministic", "trainer.preview_every",
    "trainer.tensorboard", "eval.", "parallel.", "ops.",
)  # fmt: skip


def fixed_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of every option that differs and must not change on resume."""
    before, after = flat(to_dict(old)), flat(to_dict(new))
    names = [name for name in before | after if not name.startswith(FREE_ON_RESUME)]  # of model.options, any
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested dictionaries by their full names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def from_dict(values: dict[str, Any], source: str) -> Config:
    """Config from nested dictionaries; raises ConfigError naming `source` and the key."""
    config = converted(values, source)
    check(config)
    return config


def converted(values: dict[str, Any], source: str) -> Config:
    """Config from nested dictionaries, each value checked by itself."""
    _check_names(values, Config, source, prefix="")
    try:
        config = msgspec.convert(_none_for_auto(values, Config), Config)
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise ConfigError(f"{source}: {key.rstrip('`')}: {one_line(message)}") from None
    check_values(config, f"{source}: ")
    return config


def _none_for_auto(values: dict[str, Any], table: type) -> dict[str, Any]:
    """The values with None for those that are written auto and may be it."""
    found, hints = dict(values), get_type_hints(table, include_extras=True)
    for name, value in values.items():
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[name]):
            found[name] = _none_for_auto(value, hints[name])
        elif value == AUTO and any(isinstance(mark, Auto) for mark in getattr(hints[name], "__metadata__", ())):
            found[name] = None
    return found


def _check_names(values: dict[str, Any], table: type, source: str, prefix: str) -> None:
    known = {f.name: f for f in dataclasses.fields(table)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown option {prefix}{one_line(name)}; {hint}")
        factory = known[name].default_factory
        if dataclasses.is_dataclass(factory) and isinstance(value, dict):
            _check_names(value, factory, source, f"{prefix}{name}.")
