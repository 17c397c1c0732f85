# SPDX-License-Identifier: Apache-2.0
"""How wall time is shared between training and drawing; knows no trainer."""

from __future__ import annotations

from dataclasses import dataclass

from nerfkit.viewer.engine import FULL, MOVING

LONGEST_TURN = 0.25  # seconds that training gets at most, after a picture that somebody waits for
SAVED_UP = 2.0  # seconds of drawing that may be saved up at most, or one picture if that takes longer


@dataclass
class Sharing:
    """Credit for drawing, earned by training.

    A picture that somebody waits for, of a camera that moves or has just stopped, gets half of the time: training has a
    turn as long as the last such picture. One that only shows that training goes on waits until it is paid for. While
    there is a job, such as a video, it gets half of what such pictures would.
    """

    training: float = 0.96  # share of wall time for training, while cameras stand still
    credit: float = 0.0  # seconds
    job_credit: float = 0.0  # seconds
    turn: float = 0.0  # seconds of training that are due before the next awaited picture

    def trained(self, seconds: float, most: float, has_job: bool = False) -> None:
        """Training has had `seconds`; the next picture costs `most`."""
        earned = seconds * (1 - self.training) / self.training
        if has_job:
            earned /= 2
            self.job_credit = min(self.job_credit + earned, max(earned, LONGEST_TURN))
        self.credit = min(self.credit + earned, max(most, SAVED_UP))
        self.turn -= seconds

    def affords(self, stage: int, is_awaited: bool, seconds: float) -> bool:
        """Whether a picture that takes `seconds` is drawn now."""
        if stage == MOVING or (stage == FULL and is_awaited):
            return self.turn <= 0
        return self.credit >= seconds

    def drew(self, seconds: float, stage: int, is_awaited: bool) -> None:
        """A picture took `seconds`."""
        if stage == MOVING or (stage == FULL and is_awaited):
            self.turn = min(seconds, LONGEST_TURN)
        else:
            self.credit -= seconds
