# SPDX-License-Identifier: Apache-2.0
"""Which picture is drawn next: requests of clients in, pictures out; knows no browser and no model.

While a camera moves, pictures are as small as they must be to follow it. When it has stood still for a moment, the
full picture is drawn, and then once more with four rays a pixel. A picture is drawn in chunks of milliseconds; between
two of them, a newer request of the same client replaces a full picture. `request` and `forget` may be called from any
thread; everything else belongs to the one thread that renders.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nerfkit.viewer.pacing import DONE, FINE, FULL, MOVING, Chunk, Resolution

STILL_AFTER = 0.15  # seconds after the last change

Job = Generator[None, None, None]  # yields after each slice of work


class Request(NamedTuple):
    """What one client wants to see."""

    camera: Any  # of the picture, for `start`
    size: tuple[int, int]  # width and height of the full picture [pixels]
    look: Any = None  # what is drawn: `look.output` names what costs alike
    fine: bool = True  # drawn once more with four rays a pixel in the end


class Picture(Protocol):
    """One picture that is being drawn."""

    n_rays: int

    def render(self, start: int, end: int) -> None:
        """Render rays start..end; returns when they are rendered."""

    def finish(self) -> Any:
        """The picture, after all rays."""


class Due(NamedTuple):
    """The next picture."""

    stage: int
    again: bool  # whether it only shows what has changed since
    seconds: float  # that it will take; 0 if unknown


class Drawn(NamedTuple):
    """A finished picture."""

    client: int
    request: Request
    image: Any
    stage: int
    scale: float
    seconds: float  # since the request changed


@dataclass
class _Client:
    request: Request
    changed_at: float
    stage: int = MOVING  # of the next picture
    again: bool = False  # whether the full picture has been drawn since the request
    drawn_at: float = 0.0
    picture: Picture | None = None
    of: Request | None = None  # what the picture shows
    of_changed_at: float = 0.0
    of_stage: int = MOVING
    scale: float = 1.0
    rays_done: int = 0
    render_seconds: float = 0.0
    began_at: float = 0.0
    start_seconds: float = 0.0


@dataclass
class Settings:
    """What a user may change while it runs."""

    picture_seconds: float = 1 / 15  # of a picture while the camera moves, where that suffices for the smallest
    full_seconds: float = math.inf  # of a full picture, which is smaller where it would take longer
    share: float = 1.0  # of wall time that drawing gets while a camera moves
    still_after: float = STILL_AFTER
    fine: bool = True  # whether the last picture has four rays a pixel


class Engine:
    """Draws what clients request.

    Args:
        start: camera, width, height, look -> Picture.
        deliver: gets every Drawn picture.
        failed: gets a client and the exception that its picture ended in; without it, that is raised.
        clock: seconds.
    """

    def __init__(
        self,
        start: Callable[[Any, int, int, Any], Picture],
        deliver: Callable[[Drawn], None],
        failed: Callable[[int, Exception], None] | None = None,
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
        self._active: _Client | None = None  # whose picture is half drawn

    def request(self, client: int, request: Request) -> None:
        """The newest request of a client replaces its earlier ones; one that changes nothing is ignored."""
        with self._lock:
            known = self.clients.get(client)
            if known is None:
                self.clients[client] = _Client(request, self.clock())
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
        """Work for when no picture is wanted."""
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
        """Wait for a request, until a picture is due, or for `seconds`."""
        now = self.clock()
        due = [c.changed_at + self.settings.still_after - now for c in self._all() if c.stage < DONE]
        self._changed.wait(min([seconds, *(later for later in due if later > 0)]))
        self._changed.clear()

    def refresh(self) -> None:
        """What is drawn has changed: pictures of cameras that stand still are drawn again."""
        with self._lock:
            for client in self.clients.values():
                if client.stage > FULL:
                    client.stage, client.again = FULL, True

    def next(self) -> Due | None:
        """The next picture; None if none is due."""
        client = self._choose()
        if client is None:
            return None
        request, stage = client.request, client.stage
        width, height, _ = self._size(request, stage)
        return Due(stage, client.again, self._resolution(request).seconds(width * height))

    def step(self) -> bool:
        """Work for a moment, a chunk at most; False if there is nothing to do now. See `is_between_pictures`."""
        self._drop_outdated()
        client = self._active or self._choose()
        if client is None:
            return self.step_job()
        try:
            if client.picture is None:
                self._begin(client)
            self._render_chunk(client)
            if client.rays_done == client.picture.n_rays:
                self._finish(client)
        except Exception as error:
            with self._lock:
                client.picture, self._active = None, None
                if client.request is client.of:
                    client.stage = DONE
            if self.failed is None:
                raise
            self.failed(self._id(client), error)
        return True

    @property
    def is_between_pictures(self) -> bool:
        """Whether no picture is half drawn."""
        return self._active is None

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
            if self.failed is None:
                raise
            self.failed(-1, error)
        return True

    def _all(self) -> list[_Client]:
        with self._lock:
            return list(self.clients.values())

    def _id(self, client: _Client) -> int:
        with self._lock:
            return next((id for id, known in self.clients.items() if known is client), -1)

    def _choose(self) -> _Client | None:
        """The client whose picture is next: one that moves before one that stands still, then who waited longest."""
        now = self.clock()
        due = [client for client in self._all() if self._is_due(client, now)]
        return min(due, key=lambda client: (client.stage, client.drawn_at), default=None)

    def _is_due(self, client: _Client, now: float) -> bool:
        if client.stage == FINE and not (self.settings.fine and client.request.fine):
            return False
        rested = now - client.changed_at >= self.settings.still_after
        return client.stage == MOVING or (client.stage < DONE and rested)

    def _drop_outdated(self) -> None:
        """Forget the half drawn picture of a client that has gone, and a full one of which there is a newer request.

        A small picture is finished: else a camera that never rests would never be seen.
        """
        client = self._active
        if client is None:
            return
        outdated = client.of_stage != MOVING and client.request is not client.of
        if outdated or self._id(client) < 0:
            client.picture, self._active = None, None

    def _resolution(self, request: Request) -> Resolution:
        return self.resolutions.setdefault(getattr(request.look, "output", None), Resolution())

    def _size(self, request: Request, stage: int) -> tuple[int, int, float]:
        """Width, height and scale of a picture."""
        width, height = request.size
        if stage == FULL:
            expected = self._resolution(request).seconds(width * height)
            scale = min(1.0, math.sqrt(self.settings.full_seconds / max(expected, 1e-9)))
            return max(round(width * scale), 1), max(round(height * scale), 1), scale
        if stage == FINE:
            return 2 * width, 2 * height, 2.0
        seconds = self.settings.picture_seconds * self.settings.share
        scale = self._resolution(request).scale(width * height, seconds)
        return max(round(width * scale), 1), max(round(height * scale), 1), scale

    def _begin(self, client: _Client) -> None:
        with self._lock:
            client.of, client.of_stage, client.of_changed_at = client.request, client.stage, client.changed_at
        width, height, client.scale = self._size(client.of, client.of_stage)
        client.rays_done, client.render_seconds, client.began_at = 0, 0.0, self.clock()
        client.picture = self.start(client.of.camera, width, height, client.of.look)
        client.start_seconds = self.clock() - client.began_at
        self._active = client

    def _render_chunk(self, client: _Client) -> None:
        start, end = client.rays_done, min(client.rays_done + self.chunk.rays, client.picture.n_rays)
        began = self.clock()
        client.picture.render(start, end)
        seconds = self.clock() - began
        client.rays_done = end
        client.render_seconds += seconds
        self.chunk.add(end - start, seconds)

    def _finish(self, client: _Client) -> None:
        picture, request, stage = client.picture, client.of, client.of_stage
        client.picture, self._active = None, None
        began = self.clock()
        drawn = Drawn(self._id(client), request, picture.finish(), stage, client.scale, began - client.of_changed_at)
        if drawn.client >= 0:
            self.deliver(drawn)
        client.drawn_at = now = self.clock()
        overhead = client.start_seconds + now - began
        if stage != FINE:
            self._resolution(request).add(picture.n_rays, client.render_seconds, overhead, client.scale == 1.0)
        with self._lock:
            if client.request is request:
                is_full = stage == FULL or client.scale == 1.0
                client.stage = DONE if stage == FINE else FINE if is_full else FULL
