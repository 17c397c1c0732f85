# SPDX-License-Identifier: Apache-2.0
"""`nerfkit summary`: what a run scored and where its images are."""

from __future__ import annotations

from pathlib import Path

from nerfkit.commands import as_typed
from nerfkit.errors import RunError
from nerfkit.reading import read_json
from nerfkit.training import checkpoint, previews, tensorboard
from nerfkit.training.evaluator import in_one_line, score_name, scores_file
from nerfkit.training.run_folder import LOSS_PLOT, read_config, read_log


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: nerfkit summary RUN")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    folder = Path(arguments[0])
    split = read_config(folder).eval.split
    file = scores_file(folder, split)
    print(f"\n{folder}: {of_scores(file) if file.exists() else without_scores(folder)}")
    kinds = {
        "videos": sorted(folder.glob("render/*/*.mp4")),
        "truth | render | error": [folder / score_name(split)],
        "loss over time": [folder / LOSS_PLOT],
        "pictures over time": [
            folder / previews.FOLDER / name for name in (previews.STRIP, previews.GIF, previews.VIDEO)
        ],
        "curves of TensorBoard": [folder / tensorboard.FOLDER],
    }
    for kind, paths in kinds.items():
        for path in paths:
            if path.exists():
                print(f"  {kind:<23} {path}")
    return 0


def of_scores(file: Path) -> str:
    """The scores in a file, and after which training, in a line."""
    try:
        metrics = read_json(file, RunError, "the scores")
        protocol = metrics["protocol"]
        return (
            f"{in_one_line({'lpips': None} | metrics)} on {metrics['n_views']} {protocol['split']} "
            f"views of {protocol['size']}, after {metrics['steps']} steps in {metrics['train_seconds']:.0f} s"
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} is not what nerfkit writes ({error}); score the run again") from None


def without_scores(folder: Path) -> str:
    """How far a run is that was not scored, in a line, and what scores it."""
    log = read_log(folder)
    last = "step {step}, {seconds:.0f} s, loss {loss:.3g}".format(**log[-1]) if log else "no step is logged"
    scored_by = f"not scored yet: {as_typed('eval', folder)}"
    return f"{last}; {scored_by if checkpoint.exists(folder) else 'there is no checkpoint to score'}"
