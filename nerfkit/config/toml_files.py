# SPDX-License-Identifier: Apache-2.0
"""Options in TOML files: presets, and what a file changes."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from nerfkit.config.checks import check
from nerfkit.config.options import Config
from nerfkit.config.resolve import Decision
from nerfkit.config.values import MAX_BYTES, converted, dumps, flat, to_dict
from nerfkit.errors import ConfigError
from nerfkit.files import atomic_write
from nerfkit.option_types import one_line
from nerfkit.reading import read_regular, read_text_utf8, shown, typed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DECISIONS, MAX_DECISIONS = "decisions.json", 2**20  # beside the config.toml of a run; bytes


def load(paths: list[str] | list[Path], base: Config | None = None, of_run: bool = False) -> Config:
    """Defaults (or `base`), changed by each file in turn; `of_run`: with what the scene decided of a run."""
    config = merged(paths, base, of_run)
    check(config)
    return config


def merged(paths: list[str] | list[Path], base: Config | None = None, of_run: bool = False) -> Config:
    """As `load`, without checking values against each other: `check` does, once the command line is known.

    Each file is checked by itself, to name it in errors.
    """
    values = to_dict(base or Config())
    for path in paths:
        changes = changes_of(path, of_run)
        converted(changes, one_line(str(preset_path(str(path)))))
        values = _changed(values, changes)
    return converted(values, "configuration")


def changes_of(path: str | Path, of_run: bool = False) -> dict[str, Any]:
    """What a file, or the preset of that name, says; of the options of a run what its scene did not decide, which is
    in the frame of that run, unless `of_run`."""
    file = preset_path(str(path))
    values = read_toml(file)
    if not of_run and file.with_name(DECISIONS).exists():
        for option, decision in read_decisions(file.with_name(DECISIONS)).items():
            group, _, name = option.rpartition(".")
            if decision.by == "scene" and isinstance(values.get(group), dict):
                values[group].pop(name, None)
    return values


def read_decisions(file: Path) -> dict[str, Decision]:
    """Who decided the options of a run that may be auto, and why; raises ConfigError."""
    content = read_regular(file, MAX_DECISIONS, "the run's decisions", ConfigError)
    try:
        found = msgspec.json.decode(content, type=dict[str, dict[str, Any]])
        decisions = {name: Decision(**values) for name, values in found.items()}
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise ConfigError(f"{shown(file)} is not what nerfkit writes ({one_line(str(error))}); edited?") from None
    for name, decision in decisions.items():
        if isinstance(decision.value, list):  # a box
            decisions[name] = decision._replace(value=tuple(decision.value))
    return decisions


def preset_values(paths: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """What files and presets say, for `Config.resolved`: value and file by the option's full name."""
    return {name: (value, path) for path in paths for name, value in flat(changes_of(path)).items()}


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inner = {name: _changed(values.get(name, {}), new) for name, new in changes.items() if isinstance(new, dict)}
    return values | changes | inner


def preset_path(name: str) -> Path:
    """The TOML file `name`, or else the preset of that name."""
    installed = Path(__file__).parents[1] / "configs"
    folder = installed if installed.is_dir() else Path(__file__).parents[2] / "configs"
    presets = {file.stem: file for file in sorted(folder.glob("*.toml"))}
    if os.path.isdir(name) and name not in presets:
        raise ConfigError(
            f"the configuration {shown(name)} is a folder; a scene needs no --config: "
            f"{shown(typed('nerfkit', 'train', name))}"
        )
    if os.path.exists(name) and not os.path.isdir(name):
        return Path(name)
    if name not in presets:
        hint = f"did you mean {near[0]}? Or " if (near := difflib.get_close_matches(name[:200], presets, n=1)) else ""
        raise ConfigError(
            f"no configuration {one_line(name)!r}; {hint}give the path of a TOML file, or one of {', '.join(presets)}"
        )
    return presets[name]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Values of a TOML file; raises ConfigError if it is missing or broken."""
    name = shown(path)
    text = read_text_utf8(Path(path), ConfigError, "the configuration", MAX_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply; options are [group] and name = value") from None
    except ValueError as error:
        raise ConfigError(f"{name} is not valid TOML: {one_line(str(error))}") from None


def dump(config: Config, path: Path) -> None:
    """Write every option to a TOML file."""
    atomic_write(path, dumps(config))
