# SPDX-License-Identifier: Apache-2.0
"""Loss and PSNR of a run over time, as a picture."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib

from nerfkit.files import atomic_write
from nerfkit.training import run

matplotlib.use("Agg")  # no display needed


def plot_training(folder: Path) -> None:
    """Draw metrics.jsonl as loss.png; nothing if no step was logged yet."""
    import matplotlib.pyplot as plt

    lines = run.read_log(folder)
    if not lines:
        return
    seconds = [line["seconds"] for line in lines]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.semilogy(seconds, [line["loss"] for line in lines], color="tab:blue")
    left.set(xlabel="training time [s]", ylabel="mean squared error", title="loss")
    right.plot(seconds, [line["psnr"] for line in lines], color="tab:orange")
    right.set(xlabel="training time [s]", ylabel="PSNR of the training rays [dB]", title="PSNR")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100)
    plt.close(figure)
    atomic_write(folder / "loss.png", picture.getvalue())
