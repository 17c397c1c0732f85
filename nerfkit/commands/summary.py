# SPDX-License-Identifier: Apache-2.0
"""`nerfkit summary`: what a run scored and where its images are."""

from pathlib import Path

from nerfkit.commands import command_line
from nerfkit.commands.options import SummaryOptions
from nerfkit.training.run import files as run_files


def main(options: SummaryOptions) -> int:
    folder = options.run
    split = run_files.read_config(folder).eval.split
    print(f"{folder}: {outcome(folder, split)}")
    run_files.warn_of_run(run_files.read_lines(folder))
    kinds = {
        "videos": sorted(folder.glob("render/*/*.mp4")),
        "truth | render | error": [folder / run_files.score_name(split)],
        "loss over time": [folder / run_files.LOSS_PLOT],
        "images over time": [folder / run_files.PREVIEWS / run_files.STRIP],
        "the same, moving": [folder / run_files.PREVIEWS / run_files.GIF],
        "all of it in one page": [folder / run_files.REPORT],
        "curves of TensorBoard": [folder / run_files.TENSORBOARD],
    }
    for kind, paths in kinds.items():
        for path in paths:
            if path.exists():
                print(f"  {kind:<23} {path}")
    return 0


def outcome(folder: Path, split: str) -> str:
    """The scores of a run on its split, in a line, or how far it is without them, and what scores it."""
    if (file := run_files.scores_file(folder, split)).exists():
        return run_files.of_scores(file)
    log = run_files.read_log(folder)
    last = "step {step}, {seconds:.0f} s, loss {loss:.3g}".format(**log[-1]) if log else "no step is logged"
    scored_by = f"not scored yet: {command_line('eval', folder)}"
    return f"{last}; {scored_by if run_files.has_checkpoint(folder) else 'there is no checkpoint to score'}"
