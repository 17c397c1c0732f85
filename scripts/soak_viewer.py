#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory, threads and files of the viewer while browsers come and go, of a run that is viewed and one that is trained.

python scripts/soak_viewer.py RUN --minutes 15 --out viewer_soak.json

The viewer has a process of its own; the browsers are clients of its websocket here, of these kinds:

looks     loads the page, drags, changes the output, rests, and leaves as a tab does that is closed
vanishes  ends its connection in the middle of a drag, without a word
freezes   reads nothing any more and keeps its connection, like a tab that is suspended or a computer without a network

Memory is flat where its slope over the samples after the first fifth, and twice its standard error, stay below `--most`:
pictures come and go in it, so a short run cannot tell. The exit status is 1 if it is not, or if a thread, an open file
or a session is left when all are gone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench_viewer import Circle, camera_message, decoded

OFTEN = {"looks": 0.5, "vanishes": 0.35, "freezes": 0.15}  # of all browsers
OUTPUTS = ("color", "depth", "normals", "opacity")
COUNTED = ("Session", "ClientHandle", "AsyncMessageBuffer", "ServerConnection", "Task")  # objects
HELD = {"MiB": "rss_mib", "threads": "threads", "files": "files"}  # by a process
DRAGS_A_SECOND = 20
SAMPLE_SECONDS = 5.0
FROZEN_SECONDS = 45.0  # for which a frozen browser stays
QUIET_SECONDS = 20.0  # without a browser, before the first and after the last


@dataclass
class SoakOptions:
    """Have browsers come and go."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    minutes: float = 15.0  # of each, the run that is viewed and the one that is trained
    browsers: int = 4  # at once
    size: tuple[int, int] = (640, 480)  # of a browser's window [pixels]
    most: float = 32.0  # growth of memory that still is flat [MiB per hour]
    seed: int = 0  # of what browsers do
    out: str = ""  # JSON file of the results


def sample(viewer: Any) -> dict[str, Any]:
    """What this process holds."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    kinds = kinds_of_objects()
    return {
        "rss_mib": round(resident / 2**20, 2),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")) - 1,  # but that of this listing
        "cpu_seconds": round(time.process_time() - time.thread_time(), 2),  # but of the samples
        "sessions": len(viewer.sessions),
        **{name: kinds[name] for name in COUNTED},
    }


def kinds_of_objects() -> Counter[str]:
    """How many objects there are of each kind; no other thread runs meanwhile.

    For it might be building a tuple, which fails if somebody else, as here, has a reference to that.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        return Counter(type(thing).__name__ for thing in gc.get_objects())
    finally:
        sys.setswitchinterval(before)


def serve(run_folder: Path, trains: bool, line: Connection) -> None:
    """The life of the viewer's process."""
    from nerfkit.commands.view import leave_a_core
    from nerfkit.training.run import load_run
    from nerfkit.viewer.page import Page, ViewerOptions

    run = load_run(run_folder, "cpu")
    leave_a_core(run.device)
    page = Page(ViewerOptions(port=0), "soak")
    try:
        (train if trains else view)(run, page, line)
    finally:
        page.stop()


def view(run: Any, page: Any, line: Connection) -> None:
    """View a run that is done."""
    from nerfkit.viewer.subject import of_run
    from nerfkit.viewer.viewer import Viewer

    viewer, stop = Viewer(of_run(run), page), threading.Event()
    start_answers(viewer, stop, line)
    viewer.serve(stop.is_set)


def train(run: Any, page: Any, line: Connection) -> None:
    """Train it anew, for as long as it is looked at."""
    from nerfkit.commands.train import find_scene
    from nerfkit.training.run_folder import RunFolder, describe
    from nerfkit.training.trainer import Trainer
    from nerfkit.viewer.subject import of_training
    from nerfkit.viewer.training import TrainingViewer

    config, stop = run.config, threading.Event()
    config.trainer.steps, config.trainer.max_seconds = 10**8, 0.0
    scene = find_scene(config)
    images = scene.split("train").load()
    trainer = Trainer(config, scene.split("train").cameras, images, device="cpu", scene=scene)
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.for_new_run(Path(name) / "run")
        folder.start(config, describe(scene))
        subject = of_training(config, trainer.model, trainer.device, scene, images, folder)
        viewer = TrainingViewer(subject, page, stop.is_set)
        viewer.attach(trainer)
        start_answers(viewer, stop, line)
        trainer.train(folder, should_stop=stop.is_set)
        viewer.detach(trainer)


