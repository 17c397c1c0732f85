# SPDX-License-Identifier: Apache-2.0
"""A viewer of a training: draws between two steps, in the trainer's thread, for a share of the time.

Nothing of the training changes: drawing takes no random numbers and no training time, and no picture mixes the
parameters of two steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from nerfkit.rendering.image_renderer import in_eval_mode
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.page import Page
from nerfkit.viewer.sharing import Sharing
from nerfkit.viewer.subject import Subject
from nerfkit.viewer.viewer import Viewer

LONGEST_PICTURE = 0.5  # seconds for which training stands still at most, about
MOVING_SHARE = 0.5  # of wall time for drawing, while a camera moves


class TrainingViewer(Viewer):
    """A viewer that a trainer calls: `attach` it before training, `detach` it after.

    Args:
        should_stop: whether training is to end, so that a pause does.
    """

    def __init__(self, subject: Subject, page: Page, should_stop: Callable[[], bool] = lambda: False):
        self.sharing, self.should_stop = Sharing(), should_stop
        super().__init__(subject, page)
        self._left_at = time.perf_counter()  # end of the last call

    def attach(self, trainer: Trainer) -> None:
        """Draw what `trainer` trains, between its steps."""
        self.state.training = trainer
        self.state.sharing = self.sharing
        self._set_limits(True)
        trainer.on_step.append(self.after_step)
        trainer.on_log.append(self.state.history.append)
        trainer.on_log.append(self._follow)
        self.panels.training_began()

    def detach(self, trainer: Trainer) -> None:
        """The training has ended; what it has trained stays in sight."""
        trainer.on_step.remove(self.after_step)
        trainer.on_log.remove(self.state.history.append)
        trainer.on_log.remove(self._follow)
        self._follow({})  # it has moved on since the last line
        self.state.training = None
        self._set_limits(False)
        self.engine.refresh()
        self.panels.training_ended()

    def _follow(self, line: dict[str, float]) -> None:
        """Training views stand where training has moved them, but for their frusta on the page."""
        trainer = self.state.training
        if trainer is not None and trainer.adjustments.poses is not None:
            self.subject.place(trainer.adjustments.cameras(trainer.cameras).to("cpu"))

    def after_step(self, trainer: Trainer) -> None:
        """Called after each training step."""
        if not self.awake:
            return
        try:
            with in_eval_mode(self.subject.model):
                self._between_steps(trainer)
        finally:
            self._left_at = time.perf_counter()

    def _between_steps(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        self.awake = False  # before the look: who comes or leaves meanwhile wakes it again
        if self.engine.clients or self.sessions or self._leavings_since is not None:
            self.awake = True
        if not self.sessions:
            self.state.paused = False  # else a run whose browser was closed would never end
        self.do_calls()
        due = self.engine.next()
        self.sharing.trained(now - self._left_at, due.seconds if due else 0.0, bool(self.engine.jobs))
        self.tick()
        if self.state.paused:
            self._pause(trainer)
        elif due is not None and self.sharing.affords(due.stage, not due.again, due.seconds):
            trainer.settle()
            began = time.perf_counter()
            while self.engine.step() and not self.engine.is_between_pictures and not self.should_stop():
                pass
            self.sharing.drew(time.perf_counter() - began, due.stage, not due.again)
        else:
            if due is None:
                self.engine.refresh()
            self._do_jobs(trainer)

    def _do_jobs(self, trainer: Trainer) -> None:
        """Do slices of jobs until what they may cost is spent, or training is to stop."""
        if not self.engine.jobs or self.sharing.job_credit <= 0:
            return
        trainer.settle()
        while self.engine.jobs and self.sharing.job_credit > 0 and not self.should_stop():
            began = time.perf_counter()
            self.engine.step_job()
            self.sharing.job_credit -= time.perf_counter() - began

    def _pause(self, trainer: Trainer) -> None:
        """Draw as if the training had ended, until it is to go on."""
        trainer.settle()
        self._set_limits(False)
        self.engine.refresh()
        while self.state.paused and self.sessions and not self.should_stop():
            self.work_or_wait()
        self._set_limits(True)

    def _set_limits(self, trains: bool) -> None:
        """What pictures may cost, beside a training or alone."""
        settings = self.engine.settings
        settings.share, settings.fine = (MOVING_SHARE, False) if trains else (1.0, True)
        settings.full_seconds = LONGEST_PICTURE if trains else math.inf
