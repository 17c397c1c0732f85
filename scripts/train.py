#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a radiance field on a scene.

python scripts/train.py --config configs/lego.toml --data.path scenes/lego
python scripts/train.py --resume runs/lego
"""

from __future__ import annotations

from pathlib import Path

from nerfkit import ops
from nerfkit.commands import options as cli
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.device import pick_device
from nerfkit.training import run
from nerfkit.training.evaluator import evaluate
from nerfkit.training.plot import plot_training
from nerfkit.training.trainer import Trainer


def main(arguments: list[str]) -> int:
    options = cli.train_options(arguments)
    device = pick_device(options.device)
    ops.set_backend(options.ops.backend, options.ops.overrides())
    backends = ops.resolved(device)
    scene = load_scene(options.data.path, options.data.format, options.data.downscale)
    views = scene.split("train")
    folder = Path(options.resume or options.out or Path("runs") / scene.name)
    trainer = Trainer(options, views.cameras, views.load(), folder, device)
    if options.resume:
        trainer.restore()
    else:  # last, so that a scene that cannot be trained costs no earlier run
        run.create(folder, options.overwrite)
    run.save_description(folder, options, scene)

    print(summary(scene, trainer, backends))
    finished = trainer.train()
    plot_training(folder)
    if not finished:
        print(f"\nstopped at step {trainer.step}, saved. Go on with:\n  python scripts/train.py --resume {folder}")
        return 128 + trainer.stop_signal
    print(f"trained {trainer.step} steps in {trainer.seconds:.1f} s")
    if options.eval.after_training and options.eval.split not in scene.views:
        print(f"not scored: the scene has no {options.eval.split} views, only {', '.join(scene.views)}")
    elif options.eval.after_training:
        state = {"seconds": trainer.seconds, "step": trainer.step, "backend": trainer.backends()}
        metrics = evaluate(trainer.renderer, options, scene.split(options.eval.split), state, folder, device)
        scores = f"PSNR {metrics['psnr']:.2f} dB, SSIM {metrics['ssim']:.4f}"
        print(f"{metrics['n_views']} {options.eval.split} views: {scores}")
    print(f"run folder: {folder}\nnext: python scripts/render.py {folder}")
    return 0


def summary(scene: Scene, trainer: Trainer, backends: dict[str, ops.Resolved]) -> str:
    """What is about to be trained, on one screen."""
    config, cameras = trainer.config, trainer.cameras
    n_parameters = sum(p.numel() for p in trainer.renderer.parameters())
    counts = ", ".join(f"{len(views.cameras)} {split}" for split, views in scene.views.items())
    stages = [
        name for name, used in (("encoder", config.model.encoder), ("aggregator", config.model.aggregator)) if used
    ]
    limit = f", at most {config.trainer.max_seconds:g} s" if config.trainer.max_seconds else ""
    lines = [
        f"scene     {scene.name} ({scene.format}): {counts} views of {cameras.width}x{cameras.height}, "
        f"{config.data.background} background",
        f"box       {list(config.data.box[:3])} to {list(config.data.box[3:])}, step {config.sampling.step:g}",
        f"model     {n_parameters / 1e6:.2f} M parameters, grids {trainer.renderer.grid.resolutions}, "
        f"along the ray: {' and '.join(stages) or 'nothing'}",
        f"training  steps {trainer.step} to {config.trainer.steps}{limit}, {config.trainer.samples} samples a step",
        f"device    {trainer.device}",
        *(f"op        {op:<17} {chosen.backend:<6} ({chosen.reason})" for op, chosen in backends.items()),
        f"run       {trainer.folder}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    cli.main(main)
