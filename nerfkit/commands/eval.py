# SPDX-License-Identifier: Apache-2.0
"""`nerfkit eval`: score a run on held-out views, PSNR and SSIM per view and mean, with the protocol.

Scores of the test views are in RUN/metrics.json, of another split in RUN/eval/<split>, of another scene in
RUN/eval/on_<scene>/<split>: they never replace the run's own.
"""

from collections.abc import Sequence
from dataclasses import replace
from os.path import exists
from pathlib import Path
from typing import Any

from nerfkit.commands import command_line
from nerfkit.commands.options import EvalOptions
from nerfkit.config import Config
from nerfkit.data.load import elsewhere, scene_of
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import RunError, SceneError
from nerfkit.parallel import SINGLE_PROCESS, Processes
from nerfkit.training.evaluator import evaluate
from nerfkit.training.run.files import in_one_line, score_name, scores_file
from nerfkit.training.run.folder import RunFolder, describe, n_shared, run_transform, scene_differences
from nerfkit.training.run.load import load_run


def main(options: EvalOptions, processes: Processes = SINGLE_PROCESS) -> int:
    device = processes.join(options.device)
    folder = processes.rank0_first(lambda: RunFolder.existing(options.run))
    if processes.is_first:
        folder.lock()  # a training there would replace the scores, or these its own
    run = load_run(options.run, device, options.module, options.ops)
    config = run.config
    config.eval.split = options.split or config.eval.split
    if options.comparison_images is not None:
        config.eval.comparison_images = options.comparison_images
    config.eval.lpips = config.eval.lpips if options.lpips is None else options.lpips
    scene = find_scene(options.data, config, run_transform(folder.path))
    if (split := config.eval.split) not in scene.views:
        known = " or ".join(scene.views)
        raise SceneError(f"the scene '{scene.name}' has no {split!r} views with images; use --split {known}")
    views = scene.split(split)
    differences = scene_differences(run.scene, describe(scene), (split,))
    other = scene.name if differences else ""
    if other:
        print(f"{scene.name} is not the scene that the run was trained on ({differences[0]})")
        n_trained = n_shared(run.scene.splits["train"], describe(scene).splits[split])
        if n_trained and split != "train":
            print(f"warning: {n_trained} of {len(views.names)} {split} views were trained on")
    metrics = evaluate(run.model, config, views, run.state, folder, run.device, other, processes)
    given = {"--split": options.split, "--data": options.data, "--module": options.module, "--lpips": options.lpips}
    print_scores(metrics, folder.path, split, other, [x for pair in given.items() if pair[1] for x in pair])
    print(f"per view and protocol: {scores_file(folder.path, split, other)}")
    return 0


def print_scores(
    metrics: dict[str, Any], run: Path, split: str, other_scene: str = "", given: Sequence[str] = ()
) -> None:
    """With where `evaluate` put the images of truth, render and error, and what gives those of all views."""
    n, n_views = metrics["comparisons"], metrics["n_views"]
    print(f"{n_views} {split} views: {in_one_line(metrics)}")
    images = run / score_name(split, other_scene)
    saved = f"truth, render and error of {n} views: {images}" if n else "no image is saved"
    command = command_line("eval", run, *given, "--comparison_images", -1)
    print(saved if n == n_views else f"{saved}; for all of them: {command}")


def find_scene(data: str | None, config: Config, transform: SceneTransform | None) -> Scene:
    """The scene in folder `data`, or where the run had it, in the run's frame; None of a command without --data."""
    if not data and not exists(config.data.path):
        other = ", or give its folder with --data" if data is not None else ""
        raise RunError(f"the run's scene is no longer at {config.data.path}; put it back{other}")
    if data:
        config = replace(config, data=elsewhere(config.data, data))
    return scene_of(config, transform)
