# SPDX-License-Identifier: Apache-2.0
"""Options of `nerfkit train`, from defaults, files and command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.training.run_folder import read_config

TYRO = {"use_underscores": True, "config": (tyro.conf.ConsolidateSubcommandArgs,)}


@dataclass
class TrainOptions(Config):
    """Train a radiance field. A later --config beats an earlier one, the command line beats both."""

    config: tuple[str, ...] = ()  # TOML files that change the defaults, e.g. configs/lego.toml
    resume: str = ""  # run folder to go on with
    overwrite: bool = False  # replace a run that the run folder holds already


def train_options(arguments: list[str]) -> TrainOptions:
    """Options of scripts/train.py: defaults < run resumed < files < command line."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="*", action="extend", default=[])
    first.add_argument("--resume", default="")
    known, _ = first.parse_known_args(arguments)
    base = read_config(Path(known.resume)) if known.resume else None
    config = config_module.load(known.config, base)
    default = TrainOptions(**{f.name: getattr(config, f.name) for f in fields(Config)})
    options = tyro.cli(TrainOptions, args=arguments, default=default, prog="nerfkit train", **TYRO)
    config_module.check(options)
    return options
