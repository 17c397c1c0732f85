# SPDX-License-Identifier: Apache-2.0
"""Options of `nerfkit train`, from defaults, a resumed run, files and command line."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path

import tyro

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.device import pick_device
from nerfkit.errors import ConfigError
from nerfkit.option_types import Switch
from nerfkit.reading import typed
from nerfkit.training.run_folder import read_config
from nerfkit.viewer.page import TrainingViewerOptions

CPU_PRESET = "cpu"
STEP_PRESETS = ("quick", "best")  # which say nothing of sizes
TYRO = {"use_underscores": True, "config": (tyro.conf.ConsolidateSubcommandArgs, tyro.conf.FlagCreatePairsOff)}


@dataclass
class TrainOptions(Config):
    """Train a radiance field. A later --config overrides an earlier one, the command line overrides both."""

    config: tuple[str, ...] = ()  # TOML files that change the defaults, or names of presets, e.g. lego
    resume: str = ""  # run folder to go on with
    overwrite: Switch = False  # replace a run that the run folder holds already
    viewer: TrainingViewerOptions = field(default_factory=TrainingViewerOptions)


def train_options(arguments: list[str]) -> TrainOptions:
    """Options of `nerfkit train`: defaults < run resumed < files < command line."""
    known = _first_look(arguments)
    config = config_module.merged(known.config or [], _config_of_run(known.resume) if known.resume else None)
    if known.resume:
        config = replace(config, out=known.resume)  # out in a file is for new runs
    default = TrainOptions(**{f.name: getattr(config, f.name) for f in fields(Config)})
    options = tyro.cli(TrainOptions, args=arguments, default=default, prog="nerfkit train", **TYRO)
    options.model.options = config.model.options | options.model.options
    config_module.check(options)
    _check_resume(options)
    return options


def given_options(arguments: list[str]) -> set[str]:
    """Names, such as trainer.samples, of the options that the command line or a file of --config sets."""
    names = {argument.partition("=")[0][2:] for argument in arguments if argument.startswith("--")}
    in_files = (config_module.flat(config_module.changes_of(file)) for file in config_files(arguments))
    return {name.replace("-", "_") for name in names}.union(*in_files)


def config_files(arguments: list[str]) -> list[str]:
    """Names of files and presets that --config gives, in their order."""
    return _first_look(arguments).config or []


def for_device(arguments: list[str]) -> list[str]:
    """The arguments, with the preset for a CPU where there is no GPU and nothing says what to train."""
    known = _first_look(arguments)
    only_steps = bool(known.config) and set(known.config) <= set(STEP_PRESETS) and "--config" in arguments
    others = known.config is not None and not only_steps
    if others or known.resume or known.help or pick_device(known.device).type != "cpu":
        return arguments
    if only_steps:
        print(f"no GPU is used, so the preset {CPU_PRESET} comes before {' '.join(known.config)}")
        start = arguments.index("--config") + 1
        return [*arguments[:start], CPU_PRESET, *arguments[start:]]
    print(f"no GPU is used, so options are those of the preset {CPU_PRESET}; --config chooses others")
    return ["--config", CPU_PRESET, *arguments]


def hints(command: str, arguments: list[str]) -> list[str]:
    """Lines on what was meant by arguments that the parser has refused; it has told which options are spelt alike."""
    found = []
    for place, word in enumerate(arguments):
        option = word.partition("=")[0]
        values = list(takewhile(lambda word: not word.startswith("--"), arguments[place + 1 :]))
        group, _, name = option.rpartition(".")
        if command == "train" and group.startswith("--") and name in {f.name for f in fields(TrainOptions)}:
            found.append(f"did you mean --{name}?")
        elif option == "--size" and not (len(values) == 2 and all(map(str.isdecimal, values))):
            found.append("--size takes a width and a height: --size 640 360")
        elif option == "--outputs" and len(values) > 1:
            found.append(f"--outputs takes names with commas between: --outputs {typed(','.join(values))}")
        elif command == "inspect" and option == "--data.path":
            found.append(f"inspect takes the folder itself: nerfkit inspect {typed(*values[:1])}")
    return found


def _first_look(arguments: list[str]) -> argparse.Namespace:
    """What decides the defaults of all other options."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="*", action="extend")
    first.add_argument("--resume", default="")
    first.add_argument("--device", default="auto")
    first.add_argument("-h", "--help", action="store_true")
    return first.parse_known_args(arguments)[0]


def _config_of_run(folder: str) -> Config:
    """What a resumed run was trained with; its Python module is not imported unless it is given again."""
    config = read_config(Path(folder))
    return replace(config, out=folder, model=replace(config.model, module=""))


def _check_resume(options: TrainOptions) -> None:
    """Raise ConfigError for what --resume would ignore."""
    if options.resume and options.overwrite:
        raise ConfigError("--resume goes on with a run, --overwrite replaces it; leave out one of them")
    if options.resume and os.path.realpath(options.out) != os.path.realpath(options.resume):
        raise ConfigError(
            f"--resume goes on in {options.resume}, out is {options.out}; leave out --out to go on, "
            "or --resume to train a new run"
        )
