# SPDX-License-Identifier: Apache-2.0
"""A viewer of a small run, served by a thread, or of a training, and browsers, good and bad, for tests."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from msgspec.msgpack import encode as msgpack
from websockets.exceptions import ConnectionClosed

from nerfkit.data.load import load_scene
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.run.load import load_run
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.session import Session
from nerfkit.viewer.viewer import TrainingViewer, Viewer
from scripts.bench_viewer import FakeBrowser, decoded
from tests.toy_scene import small_options
from tests.trainers import make_trainer

SIZE = (64, 48)
MALFORMED = [  # messages on a websocket
    b"", b"\xc1", b"\xff" * 100, "text", msgpack([1]), msgpack({}), msgpack({"type": "Nothing"}), msgpack({"type": 1}),
    msgpack({"type": "GuiUpdateMessage"}), msgpack({"type": "GuiUpdateMessage", "uuid": [], "updates": {"value": 1}}),
    msgpack({"type": "ViewerCameraMessage", "wxyz": "w"}), msgpack({"type": "ScenePointerMessage"}),
    msgpack({"type": "CommandTriggerMessage", "uuid": "\x1b[31m" + "x" * 10000}),
]  # fmt: skip


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_scene):
    run = tmp_path_factory.mktemp("viewer") / "run"
    make_trainer(small_options(toy_scene)).train(run)
    return run


@pytest.fixture
def viewer(folder):
    with served(folder) as viewer:
        yield viewer


@pytest.fixture
def browser(viewer):
    browser = FakeBrowser(viewer.page.address, SIZE)
    yield browser
    browser.close()


@pytest.fixture
def session(viewer, browser):
    """That of the browser, which has seen an image."""
    at(browser)
    (session,) = viewer.sessions.values()
    return session


def at(browser: FakeBrowser, position: Any = (2.5, 0.5, 1.0)) -> np.ndarray:
    """Its last image when the camera rests at `position`."""
    browser.send(position)
    image = browser.image()[1]
    while True:
        try:  # a full one may be of where it was before; the last has four rays a pixel
            image = browser.image(timeout=0.3 if image.shape[1::-1] == browser.size else 60.0)[1]
        except queue.Empty:
            return image


def controls_of(viewer: Viewer, session: Session) -> dict[str, Any]:
    """What the browser's panel shows, by its labels."""
    guis = viewer.page.server.gui, session.client.gui
    return {getattr(c, "label", ""): c for gui in guis for c in gui._gui_input_handle_from_uuid.values()}


def press(browser: FakeBrowser, control: Any, value: object = True, **more: object) -> None:
    """Set a control, as a click does, or what is none would."""
    browser.tell({"type": "GuiUpdateMessage", "uuid": control._impl.uuid, "updates": {"value": value, **more}})


def send_malformed(viewer: Viewer) -> None:
    """By one client each, with a camera, unless it is hung up on before."""
    for message in MALFORMED:
        hostile = FakeBrowser(viewer.page.address, (40000, 40000))
        with suppress(ConnectionClosed):
            hostile.connection.send(message)
            hostile.send((1.0, 0.5, 1.0))
        hostile.close()


def vanish(browser: FakeBrowser) -> None:
    with suppress(OSError):  # it has
        browser.connection.socket.shutdown(socket.SHUT_RDWR)


class Browser(FakeBrowser):
    """A browser that drags, and may freeze: then nothing is read from its socket."""

    def __init__(self, viewer: Viewer):
        self.awake, self.height = threading.Event(), 1.0
        self.awake.set()
        super().__init__(viewer.page.address, SIZE)

    def drag(self) -> None:
        self.height += 0.03
        self.send((2.5, 0.5, self.height))
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
        with suppress(ConnectionClosed):
            for frame in self.connection:
                self.awake.wait()
                for message in decoded(frame):
                    if message["type"] == "BackgroundImageMessage":
                        self.images.put(message)
