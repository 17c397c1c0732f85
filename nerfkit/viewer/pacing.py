# SPDX-License-Identifier: Apache-2.0
"""How much is drawn at once, at which size, and for how much of the time: measured times in, sizes out."""

import math
from dataclasses import dataclass, field

CHUNK_SECONDS = 0.008  # at most, of a chunk, unless what each costs anyway is more than half of it
FIRST_CHUNK, SMALLEST_CHUNK, LARGEST_CHUNK = 2**9, 2**8, 2**20  # rays; all are powers of two
STEPS = 8  # a side is a multiple of 1/8 of the full one, ...
SMALLEST = 0.1  # ... or this
UP, DOWN = 0.03, 0.02  # by how much the next step must be passed to change to it: no flicker between two sizes
TRUSTED_RAYS = 2**16  # of a frame whose time per ray counts; smaller ones mostly measure what each costs anyway
WEIGHT = 0.3  # of a new measurement
LONGEST_TURN = 0.25  # seconds that training gets at most after a frame that somebody waits for, or a job at once
AWAITED, SHOWN, JOB = "awaited", "shown", "job"  # kinds of drawing beside a training


class Chunk:
    """How many rays a chunk has, so that it takes milliseconds and most of them are spent on rays.

    Each chunk has a cost besides its rays, on a GPU of milliseconds: were all of its time put down to its rays, chunks
    would shrink and shrink, and frames with them. Two sizes, one twice the other, tell both costs apart.
    """

    def __init__(self) -> None:
        self.rays = FIRST_CHUNK
        self._before = 0, 0.0  # rays and seconds of the last chunk of another size
        self._limit = CHUNK_SECONDS

    def add(self, n_rays: int, seconds: float) -> None:
        """A chunk took so long; the next one has half as many rays, as many, or twice as many."""
        (other, earlier), per_chunk = self._before, 0.0
        if n_rays >= 2 * other or 2 * n_rays <= other:
            per_chunk = min(max(seconds - n_rays * (seconds - earlier) / (n_rays - other), 0.0), seconds)
            self._limit = max(CHUNK_SECONDS, 2 * per_chunk)
        is_whole = n_rays == self.rays  # else the rest of a frame
        if seconds > self._limit:
            self.rays = max(self.rays // 2, SMALLEST_CHUNK)
        elif is_whole and 2 * seconds - per_chunk <= self._limit:
            self.rays = min(self.rays * 2, LARGEST_CHUNK)
        if n_rays >= 2 * self.rays or 2 * n_rays <= self.rays:
            self._before = n_rays, seconds


class Resolution:
    """Times of the frames of one output, and the scale at which one can be drawn in a given time.

    Small frames are drawn because large ones take long; were their time per ray believed, in which the fixed costs
    weigh most, frames would become ever smaller. So only large frames are measured, and full ones of any size.
    """

    def __init__(self) -> None:
        self.per_ray: float | None = None  # seconds
        self.overhead: float | None = None  # seconds of a frame besides its rays: colors, JPEG, sending
        self._is_guess = True
        self._scale: float | None = None

    def add(self, n_rays: int, seconds: float, overhead: float, is_full: bool) -> None:
        """A frame was drawn in `seconds`, `overhead` not included."""
        trusted = is_full or n_rays >= TRUSTED_RAYS
        if trusted and self._is_guess:
            self.per_ray, self._is_guess = None, False
        if trusted or self._is_guess:
            self.per_ray = _averaged(self.per_ray, seconds / n_rays)
        self.overhead = _averaged(self.overhead, overhead)

    def seconds(self, n_rays: int) -> float:
        """Expected time of a frame; 0 before the first."""
        return (self.per_ray or 0.0) * n_rays + (self.overhead or 0.0)

    def scale(self, n_rays: int, seconds: float) -> float:
        """Scale of the sides of a frame of `n_rays`, so that it takes about `seconds`."""
        if self.per_ray is None:
            return SMALLEST
        affordable = max(seconds - (self.overhead or 0.0), 0.25 * seconds) / self.per_ray
        exact = min(max(math.sqrt(affordable / n_rays), SMALLEST), 1.0)
        steps = math.floor((self._scale or 0.0) * STEPS + 1e-9)  # of the scale before
        above = min((steps + 1) / STEPS, 1.0)
        if self._scale is None or exact < self._scale - DOWN or exact >= above + UP or exact == 1.0:
            self._scale = max(math.floor(exact * STEPS + 1e-9) / STEPS, SMALLEST)
        return self._scale


def _averaged(before: float | None, value: float) -> float:
    return value if before is None else before + WEIGHT * (value - before)


@dataclass
class Sharing:
    """How wall time is shared between training and drawing, each kind of which has credit that training earns for it.

    A frame that somebody waits for, of a camera that moves or has just stopped, gets half of the time, one that only
    shows that training goes on, what is left to drawing. While there is a job, such as a video, both have half of that.
    """

    training: float = 0.96  # share of wall time for training, while cameras stand still
    credit: dict[str, float] = field(default_factory=lambda: dict.fromkeys((AWAITED, SHOWN, JOB), 0.0))  # seconds

    def add_training(self, seconds: float, has_job: bool = False) -> None:
        earned = seconds * (1 - self.training) / self.training / (1 + has_job)
        for kind, more, most in ((AWAITED, seconds, 0.0), (SHOWN, earned, 0.0), (JOB, earned * has_job, LONGEST_TURN)):
            self.credit[kind] = min(self.credit[kind] + more, most)

    def has_budget(self, kind: str) -> bool:
        return self.credit[kind] >= 0

    def add_time(self, kind: str, seconds: float) -> None:
        self.credit[kind] = max(self.credit[kind] - seconds, -LONGEST_TURN if kind == AWAITED else -math.inf)
