# SPDX-License-Identifier: Apache-2.0
"""A viewer of a small run, served by a thread, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nerfkit.training.run import load_run
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.subject import of_run
from nerfkit.viewer.viewer import Viewer
from tests.trainers import make_trainer


def small_run(config, folder: Path, steps: int = 300) -> Path:
    """A run folder of the toy scene, trained for seconds."""
    config.trainer.steps = steps
    trainer = make_trainer(config)
    trainer.train(folder)
    return folder


@contextmanager
def served(folder: Path, max_side: int = 128) -> Iterator[Viewer]:
    """A viewer of a run folder on a free port, which another thread serves."""
    stop = threading.Event()
    page = Page(ViewerOptions(port=0), "test")

    def serve() -> None:
        torch.set_num_threads(1)
        viewer.serve(stop.is_set)

    thread = threading.Thread(target=serve)
    try:
        viewer = Viewer(of_run(load_run(folder, "cpu")), page)
        viewer.state.max_side = max_side
        thread.start()
        yield viewer
    finally:
        stop.set()
        if thread.ident is not None:
            thread.join()
        page.stop()


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> object:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value
