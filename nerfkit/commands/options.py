# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: options from file and command line, and errors without a traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.errors import UserError
from nerfkit.training import run

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
    base = run.read_config(Path(known.resume)) if known.resume else None
    config = config_module.load(known.config, base)
    default = TrainOptions(**{f.name: getattr(config, f.name) for f in fields(Config)})
    options = tyro.cli(TrainOptions, args=arguments, default=default, prog="scripts/train.py", **TYRO)
    config_module.check(options)
    return options


def main(function: Callable[[list[str]], int | None]) -> None:
    """Run a script: a UserError is printed without a traceback and ends with exit status 1."""
    try:
        sys.exit(function(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
