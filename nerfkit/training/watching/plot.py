# SPDX-License-Identifier: Apache-2.0
"""Loss and PSNR of a run over time, as an image."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from nerfkit.training.run.files import LOSS_PLOT, TEST_PSNR, read_log, read_scores
from nerfkit.training.run.folder import RunFolder


def plot_training(folder: RunFolder) -> None:
    """Draw metrics.jsonl as loss.png; nothing if nothing was logged yet."""
    lines, scores = read_log(folder.path), read_scores(folder.path)
    if not lines and not scores:
        return
    seconds = [line["seconds"] for line in lines]
    figure = Figure(figsize=(10, 4), layout="constrained")  # not pyplot's, whose backend is the caller's
    left, right = figure.subplots(1, 2)
    left.semilogy(seconds, [line["loss"] for line in lines], color="tab:blue")
    left.set(xlabel="training time [s]", ylabel="loss", title="loss")
    right.plot(seconds, [line.get("psnr", float("nan")) for line in lines], color="tab:orange", label="training rays")
    right.set(xlabel="training time [s]", ylabel="PSNR of the training rays [dB]", title="PSNR")
    if scores:
        held_out = [[line[key] for line in scores] for key in ("seconds", TEST_PSNR)]
        right.plot(*held_out, color="tab:green", marker=".", label="held-out views")
        right.set_ylabel("PSNR [dB]")
        right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, dpi=100)
    folder.write(LOSS_PLOT, content.getvalue())
