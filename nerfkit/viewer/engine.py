# SPDX-License-Identifier: Apache-2.0
"""Which frame is drawn next: requests of clients in, frames out; knows no browser and no model.

While a camera moves, frames are as small as they must be to follow it. When it has stood still for a moment, the full
frame is drawn, after smaller ones where it takes long, and then once more with four rays a pixel. A frame is drawn in
chunks of milliseconds; between two of them, a newer request of the same client replaces a full frame. `request` and
`forget` may be called from any thread; everything else belongs to the one thread that renders.
"""

import math
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nerfkit.viewer.pacing import AWAITED, SHOWN, Chunk, Resolution

STILL_AFTER = 0.15  # seconds after the last change
LONG_FRAME = 2.0  # seconds; before a frame that takes longer, smaller ones are drawn, each of twice the sides
MOVING, FULL, FINE, DONE = range(4)  # stages of a client, in this order

Job = Generator[None, None, None]  # yields after each slice of work


class Request(NamedTuple):
    camera: Any  # of the frame, for `start`
    size: tuple[int, int]  # width and height of the full frame [pixels]
    look: Any  # what is drawn: `look.output` names what costs alike


@dataclass
class _Client:
    """A client since its newest request: another request makes another of these."""

    id: int
    request: Request | None
    changed_at: float
    stage: int = MOVING  # of the next frame
    again: bool = False  # whether the full frame has been drawn since the request
    drawn_at: float = 0.0
    scale: float = 0.0  # of the sides of its last frame


@dataclass
class _Drawing:
    client: _Client
    stage: int
    slices: Job | None = None
    size: tuple[int, int] = (0, 0)
    share: float = 0.0  # that is done