def start_answers(viewer: Any, stop: threading.Event, line: Connection) -> None:
    """Tell where the viewer is, and then, in a thread, what it holds whenever a word comes, until an empty one."""

    def answer() -> None:
        while line.recv():
            line.send(sample(viewer))
        stop.set()

    line.send((viewer.page.address, Circle.around(viewer.subject)))
    threading.Thread(target=answer, daemon=True).start()


class Browser:
    """One that may freeze: nothing is read from its socket while it is frozen."""

    def __init__(self, address: str, circle: Circle, size: tuple[int, int], dice: random.Random):
        self.address, self.circle, self.size, self.dice = address, circle, size, dice
        self.n_pictures, self.angle = 0, dice.uniform(0, 6)
        self.outputs: str | None = None  # the list of outputs on the page

    async def come(self) -> None:
        """Connect, and read from then on."""
        import viser
        from websockets.asyncio.client import connect

        self.connection = await connect(
            self.address.replace("http://", "ws://"), subprotocols=[f"viser-v{viser.__version__}"],
            origin=self.address, max_size=2**26, compression=None, ping_interval=None,
        )  # fmt: skip
        self.reading = asyncio.create_task(self._read())

    async def load_page(self) -> None:
        """Fetch what is at the address."""
        host, port = self.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = ("GET / HTTP/1.1", f"Host: {host}:{port}", "Accept-Encoding: gzip", "Connection: close")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await reader.read()
        writer.close()

    async def tell(self, message: dict[str, Any]) -> None:
        """Send one of viser's messages."""
        import msgspec

        await self.connection.send(msgspec.msgpack.encode(message))

    async def drag(self, seconds: float) -> None:
        """Move the camera around."""
        for _ in range(max(round(seconds * DRAGS_A_SECOND), 1)):
            self.angle += 0.03
            place = self.circle.at(self.angle), self.circle.middle, self.circle.up
            await self.tell(camera_message(*place, 0.7, self.size))
            await asyncio.sleep(1 / DRAGS_A_SECOND)

    def freeze(self) -> None:
        """Read nothing any more."""
        self.connection.transport.pause_reading()

    async def is_hung_up(self) -> bool:
        """Read again what is left, which ends where the viewer has hung up."""
        self.connection.transport.resume_reading()
        return bool((await asyncio.wait([self.reading], timeout=5))[0])

    async def looks(self) -> None:
        await self.load_page()
        await self.drag(self.dice.uniform(2, 8))
        if self.outputs is not None:
            output = self.dice.choice(OUTPUTS)
            await self.tell({"type": "GuiUpdateMessage", "uuid": self.outputs, "updates": {"value": output}})
        await asyncio.sleep(self.dice.uniform(1, 5))
        await self.connection.close()

    async def vanishes(self) -> None:
        await self.drag(self.dice.uniform(0, 4))

    async def freezes(self) -> bool:
        await self.drag(self.dice.uniform(1, 3))
        self.freeze()
        await self.drag(1.0)
        await asyncio.sleep(FROZEN_SECONDS)
        return await self.is_hung_up()

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async for frame in self.connection:
                for message in decoded(frame):
                    self.n_pictures += message["type"] == "BackgroundImageMessage"
                    if message["type"] == "GuiDropdownMessage" and message["props"]["label"] == "Output":
                        self.outputs = message["uuid"]
        except ConnectionClosed:
            return


class Crowd:
    """Browsers that come and go until an end, some at once."""

    def __init__(self, address: str, circle: Circle, options: SoakOptions):
        self.address, self.circle, self.options = address, circle, options
        self.dice = random.Random(options.seed)
        self.came: Counter[str] = Counter()
        self.n_pictures = self.n_hung_up = self.n_lost = 0

    async def live(self, end: float) -> None:
        """Have `options.browsers` here until `end`, by time.monotonic."""
        await asyncio.gather(*(self._one_after_another(end) for _ in range(self.options.browsers)))

    async def _one_after_another(self, end: float) -> None:
        from websockets.exceptions import ConnectionClosed

        while (left := end - time.monotonic()) > 0:
            kinds = {kind: often for kind, often in OFTEN.items() if kind != "freezes" or left > FROZEN_SECONDS + 10}
            (kind,) = self.dice.choices(list(kinds), list(kinds.values()))
            browser = Browser(self.address, self.circle, self.options.size, random.Random(self.dice.random()))
            self.came[kind] += 1
            await browser.come()
            try:
                is_hung_up = bool(await getattr(browser, kind)())
                self.n_hung_up += is_hung_up
            except ConnectionClosed:
                self.n_lost += 1
            browser.connection.transport.abort()
            await browser.reading
            self.n_pictures += browser.n_pictures
            await asyncio.sleep(self.dice.uniform(0, 1))


