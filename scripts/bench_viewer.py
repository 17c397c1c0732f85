#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images a second and latencies of the viewer, as a client on the websocket gets them.

python scripts/bench_viewer.py RUN --size 1280 720 --out viewer.json

While the camera moves, one position is sent 60 times a second. The latency of an image is the time from the last
position before it was begun, as far as the client can know: from when it was sent to when an image arrives that came
after it. After the camera stops, the time to the first full image counts.
"""

from __future__ import annotations

import importlib
import json
import math
import multiprocessing
import queue
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

POSITIONS_A_SECOND = 60


@dataclass
class BenchOptions:
    """Measure the viewer of a run."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    size: tuple[int, int] = (1280, 720)  # of the client's window [pixels]
    seconds: float = 10.0  # of movement
    stops: int = 5  # after each of which a full image is waited for
    output: str = "color"  # of the image
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    out: str = ""  # JSON file of the results


class FakeBrowser:
    """A client that sends camera positions and receives images, like the page in a browser."""

    def __init__(self, address: str, size: tuple[int, int], fov: float = 0.7):
        import viser
        from websockets.sync.client import connect

        url, protocols = address.replace("http://", "ws://"), [f"viser-v{viser.__version__}"]
        limits = {"max_size": 2**26, "compression": None, "ping_interval": None}
        self.size, self.fov = size, fov
        self.connection = connect(url, subprotocols=protocols, origin=address, **limits)
        self.images: queue.Queue[tuple[float, bytes]] = queue.Queue()  # when it came, JPEG
        self.messages: list[dict[str, Any]] = []  # all others
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def send(self, position: Any, target: Any = (0.0, 0.0, 0.0), up: Any = (0.0, 0.0, 1.0)) -> None:
        """Move its camera to `position`, looking at `target`."""
        position, target, up = (list(map(float, vector)) for vector in (position, target, up))
        message = {"type": "ViewerCameraMessage", "wxyz": looking(position, target, up).tolist(), "fov": self.fov}
        message |= {"position": position, "look_at": target, "up_direction": up}
        message |= {"near": 0.01, "far": 1000.0, "image_width": self.size[0], "image_height": self.size[1]}
        self.tell(message)

    def click(self, name: str) -> None:
        ray = {"ray_origin": [0.0, 0.0, 0.0], "ray_direction": [0.0, 0.0, 1.0], "screen_pos": [0.5, 0.5]}
        self.tell({"type": "SceneNodeClickMessage", "name": name, "instance_index": None, "modifier": None, **ray})

    def tell(self, message: dict[str, Any]) -> None:
        import msgspec

        self.connection.send(msgspec.msgpack.encode(message))

    def image(self, timeout: float = 60.0) -> tuple[float, np.ndarray]:
        """The next image [H, W, 3] uint8, and when it came."""
        import imageio.v3 as imageio

        came, content = self.images.get(timeout=timeout)
        return came, imageio.imread(BytesIO(content))

    def close(self) -> None:
        self.connection.close()
        self._thread.join(timeout=5)

    def _receive(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for frame in self.connection:
                for message in decoded(frame):
                    if message["type"] == "BackgroundImageMessage" and message["rgb_data"] is not None:
                        self.images.put((time.perf_counter(), bytes(message["rgb_data"])))
                    else:
                        self.messages.append(message)
        except ConnectionClosed:
            return  # the viewer or `close` has ended it; images that are missing are noticed where they are awaited


def decoded(frame: bytes) -> list[dict[str, Any]]:
    """Messages of a frame that viser sends, without large arrays."""
    import msgspec
    import zstandard

    size, packed = (int.from_bytes(frame[at : at + 8], "little") for at in (0, 8))
    content = zstandard.ZstdDecompressor().decompress(frame[16 : 16 + packed], max_output_size=size)
    return msgspec.msgpack.decode(content)["messages"]


def looking(position: Any, target: Any, up: Any) -> np.ndarray:
    """Quaternion [4] of a camera with OpenCV axes."""
    from viser.transforms import SO3

    forward = np.asarray(target, dtype=float) - position
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    return SO3.from_matrix(np.stack([right, np.cross(forward, right), forward], axis=1)).wxyz


class Circle(NamedTuple):
    """Positions around the middle of the box, as far away as the training cameras."""

    middle: np.ndarray  # [3]
    up: np.ndarray  # [3] unit
    radius: float

    @classmethod
    def around(cls, scene: Any) -> Circle:
        middle = scene.box.mean(0)
        radius = float(np.linalg.norm(scene.cameras.positions.numpy() - middle, axis=1).mean())
        return cls(middle, np.array(scene.up) / np.linalg.norm(scene.up), radius)

    def send(self, browser: FakeBrowser, angle: float) -> None:
        browser.send(self.at(angle), self.middle, self.up)

    def at(self, angle: float) -> np.ndarray:
        """The position [3] at an angle."""
        across = np.cross(np.eye(3)[np.abs(self.up).argmin()], self.up)
        across /= np.linalg.norm(across)
        flat = math.cos(angle) * across + math.sin(angle) * np.cross(self.up, across)
        return self.middle + self.radius * (0.9 * flat + 0.44 * self.up)


def moving(browser: FakeBrowser, circle: Circle, seconds: float) -> dict[str, Any]:
    """Images while the camera goes round."""
    began, sent, sizes, latencies, n = time.perf_counter(), [], [], [], 0
    while (now := time.perf_counter() - began) < seconds:
        circle.send(browser, 0.5 * now)
        sent.append(time.perf_counter())
        while not browser.images.empty():
            came, image = browser.image()
            n += 1
            sizes.append(image.shape[1::-1])
            latencies.append(came - sent[0])
            sent = sent[-1:]
        time.sleep(1 / POSITIONS_A_SECOND)
    smallest = min(sizes, key=lambda size: size[0] * size[1])
    return {
        "images_per_second": n / seconds,
        "width": int(statistics.median(size[0] for size in sizes)),
        "height": int(statistics.median(size[1] for size in sizes)),
        "smallest": [int(side) for side in smallest],
        "latency_ms": 1000 * statistics.median(latencies),
    }


def stopping(browser: FakeBrowser, circle: Circle, stops: int) -> dict[str, Any]:
    """Time from a move of the camera to the first image, and to the full one."""
    first, full = [], []
    for stop in range(stops):
        while not browser.images.empty():
            browser.image()
        began = time.perf_counter()
        circle.send(browser, 1.0 + stop)
        came, image = browser.image()
        first.append(came - began)
        while image.shape[1::-1] != browser.size:
            came, image = browser.image()
        full.append(came - began)
        time.sleep(0.3)
    return {"first_image_ms": 1000 * statistics.median(first), "full_image_ms": 1000 * statistics.median(full)}


def look(address: str, circle: Circle, options: BenchOptions, looks: Connection) -> None:
    """A browser's life, in a process of its own: it would take Python's lock from the thread that renders."""
    for module in ("imageio.v3", "msgspec", "viser", "websockets.sync.client", "zstandard", "nerfkit.viewer.frames"):
        importlib.import_module(module)  # no browser waits for these
    began = time.perf_counter()
    browser = FakeBrowser(address, options.size)
    circle.send(browser, 0.0)
    browser.image()
    opened = {"first_image_ms": 1000 * (time.perf_counter() - began)}
    looks.send("sees the scene")
    looks.recv()
    moving(browser, circle, min(options.seconds, 3.0))  # until sizes have settled
    seen = moving(browser, circle, options.seconds)
    looks.send({"opening": opened, "moving": seen, "still": stopping(browser, circle, options.stops)})
    browser.close()


def main() -> None:
    options = tyro.cli(BenchOptions, config=(tyro.conf.FlagConversionOff,), use_underscores=True)
    from nerfkit.device import device_name
    from nerfkit.threads import limit_threads
    from nerfkit.training.run.load import load_run
    from nerfkit.version import versions
    from nerfkit.viewer.page import Page, ViewerOptions
    from nerfkit.viewer.scene import ViewerScene
    from nerfkit.viewer.viewer import Viewer

    run = load_run(options.run, options.device)
    limit_threads(spare=1)
    page = Page(ViewerOptions(port=0), "bench")
    stop = threading.Event()
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    try:
        viewer = Viewer(ViewerScene.from_run(run), page)
        viewer.state.max_side = max(options.size)
        thread = threading.Thread(target=viewer.serve, args=(stop.is_set,))
        thread.start()
        circle = Circle.around(viewer.scene)
        browser = processes.Process(target=look, args=(page.address, circle, options, there), daemon=True)
        browser.start()
        there.close()
        here.recv()
        for session in viewer.sessions.values():
            session.change(output=options.output)
        here.send("go on")
        result = {"device": device_name(run.device), "window": list(options.size), "output": options.output}
        result |= here.recv() | {"versions": versions()}
        browser.join()
        stop.set()
        thread.join()
    finally:
        stop.set()
        page.stop()
    print(json.dumps(result, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
