# SPDX-License-Identifier: Apache-2.0
"""Curves and pictures of a training for TensorBoard, in RUN/tensorboard; its package is optional."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from tqdm import tqdm

from nerfkit.errors import RunError, UserError
from nerfkit.training.run.files import OTHER_SCORES, TENSORBOARD, TEST_PSNR
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching.previews import Previews

EVENTS = "events.out.tfevents.*"
INSTALL = 'pip install "nerfkit[tensorboard]"'


def summary_writer() -> Any:
    """torch's SummaryWriter; UserError that says how to get the package that it needs."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            f"trainer.tensorboard needs the package tensorboard: {INSTALL}, or leave it out with "
            "--trainer.tensorboard false"
        ) from None
    return SummaryWriter


class TensorBoard:
    """Writes what is logged: `train/...`, scores of held-out views on the way and at the end, and pictures.

    A run that goes on continues its curves: what an earlier part wrote of later steps is dropped by TensorBoard.
    """

    def __init__(self, folder: RunFolder, step: int):
        self.folder = folder.child(TENSORBOARD, TENSORBOARD)
        before = set(self.folder.path.glob(EVENTS))
        try:
            self.writer = summary_writer()(str(self.folder.path), purge_step=step + 1)
        except OSError as error:
            raise RunError(f"cannot write {self.folder.path}: {error.strerror or error}") from None
        for file in set(self.folder.path.glob(EVENTS)) - before:
            self.folder.note(file.name, is_there=True)
        self._failed = False

    def attach(self, trainer: Trainer, previews: Previews | None = None) -> None:
        """Write what `trainer` logs, and the pictures."""
        trainer.on_log.append(self.add_line)
        if previews is not None:
            previews.on_picture.append(self.add_picture)
            self._add("image", "truth", previews.truth, trainer.step, dataformats="HWC")

    def add_line(self, line: dict[str, float]) -> None:
        for name, value in line.items():
            if name not in ("step", TEST_PSNR):
                self._add("scalar", f"train/{name}", value, line["step"])
        if TEST_PSNR in line:
            self._add("scalar", "test/psnr", line[TEST_PSNR], line["step"])

    def add_picture(self, step: int, picture: Tensor) -> None:
        """A picture [H, W, 3] in [0, 1]."""
        self._add("image", "preview", picture, step, dataformats="HWC")

    def add_scores(self, metrics: dict[str, Any]) -> None:
        """Scores after the training."""
        for name in ("psnr", *OTHER_SCORES, "ssim", "lpips"):
            if metrics.get(name) is not None:
                self._add("scalar", f"test/final_{name}", metrics[name], metrics["steps"])

    def close(self) -> None:
        self._attempt(self.writer.close)

    def _add(self, kind: str, *values: Any, **options: Any) -> None:
        self._attempt(lambda: getattr(self.writer, f"add_{kind}")(*values, **options))

    def _attempt(self, act: Any) -> None:
        """Do something, unless the disk was full before: that ends no training."""
        if self._failed:
            return
        try:
            act()
        except OSError as error:
            self._failed = True
            tqdm.write(f"nothing more is written for TensorBoard: {error}")