class Engine:
    """Draws what clients request.

    Args:
        start: camera, width, height, look -> a frame of `n_rays`; its `render` returns when rays start..end are drawn,
            its `finish`, after all of them, returns the image.
        deliver: gets a client, which may have gone, an image that is finished, and its stage.
        failed: gets a client, or -1 for a job, and the exception that its frame ended in.
        clock: seconds.
    """

    def __init__(
        self, start: Callable, deliver: Callable, failed: Callable, clock: Callable[[], float] = time.perf_counter
    ):
        self.start, self.deliver, self.failed, self.clock = start, deliver, failed, clock
        self.frame_seconds = 1 / 15  # of a frame while the camera moves, where that suffices for the smallest
        self.full_seconds = math.inf  # of a full frame, which is smaller where it would take longer
        self.fine = True  # whether the last frame has four rays a pixel
        self.clients: dict[int, _Client] = {}
        self.jobs: list[Job] = []
        self.resolutions: dict[Any, Resolution] = {}
        self.chunk = Chunk()
        self._changed = threading.Event()
        self._drawing: _Drawing | None = None

    def request(self, client: int, request: Request) -> None:
        """The newest request of a client replaces its earlier ones; one that changes nothing is ignored."""
        known = self.clients.get(client, _Client(client, None, 0.0))
        if known.request != request:
            self.clients[client] = replace(known, request=request, changed_at=self.clock(), stage=MOVING, again=False)
            self.wake()

    def forget(self, client: int) -> None:
        self.clients.pop(client, None)
        self.wake()

    def add_job(self, job: Job) -> None:
        """Work for when no frame is wanted."""
        self.jobs.append(job)
        self.wake()

    def drop_job(self, job: Job) -> None:
        """Nobody wants a job any more: it ends where it is."""
        if job in self.jobs:
            self.jobs.remove(job)
            job.close()

    def wake(self) -> None:
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait for a request, until a frame is due, or for `seconds`."""
        now = self.clock()
        due = [client.changed_at + STILL_AFTER - now for client in list(self.clients.values()) if client.stage < DONE]
        self._changed.wait(min([seconds, *(later for later in due if later > 0)]))
        self._changed.clear()

    def refresh(self) -> None:
        """What is drawn has changed: frames of cameras that stand still are drawn again."""
        for client in list(self.clients.values()):
            if client.stage > FULL:
                client.stage, client.again = FULL, True

    def next(self) -> str | None:
        """The kind of the next frame, if one is due: somebody has moved, or what they see has changed since."""
        client = self._choose()
        if client is None:
            return None
        return AWAITED if client.stage == MOVING or (client.stage == FULL and not client.again) else SHOWN

    def step(self) -> bool:
        """Work for a moment, a chunk at most; False if there is nothing to do now. See `is_between_frames`."""
        drawing = self._drawing
        if drawing is not None:
            # A small frame is finished even if there is a newer request: else a camera that never rests would never be
            # seen.
            newest = self.clients.get(drawing.client.id)
            if newest is None or (newest is not drawing.client and drawing.stage != MOVING):
                drawing = None
        if drawing is None and (client := self._choose()) is not None:
            drawing = _Drawing(client, client.stage)
            drawing.slices = self._slices(drawing)
        self._drawing = drawing
        if drawing is None:
            return self.step_job()
        try:
            next(drawing.slices)
            return True
        except StopIteration as end:
            drawing.client.stage = end.value
        except Exception as error:
            drawing.client.stage = DONE
            self.failed(drawing.client.id, error)
        self._drawing = None
        return True

    @property
    def is_between_frames(self) -> bool:
        return self._drawing is None

    def progress(self, client: int) -> tuple[tuple[int, int], float] | None:
        drawing = self._drawing
        return (drawing.size, drawing.share) if drawing is not None and drawing.client.id == client else None

    def step_job(self) -> bool:
        if not self.jobs:
            return False
        job = self.jobs[0]
        try:
            next(job)
        except StopIteration:
            self.jobs.remove(job)
        except Exception as error:
            self.jobs.remove(job)
            self.failed(-1, error)
        return True

    def _choose(self) -> _Client | None:
        """The client whose frame is next: one that moves before one that stands still, then who waited longest."""
        now, last = self.clock(), FINE if self.fine else FULL
        due = [
            client
            for client in list(self.clients.values())
            if client.stage == MOVING or (client.stage <= last and now - client.changed_at >= STILL_AFTER)
        ]
        return min(due, key=lambda client: (client.stage, client.drawn_at), default=None)

    def _resolution(self, request: Request) -> Resolution:
        return self.resolutions.setdefault(request.look.output, Resolution())

    def _scale(self, drawing: _Drawing) -> tuple[float, int]:
        (width, height), resolution = drawing.client.request.size, self._resolution(drawing.client.request)
        if drawing.stage == FINE:
            return 2.0, DONE
        if drawing.stage == MOVING:
            scale = resolution.scale(width * height, self.frame_seconds)
            return scale, FINE if scale == 1.0 else FULL
        expected = max(resolution.seconds(width * height), 1e-9)
        last = min(1.0, math.sqrt(self.full_seconds / expected))
        now = max(2 * drawing.client.scale, math.sqrt(LONG_FRAME / expected))
        return (now, FULL) if 1.5 * now < last else (last, FINE)

    def _slices(self, drawing: _Drawing) -> Generator[None, None, int]:
        """Draw a frame, a chunk at a time, and measure it; returns the stage that is next."""
        request, stage, began = drawing.client.request, drawing.stage, self.clock()
        scale, after = self._scale(drawing)
        width, height = drawing.size = tuple(max(round(side * scale), 1) for side in request.size)
        frame = self.start(request.camera, width, height, request.look)
        overhead, seconds, done = self.clock() - began, 0.0, 0
        while True:
            start, done, began = done, min(done + self.chunk.rays, frame.n_rays), self.clock()
            frame.render(start, done)
            took = self.clock() - began
            self.chunk.add(done - start, took)
            seconds += took
            drawing.share = done / frame.n_rays
            if done == frame.n_rays:
                break
            yield
        began = self.clock()
        self.deliver(drawing.client.id, frame.finish(), stage)
        client = self.clients.get(drawing.client.id, drawing.client)  # as it is now
        client.drawn_at, client.scale = self.clock(), scale
        if stage != FINE:
            overhead += client.drawn_at - began
            self._resolution(request).add(frame.n_rays, seconds, overhead, scale == 1.0)
        return after
