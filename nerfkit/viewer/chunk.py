# SPDX-License-Identifier: Apache-2.0
"""Measured times of chunks -> how many rays are rendered at once."""

from __future__ import annotations

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
