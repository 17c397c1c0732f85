# SPDX-License-Identifier: Apache-2.0
"""Signals that stop a run: it ends after the current step, saved."""

from __future__ import annotations

import signal
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C, the system's shutdown, a terminal that was closed


class StopSignals:
    """Inside a `with` block a first signal is remembered in `number`, a second one stops at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arrived(self) -> bool:
        """Whether a signal has arrived."""
        return self.number is not None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
