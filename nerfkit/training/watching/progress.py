# SPDX-License-Identifier: Apache-2.0
"""What a training writes on its way, beside log and checkpoints: pictures, scores of held-out views, TensorBoard."""

from __future__ import annotations

from typing import Any

from nerfkit.data.scene import Scene
from nerfkit.errors import RunError, UserError
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching.previews import Previews, shown_view
from nerfkit.training.watching.scores import ScoresOverTime
from nerfkit.training.watching.tensorboard import TensorBoard


class Progress:
    """What the options of `trainer` ask for; each of several processes makes one, the first writes.

    Images are read at once. Nothing is written before `attach`, which is to be called before training; `finish` after
    it, `close` after scoring.
    """

    def __init__(self, trainer: Trainer, scene: Scene):
        self.trainer = trainer
        self.previews = self._previews(scene) if trainer.processes.is_first else None
        self.scores = self._scores(scene)
        self.board: TensorBoard | None = None

    def attach(self, folder: RunFolder) -> None:
        """Write into `folder` while it is trained."""
        self.folder, trainer = folder, self.trainer
        if trainer.config.trainer.tensorboard and trainer.processes.is_first:
            self._attach_board(folder)
        if self.scores is not None:
            self.scores.attach(trainer, folder)
        if self.previews is not None:
            self.previews.attach(trainer, folder)

    def _attach_board(self, folder: RunFolder) -> None:
        try:
            self.board = TensorBoard(folder, self.trainer.step)
        except RunError as error:  # of files of somebody else: the training is worth more
            print(f"nothing is written for TensorBoard: {error}")
        else:
            self.board.attach(self.trainer, self.previews)

    def finish(self, stopped: bool = False) -> None:
        """Draw what shows the whole training, which has ended, or was `stopped` and has no time to lose."""
        if self.previews is not None:
            self.previews.finish(self.trainer, stopped)
        if self.trainer.processes.is_first:
            from nerfkit.training.watching.plot import plot_training  # matplotlib is slow to import

            plot_training(self.folder)

    def close(self, metrics: dict[str, Any] | None = None) -> None:
        """End, with the scores of the trained model if there are some."""
        if self.board is not None:
            if metrics is not None:
                self.board.add_scores(metrics)
            self.board.close()

    def _previews(self, scene: Scene) -> Previews | None:
        trainer = self.trainer
        if not trainer.config.trainer.preview_every:
            return None
        try:
            return Previews(trainer.config, shown_view(scene), trainer.device)
        except UserError as error:  # of an image that only scoring would read
            print(f"no pictures are drawn while training: {error}")
            return None

    def _scores(self, scene: Scene) -> ScoresOverTime | None:
        config, trainer = self.trainer.config, self.trainer
        if not config.eval.every:
            return None
        if config.eval.split not in scene.views:
            print(
                f"not scored while training: the scene has no {config.eval.split} views, only {', '.join(scene.views)}"
            )
            return None
        return ScoresOverTime(config, scene.split(config.eval.split), trainer.device, trainer.processes)
