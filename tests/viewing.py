# SPDX-License-Identifier: Apache-2.0
"""A viewer of a small run, served by a thread, for tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nerfkit.training.run.load import load_run
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.viewer import Viewer
from scripts.bench_viewer import Circle, camera_message, decoded
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
        viewer = Viewer(ViewerScene.from_run(load_run(folder, "cpu")), page)
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


class Browser:
    """A client of the viewer's websocket that drags, and may freeze: then nothing is read from its socket."""

    def __init__(self, viewer: Viewer):
        self.address, self.circle = viewer.page.address, Circle.around(viewer.scene)
        self.n_pictures, self.angle = 0, 0.0

    async def come(self) -> None:
        """Connect, and read from then on."""
        import viser
        from websockets.asyncio.client import connect

        self.connection = await connect(
            self.address.replace("http://", "ws://"), subprotocols=[f"viser-v{viser.__version__}"],
            origin=self.address, max_size=2**26, compression=None, ping_interval=None,
        )  # fmt: skip
        self.reading = asyncio.create_task(self._read())

    async def drag(self, seconds: float) -> None:
        """Move the camera around, twenty times a second."""
        import msgspec

        for _ in range(max(round(seconds * 20), 1)):
            self.angle += 0.03
            place = self.circle.at(self.angle), self.circle.middle, self.circle.up
            await self.connection.send(msgspec.msgpack.encode(camera_message(*place, 0.7, (64, 48))))
            await asyncio.sleep(0.05)

    def freeze(self) -> None:
        """Read nothing any more."""
        self.connection.transport.pause_reading()

    async def is_hung_up(self) -> bool:
        """Read again what is left, which ends where the viewer has hung up."""
        self.connection.transport.resume_reading()
        return bool((await asyncio.wait([self.reading], timeout=5))[0])

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async for frame in self.connection:
                self.n_pictures += sum(message["type"] == "BackgroundImageMessage" for message in decoded(frame))
        except ConnectionClosed:
            return