async def watch(options: SoakOptions, trains: bool) -> dict[str, Any]:
    """Start a viewer, send it a crowd, and look at what it holds meanwhile."""
    processes = multiprocessing.get_context("spawn")
    line, there = processes.Pipe()
    process = processes.Process(target=serve, args=(options.run, trains, there), daemon=True)
    process.start()
    there.close()
    address, circle = await asyncio.to_thread(line.recv)
    crowd, samples, began = Crowd(address, circle, options), [], time.monotonic()

    async def look(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line.send("sample")
            taken = await asyncio.to_thread(line.recv)
            samples.append({"seconds": round(time.monotonic() - began, 1), **taken})
            await asyncio.sleep(min(SAMPLE_SECONDS, max(end - time.monotonic(), 0)))

    await look(QUIET_SECONDS)
    n_before, end = len(samples), time.monotonic() + 60 * options.minutes
    await asyncio.gather(crowd.live(end), look(60 * options.minutes))
    n_after = len(samples)
    await look(QUIET_SECONDS)
    line.send("")
    await asyncio.to_thread(process.join)
    return summary(samples, n_before, n_after) | {
        "browsers": sum(crowd.came.values()), "came": dict(crowd.came), "hung_up": crowd.n_hung_up,
        "lost": crowd.n_lost, "pictures": crowd.n_pictures, "samples": samples,
    }  # fmt: skip


def summary(samples: list[dict[str, Any]], n_before: int, n_after: int) -> dict[str, Any]:
    """Slope of memory while browsers came and went, and what there was before the first and after the last."""
    crowded = samples[n_before:n_after]
    later = crowded[len(crowded) // 5 :]
    hours = np.array([at["seconds"] for at in later]) / 3600
    memory = np.array([at["rss_mib"] for at in later])
    slope, start = np.polyfit(hours, memory, 1)
    spread = float(np.std(memory - slope * hours - start))
    quiet = samples[n_after:]
    return {
        "mib_per_hour": round(float(slope), 1),
        "mib_per_hour_error": round(spread / (float(np.std(hours)) * len(hours) ** 0.5), 1),  # standard
        "cpu_seconds_per_quiet_second": round(
            (quiet[-1]["cpu_seconds"] - quiet[0]["cpu_seconds"]) / (quiet[-1]["seconds"] - quiet[0]["seconds"]), 3
        ),
        "before": samples[n_before - 1],
        "after": samples[-1],
    }


def faults(result: dict[str, Any], most: float) -> list[str]:
    """What is not as it should be."""
    before, after = result["before"], result["after"]
    left = [f"{name} {before[name]} -> {after[name]}" for name in ("threads", "files") if after[name] > before[name]]
    left += [f"{after['sessions']} sessions are left"] * (after["sessions"] > 0)
    left += [f"{result['lost']} browsers were hung up on that were not frozen"] * (result["lost"] > 0)
    frozen = result["came"].get("freezes", 0) - result["hung_up"]
    left += [f"{frozen} frozen browsers were not hung up on"] * (frozen > 0)
    slope, error = result["mib_per_hour"], 2 * result["mib_per_hour_error"]
    if slope + error > most:
        left.append("memory grows" if slope - error > most else "too short to tell whether memory grows")
    return left


def a_line_each(text: str) -> str:
    """JSON of which each innermost object, such as a sample, has one line."""
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found[0].split()), text)


def main() -> int:
    options = tyro.cli(SoakOptions, config=(tyro.conf.FlagConversionOff,), use_underscores=True)
    from nerfkit.version import versions

    report = {"options": asdict(options) | {"run": options.run.name, "out": ""}, "versions": versions()}
    bad = False
    for name, trains in (("view", False), ("train", True)):
        result = report[name] = asyncio.run(watch(options, trains))
        wrong = faults(result, options.most)
        bad |= bool(wrong)
        before, after = result["before"], result["after"]
        held = [f"{what} {before[key]} -> {after[key]}" for what, key in HELD.items()]
        slope = f"{result['mib_per_hour']:+} +- {result['mib_per_hour_error']} MiB per hour"
        verdict = "; ".join(wrong) or "flat, and nothing is left"
        print(f"{name}: {result['browsers']} browsers, {', '.join(held)}, {slope}: {verdict}", flush=True)
        if options.out:
            Path(options.out).write_text(a_line_each(json.dumps(report, indent=1)) + "\n")
    return bad


if __name__ == "__main__":
    sys.exit(main())
