#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Score a run on held-out views: PSNR and SSIM per view and mean, with the protocol, in metrics.json.

Scores of the test views are in the run folder, of another split in RUN/eval/<split>.

python scripts/eval.py runs/lego
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from nerfkit import ops
from nerfkit.commands import options as cli
from nerfkit.config import OpsConfig
from nerfkit.data.load import load_scene
from nerfkit.device import pick_device
from nerfkit.errors import RunError
from nerfkit.training import run
from nerfkit.training.evaluator import evaluate


@dataclass
class EvalOptions:
    """Score a run on held-out views."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    split: str = ""  # views to evaluate on; the run's own choice if empty
    data: str = ""  # folder of the scene, if it has moved
    sheets: int | None = None  # views to save truth, render and error of; -1: all; the run's own choice if left out
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    ops: OpsConfig = field(default_factory=OpsConfig)


def main(arguments: list[str]) -> int:
    options = tyro.cli(EvalOptions, args=arguments, prog="scripts/eval.py", **cli.TYRO)
    device = pick_device(options.device)
    renderer, config, state = run.load_renderer(options.run, device)
    ops.set_backend(options.ops.backend, options.ops.overrides())
    config.eval.split = options.split or config.eval.split
    if options.sheets is not None:
        config.eval.sheets = options.sheets
    try:
        scene = load_scene(options.data or config.data.path, config.data.format, config.data.downscale)
    except ValueError as error:
        raise RunError(f"{error}; give the scene's folder with --data") from None
    metrics = evaluate(renderer, config, scene.split(config.eval.split), state, options.run, device)
    print(f"{metrics['n_views']} {config.eval.split} views: PSNR {metrics['psnr']:.2f} dB, SSIM {metrics['ssim']:.4f}")
    scores, sheets = run.scores_places(options.run, config.eval.split)
    print(f"per view and protocol: {scores}; pictures: {sheets}")
    return 0


if __name__ == "__main__":
    cli.main(main)
