# SPDX-License-Identifier: Apache-2.0
"""Options as nested dictionaries, and what differs between two sets of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import tomli_w

from nerfkit.config.options import AUTO, Config


def to_dict(config: Config) -> dict[str, Any]:
    """`config` as nested dictionaries, the form of its TOML file."""
    plain = Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Config)})
    return msgspec.to_builtins(plain)


def dumps(config: Config) -> str:
    """Every option, as the text of a TOML file; None is written auto."""
    return tomli_w.dumps(_written(to_dict(config)))


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: AUTO if value is None else _written(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


# Options that may change on resume: all others shape the checkpoint or what the field was trained for.
FREE_ON_RESUME = (
    "out", "device", "size", "data.path", "data.format", "model.module", "trainer.steps", "trainer.max_seconds",
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
