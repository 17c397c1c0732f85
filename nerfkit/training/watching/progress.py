# SPDX-License-Identifier: Apache-2.0
"""What a training writes beside log and checkpoints: images, scores of held-out views, a plot, TensorBoard."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.images.pixels import background_color
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import UserError
from nerfkit.metrics import psnr
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.training.evaluator import SCORES, beside_truth, evenly_chosen, pixels_that_count
from nerfkit.training.run.files import LOSS_PLOT, TENSORBOARD, TEST_PSNR, read_log, read_scores
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching.previews import Previews, Watcher, shown_view

EVENTS = "events.out.tfevents.*"
SCORED_VIEWS = 8  # of a test split, at a time: training waits for them


class Progress:
    """What the options of `trainer` ask for; of several processes the first does it, and the others wait.

    Images are read at once. Nothing is written before `attach`, which is to be called before training; `finish` after
    it, `close` after scoring.
    """

    def __init__(self, trainer: Trainer, scene: Scene):
        self.trainer, config, split = trainer, trainer.config, trainer.config.eval.split
        self.previews: Previews | None = None
        self.scores: ScoresOverTime | None = None
        self.board: TensorBoard | None = None
        if not trainer.processes.is_first:
            return
        if config.trainer.preview_every:
            try:
                self.previews = Previews(config, shown_view(scene), trainer.device)
            except UserError as error:  # of an image that only scoring would read
                print(f"no images are drawn while training: {error}")
        if config.eval.every and split in scene.views:
            self.scores = ScoresOverTime(config, scene.split(split), trainer.device)
        elif config.eval.every:
            print(f"not scored while training: the scene has no {split} views, only {', '.join(scene.views)}")

    def attach(self, folder: RunFolder) -> None:
        """Write into `folder` while it is trained."""
        self.folder, trainer = folder, self.trainer
        if trainer.config.trainer.tensorboard and trainer.processes.is_first:
            self.board = TensorBoard(folder, trainer.step)
            self.board.attach(trainer, self.previews)
        if self.scores is not None:
            trainer.on_step.append(self.scores.after_step)
        if self.previews is not None:
            self.previews.attach(trainer, folder)

    def finish(self, stopped: bool = False) -> None:
        """Draw what shows the whole training, which has ended, or was `stopped` and has no time to lose."""
        if self.previews is not None:
            self.previews.finish(self.trainer, stopped)

    def close(self, metrics: dict[str, Any] | None = None) -> None:
        """End, with the scores of the trained model if there are some."""
        if self.trainer.processes.is_first:
            plot_training(self.folder, metrics)
        if self.board is not None:
            if metrics is not None:
                self.board.add_scores(metrics)
            self.board.close()


class ScoresOverTime:
    """Scores some views, evenly spread, every eval.every steps: `after_step` is for `trainer.on_step`.

    That is no training time, and takes no random numbers. PSNR is that of `evaluate`.
    """

    def __init__(self, config: Config, views: Views, device: torch.device):
        self.every = config.eval.every
        self.background = background_color(config.data.background, device)  # [3]
        self.views = views[evenly_chosen(len(views.cameras), SCORED_VIEWS)]
        self.cameras, self.images = self.views.cameras.to(device), self.views.load()
        for view in range(len(self.cameras)):
            pixels_that_count(self.images, self.views, view)  # fails, if it does, before anything is trained

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step % self.every:
            return
        trainer.settle()
        score = self.score(trainer)
        if math.isfinite(score):  # if it is not, the training says so itself
            trainer.log({TEST_PSNR: score})

    def score(self, trainer: Trainer) -> float:
        """Mean PSNR of the views [dB]."""
        scores = []
        with in_eval_mode(trainer.model):
            image_of = ImageRenderer(trainer.model, self.background)
            for view in range(len(self.cameras)):
                truth, rendered, counts = beside_truth(image_of, self.images, self.views, self.cameras, view)
                scores.append(psnr(rendered["rgb"], truth, counts))
        return sum(scores) / len(scores)


def summary_writer() -> Any:
    """torch's SummaryWriter; UserError that says how to get the package that it needs."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            'trainer.tensorboard needs the package tensorboard: pip install "nerfkit[tensorboard]", or leave it out '
            "with --trainer.tensorboard false"
        ) from None
    return SummaryWriter


