# SPDX-License-Identifier: Apache-2.0
"""Which frame is drawn next: requests of clients in, frames out; knows no browser and no model.

While a camera moves, frames are as small as they must be to follow it. When it has stood still for a moment, the full
frame is drawn, and then once more with four rays a pixel. A frame is drawn in chunks of milliseconds; between two of
them, a newer request of the same client replaces a full frame. `request` and `forget` may be called from any thread;
everything else belongs to the one thread that renders.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nerfkit.viewer.pacing import Chunk, Resolution

STILL_AFTER = 0.15  # seconds after the last change
MOVING, FULL, FINE, DONE = range(4)  # stages of a client, in this order

Job = Generator[None, None, None]  # yields after each slice of work


class Request(NamedTuple):
    """What one client wants to see."""

    camera: Any  # of the frame, for `start`
    size: tuple[int, int]  # width and height of the full frame [pixels]
    look: Any = None  # what is drawn: `look.output` names what costs alike


class PendingFrame(Protocol):
    """One frame that is being drawn."""

    n_rays: int

    def render(self, start: int, end: int) -> None:
        """Render rays start..end; returns when they are rendered."""

    def finish(self) -> Any:
        """The image, after all rays."""


class NextFrame(NamedTuple):
    """The frame that is due."""

    is_awaited: bool  # by somebody who has moved; others only show what has changed since
    seconds: float  # that it will take; 0 if unknown


class FinishedFrame(NamedTuple):
    """A frame for a client."""

    client: int
    request: Request
    image: Any
    stage: int
    scale: float
    seconds: float  # since the request changed


@dataclass
class _Client:
    id: int
    request: Request
    changed_at: float
    stage: int = MOVING  # of the next frame
    again: bool = False  # whether the full frame has been drawn since the request
    drawn_at: float = 0.0


@dataclass
class _Drawing:
    """A frame that is half drawn."""

    client: _Client
    request: Request
    changed_at: float
    stage: int
    scale: float = 1.0
    frame: PendingFrame | None = None
    rays_done: int = 0
    seconds: float = 0.0  # of rays
    overhead: float = 0.0  # seconds of all else


@dataclass
class Settings:
    """What may change while it runs."""

    frame_seconds: float = 1 / 15  # of a frame while the camera moves, where that suffices for the smallest
    full_seconds: float = math.inf  # of a full frame, which is smaller where it would take longer
    fine: bool = True  # whether the last frame has four rays a pixel


def raised(client: int, error: Exception) -> None:
    """What becomes of errors if nobody else takes them."""
    raise error


class Engine:
    """Draws what clients request.

    Args:
        start: camera, width, height, look -> PendingFrame.
        deliver: gets every FinishedFrame.
        failed: gets a client, or -1 for a job, and the exception that its frame ended in.
        clock: seconds.
    """

    def __init__(
        self,
        start: Callable[[Any, int, int, Any], PendingFrame],
        deliver: Callable[[FinishedFrame], None],
        failed: Callable[[int, Exception], None] = raised,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.start, self.deliver, self.failed, self.clock = start, deliver, failed, clock
        self.settings = Settings()
        self.clients: dict[int, _Client] = {}
        self.jobs: list[Job] = []
        self.resolutions: dict[Any, Resolution] = {}
        self.chunk = Chunk()
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._drawing: _Drawing | None = None

    def request(self, client: int, request: Request) -> None:
        """The newest request of a client replaces its earlier ones; one that changes nothing is ignored."""
        with self._lock:
            known = self.clients.get(client)
            if known is None:
                self.clients[client] = _Client(client, request, self.clock())
            elif known.request == request:
                return
            else:
                known.request, known.changed_at, known.stage, known.again = request, self.clock(), MOVING, False
        self._changed.set()

    def forget(self, client: int) -> None:
        """A client has gone."""
        with self._lock:
            self.clients.pop(client, None)
        self._changed.set()

    def add_job(self, job: Job) -> None:
        """Work for when no frame is wanted."""
        self.jobs.append(job)
        self._changed.set()

    def drop_job(self, job: Job) -> None:
        """Nobody wants a job any more: it ends where it is."""
        if job in self.jobs:
            self.jobs.remove(job)
            job.close()

    def wake(self) -> None:
        """End a `wait`."""
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait for a request, until a frame is due, or for `seconds`."""
        now = self.clock()
        due = [client.changed_at + STILL_AFTER - now for client in self._all() if client.stage < DONE]
        self._changed.wait(min([seconds, *(later for later in due if later > 0)]))
        self._changed.clear()

    def refresh(self) -> None:
        """What is drawn has changed: frames of cameras that stand still are drawn again."""
        with self._lock:
            for client in self.clients.values():
                if client.stage > FULL:
                    client.stage, client.again = FULL, True

    def next(self) -> NextFrame | None:
        """The next frame; None if none is due."""
        client = self._choose()
        if client is None:
            return None
        request, stage = client.request, client.stage
        width, height, _ = self._size(request, stage)
        is_awaited = stage == MOVING or (stage == FULL and not client.again)
        return NextFrame(is_awaited, self._resolution(request).seconds(width * height))

    def step(self) -> bool:
        """Work for a moment, a chunk at most; False if there is nothing to do now. See `is_between_frames`."""
        self._drop_outdated()
        client = None if self._drawing else self._choose()
        if client is None and self._drawing is None:
            return self.step_job()
        try:
            if client is not None:
                self._begin(client)
            self._render_chunk(self._drawing)
            if self._drawing.rays_done == self._drawing.frame.n_rays:
                self._finish(self._drawing)
        except Exception as error:
            with self._lock:
                drawing, self._drawing = self._drawing, None
                if drawing.client.request is drawing.request:
                    drawing.client.stage = DONE
            self.failed(drawing.client.id, error)
        return True

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is half drawn."""
        return self._drawing is None

    def step_job(self) -> bool:
        """Do a slice of the first job; False if there is none."""
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

    def _all(self) -> list[_Client]:
        with self._lock:
            return list(self.clients.values())

    def _choose(self) -> _Client | None:
        """The client whose frame is next: one that moves before one that stands still, then who waited longest."""
        now = self.clock()
        due = [client for client in self._all() if self._is_due(client, now)]
        return min(due, key=lambda client: (client.stage, client.drawn_at), default=None)

    def _is_due(self, client: _Client, now: float) -> bool:
        last = FINE if self.settings.fine else FULL
        return client.stage == MOVING or (client.stage <= last and now - client.changed_at >= STILL_AFTER)

    def _drop_outdated(self) -> None:
        """Forget the half drawn frame of a client that has gone, and a full one of which there is a newer request.

        A small frame is finished: else a camera that never rests would never be seen.
        """
        drawing = self._drawing
        if drawing is None:
            return
        outdated = drawing.stage != MOVING and drawing.client.request is not drawing.request
        if outdated or drawing.client.id not in self.clients:
            self._drawing = None

    def _resolution(self, request: Request) -> Resolution:
        return self.resolutions.setdefault(getattr(request.look, "output", None), Resolution())

    def _size(self, request: Request, stage: int) -> tuple[int, int, float]:
        """Width, height and scale of a frame."""
        (width, height), resolution = request.size, self._resolution(request)
        if stage == FINE:
            return 2 * width, 2 * height, 2.0
        if stage == FULL:
            expected = resolution.seconds(width * height)
            scale = min(1.0, math.sqrt(self.settings.full_seconds / max(expected, 1e-9)))
        else:
            scale = resolution.scale(width * height, self.settings.frame_seconds)
        return max(round(width * scale), 1), max(round(height * scale), 1), scale

    def _begin(self, client: _Client) -> None:
        with self._lock:
            self._drawing = drawing = _Drawing(client, client.request, client.changed_at, client.stage)
        began = self.clock()
        width, height, drawing.scale = self._size(drawing.request, drawing.stage)
        drawing.frame = self.start(drawing.request.camera, width, height, drawing.request.look)
        drawing.overhead = self.clock() - began

    def _render_chunk(self, drawing: _Drawing) -> None:
        start, end = drawing.rays_done, min(drawing.rays_done + self.chunk.rays, drawing.frame.n_rays)
        began = self.clock()
        drawing.frame.render(start, end)
        seconds = self.clock() - began
        drawing.rays_done = end
        drawing.seconds += seconds
        self.chunk.add(end - start, seconds)

    def _finish(self, drawing: _Drawing) -> None:
        client, request, stage, scale = drawing.client, drawing.request, drawing.stage, drawing.scale
        began = self.clock()
        image = drawing.frame.finish()
        if client.id in self.clients:
            self.deliver(FinishedFrame(client.id, request, image, stage, scale, began - drawing.changed_at))
        client.drawn_at = self.clock()
        overhead = drawing.overhead + client.drawn_at - began
        if stage != FINE:
            self._resolution(request).add(drawing.frame.n_rays, drawing.seconds, overhead, scale == 1.0)
        with self._lock:
            self._drawing = None
            if client.request is request:
                is_full = stage == FULL or scale == 1.0
                client.stage = DONE if stage == FINE else FINE if is_full else FULL
