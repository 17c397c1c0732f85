# SPDX-License-Identifier: Apache-2.0
"""What all clients share: the subject, the crop, and what one client's panels ask of the others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nerfkit.crop import Crop
from nerfkit.viewer.engine import Engine
from nerfkit.viewer.subject import Subject

if TYPE_CHECKING:
    from nerfkit.training.trainer import Trainer
    from nerfkit.viewer.sharing import Sharing


class State:
    """Shared by all sessions and panels."""

    def __init__(
        self,
        subject: Subject,
        engine: Engine,
        later: Callable[[Callable[[], None]], None],
        sessions: dict[int, Any],  # of clients
    ):
        self.subject, self.engine, self.later, self.sessions = subject, engine, later, sessions
        self.crop: Crop | None = None  # that is on
        self.history = subject.history  # lines of the log
        self.training: Trainer | None = None  # that goes on
        self.sharing: Sharing | None = None
        self.paused = False
        self.initial_camera: Any = None  # of the page
        self.max_side = 1280  # of a picture [pixels]

    def set_crop(self, crop: Crop | None) -> None:
        """Show every client the scene in this crop."""
        self.crop = crop
        self.ask_all()

    def ask_all(self) -> None:
        """Have every client's picture drawn again, for something that all of them show has changed."""
        for session in list(self.sessions.values()):
            session.ask()