class TensorBoard(Watcher):
    """Writes what is logged: `train/...`, scores of held-out views on the way and at the end, and images.

    A run that goes on continues its curves: what an earlier part wrote of later steps is dropped by TensorBoard.
    """

    what = "nothing more is written for TensorBoard"

    def __init__(self, folder: RunFolder, step: int):
        def open_folder() -> None:
            own = folder.child(TENSORBOARD, TENSORBOARD)
            before = set(own.path.glob(EVENTS))
            self.writer = summary_writer()(str(own.path), purge_step=step + 1)
            for file in set(own.path.glob(EVENTS)) - before:
                own.note(file.name, is_there=True)

        self.attempt(open_folder)

    def attach(self, trainer: Trainer, previews: Previews | None = None) -> None:
        """Write what `trainer` logs, and the images."""
        trainer.on_log.append(self.add_line)
        if previews is not None:
            previews.on_image.append(self.add_image)
            self._add("image", "truth", previews.truth, trainer.step, dataformats="HWC")

    def add_line(self, line: dict[str, float]) -> None:
        for name, value in line.items():
            if name == TEST_PSNR:
                self._add("scalar", "test/psnr", value, line["step"])
            elif name != "step":
                self._add("scalar", f"train/{name}", value, line["step"])

    def add_image(self, step: int, image: Tensor) -> None:
        """An image [H, W, 3] in [0, 1]."""
        self._add("image", "preview", image, step, dataformats="HWC")

    def add_scores(self, metrics: dict[str, Any]) -> None:
        """Scores after the training."""
        for name in SCORES:
            if metrics.get(name) is not None:
                self._add("scalar", f"test/final_{name}", metrics[name], metrics["steps"])

    def close(self) -> None:
        """Write what is left."""
        self.attempt(lambda: self.writer.close())

    def _add(self, kind: str, *values: Any, **options: Any) -> None:
        self.attempt(lambda: getattr(self.writer, f"add_{kind}")(*values, **options))


def plot_training(folder: RunFolder, metrics: dict[str, Any] | None = None) -> None:
    """Draw metrics.jsonl as loss.png, and the score of the trained model; nothing if nothing was logged yet."""
    from matplotlib.figure import Figure  # slow to import; not pyplot, whose backend is the caller's

    lines, scores = read_log(folder.path), read_scores(folder.path)
    if not lines and not scores:
        return
    seconds = [line["seconds"] for line in lines]
    figure = Figure(figsize=(10, 4))  # with margins of its own: a layout that fits is drawn twice
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.13, top=0.92, wspace=0.17)
    left.semilogy(seconds, [line["loss"] for line in lines], color="tab:blue")
    left.set(xlabel="training time [s]", ylabel="loss", title="loss")
    right.plot(seconds, [line.get("psnr", float("nan")) for line in lines], color="tab:orange", label="training rays")
    if scores:
        held_out = [[line[key] for line in scores] for key in ("seconds", TEST_PSNR)]
        right.plot(*held_out, color="tab:green", marker=".", label="held-out views")
    if metrics is not None:
        label = f"in the end, {metrics['n_views']} held-out views: {metrics['psnr']:.2f} dB"
        right.plot(metrics["train_seconds"], metrics["psnr"], "*", color="tab:red", markersize=10, label=label)
    right.set(xlabel="training time [s]", ylabel="PSNR [dB]", title="PSNR")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    content = BytesIO()
    figure.savefig(content, dpi=100)
    folder.write(LOSS_PLOT, content.getvalue())
