# SPDX-License-Identifier: Apache-2.0
"""PSNR of held-out views while a model is trained, as lines of metrics.jsonl."""

from __future__ import annotations

import json
import math

import torch

from nerfkit.config import Config
from nerfkit.data.images.pixels import background_color
from nerfkit.data.scene import Views
from nerfkit.parallel import ALONE, Processes
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.training.evaluator import beside_truth, counted_pixels, evenly_chosen, psnr_of
from nerfkit.training.run.files import LOG, TEST_PSNR
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer

VIEWS = 8  # that are scored at a time: training waits for them


class ScoresOverTime:
    """Scores some views, evenly spread, every eval.every steps; `attach` it to a trainer before training.

    That is no training time, and takes no random numbers. Several processes share the views out, and each holds the
    images of its own; all have to attach one. PSNR is that of `evaluate`.
    """

    def __init__(self, config: Config, views: Views, device: torch.device, processes: Processes = ALONE):
        self.every, self.processes = config.eval.every, processes
        self.background = background_color(config.data.background, device)  # [3]
        chosen = evenly_chosen(len(views.cameras), VIEWS)
        own = [chosen[i] for i in processes.share(len(chosen))]
        self.n_views = len(chosen)
        self.views = views[own]
        self.cameras = self.views.cameras.to(device)
        self.images = self.views.load() if own else None
        for view in range(len(own)):
            counted_pixels(self.images, self.views, view)  # fails, if it does, before anything is trained

    def attach(self, trainer: Trainer, folder: RunFolder) -> None:
        """Score what `trainer` trains."""
        self.folder = folder
        trainer.on_step.append(self.after_step)

    def after_step(self, trainer: Trainer) -> None:
        """Called after each training step, in each process."""
        if trainer.step % self.every == 0:
            trainer.settle()
            self._log(trainer, self.score(trainer))

    def score(self, trainer: Trainer) -> float:
        """Mean PSNR of the views [dB], the same in all processes."""
        with in_eval_mode(trainer.model):
            image_of = ImageRenderer(trainer.model, self.background)
            own = [self._psnr(image_of, view) for view in range(len(self.cameras))]
        return sum(sum(share) for share in self.processes.gathered(own)) / self.n_views

    def _psnr(self, image_of: ImageRenderer, view: int) -> float:
        truth, rendered, counts = beside_truth(image_of, self.images, self.views, self.cameras, view)
        return psnr_of(rendered["rgb"], truth, counts)

    def _log(self, trainer: Trainer, score: float) -> None:
        """Append a line, unless colors are not finite: then the training says so itself."""
        if not self.processes.is_first or not math.isfinite(score):
            return
        line = {"step": trainer.step, "seconds": round(trainer.seconds, 3), TEST_PSNR: score}
        self.folder.append(LOG, json.dumps(line))
        for call in trainer.on_log:
            call(line)
