# SPDX-License-Identifier: Apache-2.0
"""Measured time per ray -> size of a picture while the camera moves."""

from __future__ import annotations

import math

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
