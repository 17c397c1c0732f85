# SPDX-License-Identifier: Apache-2.0
"""Options as nested dictionaries and TOML files: presets, what a file changes, and what differs between two sets."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import tomli_w

from nerfkit.config.options import Config
from nerfkit.config.recipe import BASE
from nerfkit.config.resolve import Decision, check, check_values
from nerfkit.errors import ConfigError
from nerfkit.files import atomic_write
from nerfkit.option_types import AUTO
from nerfkit.safe_io import did_you_mean, printable, read_regular, read_text_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 2**15  # of a TOML file; reading one takes time that grows with the square of its length
DECISIONS, MAX_DECISIONS = "decisions.json", 2**20  # beside the config.toml of a run; bytes
# Options that may change on resume: all others shape the checkpoint or what the field was trained for.
FREE_ON_RESUME = (
    "out", "device", "data.path", "data.sfm_dir", "data.format", "model.module", "trainer.steps", "trainer.max_seconds",
    "trainer.learning_rate", "trainer.final_learning_rate", "trainer.weight_decay", "trainer.save_every",
    "trainer.deterministic", "trainer.preview_every", "trainer.tensorboard", "eval.", "ops.",
)  # fmt: skip


def load(paths: list[str] | list[Path]) -> Config:
    """Defaults, changed by each file in turn."""
    config = merged(paths)
    check(config)
    return config


def merged(paths: list[str] | list[Path], base: Config | None = None) -> Config:
    """Defaults (or `base`), changed by each file in turn; values are checked by themselves, not against each other."""
    values = to_dict(base or Config())
    for path in paths:
        changes = changes_of(path)
        converted(changes, printable(preset_path(str(path))))
        values = _changed(values, changes)
    return converted(values, "configuration")


def changes_of(path: str | Path) -> dict[str, Any]:
    """What a file or a preset says; of a run's options without its folder and what its scene decided, in the frame of
    that run."""
    file = preset_path(str(path))
    values = read_toml(file)
    if os.path.exists(file.parent / DECISIONS):
        values.pop("out", None)
    for option, decision in read_decisions(file.parent).items():
        group, _, name = option.rpartition(".")
        if decision.by == "scene" and isinstance(values.get(group), dict):
            values[group].pop(name, None)
    return values


def read_decisions(folder: Path) -> dict[str, Decision]:
    """Who decided the options of a run that were auto, and why; none where the file is not there."""
    file = folder / DECISIONS
    if not os.path.exists(file):
        return {}
    content = read_regular(file, MAX_DECISIONS, "the run's decisions", ConfigError)
    try:
        decisions = msgspec.json.decode(content, type=dict[str, Decision])
        return {option: decision for option, decision in decisions.items() if option in BASE}
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{printable(file)} is not what nerfkit writes ({printable(str(error))}); edited?") from None


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inner = {name: _changed(values.get(name, {}), new) for name, new in changes.items() if isinstance(new, dict)}
    return values | changes | inner


def shipped(name: str) -> Path:
    """A folder that a checkout has beside the package, and an installation in it."""
    package = Path(__file__).parents[1]
    return package / name if (package / name).is_dir() else package.parent / name


def preset_path(name: str) -> Path:
    """The TOML file `name`, or else the preset of that name."""
    presets = {file.stem: file for file in sorted(shipped("configs").glob("*.toml"))}
    if os.path.exists(name) and not (os.path.isdir(name) and name in presets):
        return Path(name, "config.toml") if os.path.isdir(name) else Path(name)  # a folder: that of a run
    if name not in presets:
        raise ConfigError(
            f"no configuration '{printable(name)}'; give the path of a TOML file, or one of {', '.join(presets)}"
            f"{did_you_mean(name, presets)}"
        )
    return presets[name]


def read_toml(path: str | Path) -> dict[str, Any]:
    name = printable(path)
    text = read_text_utf8(Path(path), ConfigError, "the configuration", MAX_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply; options are [group] and name = value") from None
    except ValueError as error:
        raise ConfigError(f"{name} is not valid TOML: {printable(str(error))}") from None


def dump(config: Config, path: Path) -> None:
    atomic_write(path, dumps(config))


def to_dict(config: Config) -> dict[str, Any]:
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


def fixed_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of every option that differs and must not change on resume."""
    before, after = flat(to_dict(old)), flat(to_dict(new))
    names = [name for name in before | after if not name.startswith(FREE_ON_RESUME)]  # of model.options, any
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
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
    try:
        config = msgspec.convert(_plain(values, Config, source, prefix=""), Config)
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        message = message.replace(" | null", " or auto").replace("`", "")
        raise ConfigError(f"{source}: {key.rstrip('`')}: {printable(message)}") from None
    check_values(config, f"{source}: ")
    return config


def _plain(values: dict[str, Any], table: type, source: str, prefix: str) -> dict[str, Any]:
    """The values, of known names, with None for those that are written auto and may be it."""
    found, hints = {}, get_type_hints(table, include_extras=True)
    for name, value in values.items():
        if name not in hints:
            hint = did_you_mean(name, hints, prefix) or f"; known here: {', '.join(hints)}"
            raise ConfigError(f"{source}: unknown option {prefix}{printable(name)}{hint}")
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[name]):
            value = _plain(value, hints[name], source, f"{prefix}{name}.")
        elif value == AUTO and f"{prefix}{name}" in BASE:
            value = None
        found[name] = value
    return found
