# SPDX-License-Identifier: Apache-2.0
"""How much is drawn at once, at which size, and for how much of the time: measured times in, sizes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOVING, FULL, FINE, DONE = range(4)  # stages of a client, in this order
CHUNK_SECONDS = 0.008  # at most, of a chunk, unless what each costs anyway is more than half of it
FIRST_CHUNK, SMALLEST_CHUNK, LARGEST_CHUNK = 2**9, 2**8, 2**20  # rays; all are powers of two
FORGOTTEN_AFTER = 32  # chunks


class Chunk:
    """How many rays a chunk has, so that it takes milliseconds and most of them are spent on rays.

    Each chunk has a cost besides its rays, on a GPU of milliseconds: were all of its time put down to its rays, chunks
    would shrink and shrink, and pictures with them. Two sizes, one twice the other, tell both costs apart.
    """

    def __init__(self) -> None:
        self.rays = FIRST_CHUNK
        self._seconds: dict[int, float] = {}  # of chunks, by their rays
        self._fixed_before = 0.0  # seconds of a chunk besides its rays, as last told
        self._added = 0

    def add(self, n_rays: int, seconds: float) -> None:
        """A chunk took so long; the next one has half as many rays, as many, or twice as many."""
        if n_rays < self.rays:  # the rest of a picture
            if seconds > max(CHUNK_SECONDS, 2 * self._fixed_before):
                self.rays = max(self.rays // 2, SMALLEST_CHUNK)
            return
        self._added += 1
        if self._added % FORGOTTEN_AFTER == 0:
            self._seconds.clear()
        self._seconds[n_rays] = seconds
        if self._seconds.keys() & {n_rays // 2, n_rays * 2}:
            self._fixed_before = self._fixed(n_rays, seconds)
        if self._should_grow(n_rays, seconds):
            self.rays = min(n_rays * 2, LARGEST_CHUNK)
        elif self._should_shrink(n_rays, seconds):
            self.rays = max(n_rays // 2, SMALLEST_CHUNK)

    def _should_grow(self, n_rays: int, seconds: float) -> bool:
        half, double = self._seconds.get(n_rays // 2), self._seconds.get(n_rays * 2)
        if half is None and double is None:
            return seconds <= CHUNK_SECONDS / 2 or n_rays == SMALLEST_CHUNK  # to be compared with
        expected = 2 * seconds - self._fixed(n_rays, seconds) if double is None else min(double, 2 * seconds)
        return expected <= self._limit(n_rays, seconds)

    def _should_shrink(self, n_rays: int, seconds: float) -> bool:
        if self._seconds.keys() == {n_rays}:
            return True  # to be compared with
        return seconds > self._limit(n_rays, seconds)

    def _limit(self, n_rays: int, seconds: float) -> float:
        return max(CHUNK_SECONDS, 2 * self._fixed(n_rays, seconds))

    def _fixed(self, n_rays: int, seconds: float) -> float:
        """Seconds of a chunk besides its rays."""
        half, double = self._seconds.get(n_rays // 2), self._seconds.get(n_rays * 2)
        fixed = 2 * half - seconds if half is not None else 2 * seconds - (double or 2 * seconds)
        return min(max(fixed, 0.0), seconds)


STEPS = 8  # a side is a multiple of 1/8 of the full one, ...
SMALLEST = 0.2  # ... or this
UP, DOWN = 0.03, 0.02  # by how much the next step must be passed to change to it: no flicker between two sizes
TRUSTED_RAYS = 2**16  # of a picture whose time per ray counts; smaller ones mostly measure what each costs anyway
WEIGHT = 0.3  # of a new measurement


class Average:
    """Exponential average; the first value is taken as it is."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + WEIGHT * (value - self.value)


class Resolution:
    """Times of the pictures of one output, and the scale at which one can be drawn in a given time.

    Small pictures are drawn because large ones take long; were their time per ray believed, in which the fixed costs
    weigh most, pictures would become ever smaller. So only large pictures are measured, and full ones of any size.
    """

    def __init__(self) -> None:
        self.per_ray = Average()  # seconds
        self.overhead = Average()  # seconds of a picture besides its rays: colors, JPEG, sending
        self._is_guess = True
        self._scale: float | None = None

    def add(self, n_rays: int, seconds: float, overhead: float, is_full: bool) -> None:
        """A picture was drawn in `seconds`, `overhead` not included."""
        trusted = is_full or n_rays >= TRUSTED_RAYS
        if trusted and self._is_guess:
            self.per_ray, self._is_guess = Average(), False
        if trusted or self._is_guess:
            self.per_ray.add(seconds / n_rays)
        self.overhead.add(overhead)

    def seconds(self, n_rays: int) -> float:
        """Expected time of a picture; 0 before the first."""
        return (self.per_ray.value or 0.0) * n_rays + (self.overhead.value or 0.0)

    def scale(self, n_rays: int, seconds: float) -> float:
        """Scale of the sides of a picture of `n_rays`, so that it takes about `seconds`."""
        if self.per_ray.value is None:
            return SMALLEST
        affordable = max(seconds - (self.overhead.value or 0.0), 0.25 * seconds) / self.per_ray.value
        exact = min(max(math.sqrt(affordable / n_rays), SMALLEST), 1.0)
        if self._scale is None or exact < self._scale - DOWN or exact >= _above(self._scale) + UP or exact == 1.0:
            self._scale = _at_most(exact)
        return self._scale


def _at_most(scale: float) -> float:
    """The step at or below `scale`."""
    return max(math.floor(scale * STEPS + 1e-9) / STEPS, SMALLEST)


def _above(scale: float) -> float:
    """The next step above a step."""
    return min((math.floor(scale * STEPS + 1e-9) + 1) / STEPS, 1.0)


LONGEST_TURN = 0.25  # seconds that training gets at most, after a picture that somebody waits for
SAVED_UP = 2.0  # seconds of drawing that may be saved up at most, or one picture if that takes longer


@dataclass
class Sharing:
    """Credit for drawing, earned by training.

    A picture that somebody waits for, of a camera that moves or has just stopped, gets half of the time: training has a
    turn as long as the last such picture. One that only shows that training goes on waits until it is paid for. While
    there is a job, such as a video, it gets half of what such pictures would.
    """

    training: float = 0.96  # share of wall time for training, while cameras stand still
    credit: float = 0.0  # seconds
    job_credit: float = 0.0  # seconds
    turn: float = 0.0  # seconds of training that are due before the next awaited picture

    def trained(self, seconds: float, most: float, has_job: bool = False) -> None:
        """Training has had `seconds`; the next picture costs `most`."""
        earned = seconds * (1 - self.training) / self.training
        if has_job:
            earned /= 2
            self.job_credit = min(self.job_credit + earned, max(earned, LONGEST_TURN))
        self.credit = min(self.credit + earned, max(most, SAVED_UP))
        self.turn -= seconds

    def affords(self, stage: int, is_awaited: bool, seconds: float) -> bool:
        """Whether a picture that takes `seconds` is drawn now."""
        if stage == MOVING or (stage == FULL and is_awaited):
            return self.turn <= 0
        return self.credit >= seconds

    def drew(self, seconds: float, stage: int, is_awaited: bool) -> None:
        """A picture took `seconds`."""
        if stage == MOVING or (stage == FULL and is_awaited):
            self.turn = min(seconds, LONGEST_TURN)
        else:
            self.credit -= seconds
