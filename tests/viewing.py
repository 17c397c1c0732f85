# SPDX-License-Identifier: Apache-2.0
"""A viewer of a small run, served by a thread, or of a training, and a browser, for tests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from nerfkit.data.load import load_scene
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.run.load import load_run
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.viewer import TrainingViewer, Viewer
from scripts.bench_viewer import Circle, FakeBrowser, decoded


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
        viewer = Viewer(ViewerScene.from_run(load_run(folder, "cpu")), page)
        viewer.state.max_side = max_side
        thread.start()
        yield viewer
    finally:
        stop.set()
        if thread.ident is not None:
            thread.join()
        page.stop()


def new_training(config, out: Path, page: Page | None) -> tuple[Trainer, RunFolder, TrainingViewer | None]:
    """A trainer of the toy scene, its run folder, and a viewer of it on a page."""
    scene = load_scene(config.data.path)
    images = scene.split("train").load()
    trainer, folder = Trainer(config, scene.split("train").cameras, images, device="cpu"), RunFolder.for_new_run(out)
    folder.start(config, describe(scene))
    if page is None:
        return trainer, folder, None
    shown = ViewerScene.from_training(config, trainer.model, trainer.device, scene, images, folder)
    viewer = TrainingViewer(shown, page)
    viewer.attach(trainer)
    return trainer, folder, viewer


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> object:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value


def vanish(browser: FakeBrowser) -> None:
    """Let a browser end without a word."""
    with suppress(OSError):  # it has
        browser.connection.socket.shutdown(socket.SHUT_RDWR)


class Browser(FakeBrowser):
    """A browser that drags, and may freeze: then nothing is read from its socket."""

    def __init__(self, viewer: Viewer):
        self.awake, self.circle, self.angle = threading.Event(), Circle.around(viewer.scene), 0.0
        self.awake.set()
        super().__init__(viewer.page.address, (64, 48))

    def drag(self, seconds: float) -> None:
        """Move the camera around, twenty times a second."""
        for _ in range(max(round(seconds * 20), 1)):
            self.angle += 0.03
            self.circle.send(self, self.angle)
            time.sleep(0.05)

    def freeze(self) -> None:
        kept = self.connection.recv_messages
        kept.high = kept.low = None  # the library's own pauses are off
        self.connection.recv_flow_control.acquire(timeout=5)  # nothing more is read from the socket
        self.awake.clear()

    def is_hung_up(self) -> bool:
        """Read again what is left, which ends where the viewer has hung up."""
        self.connection.recv_flow_control.release()
        self.awake.set()
        self._thread.join(timeout=5)
        return not self._thread.is_alive()

    def _receive(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            for frame in self.connection:
                self.awake.wait()
                for message in decoded(frame):
                    if message["type"] == "BackgroundImageMessage":
                        self.images.put(message)
