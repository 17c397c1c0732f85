# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure: medians of many calls, one after the other, each on cold caches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

FLUSH_BYTES = 256 * 2**20  # more than any L2 cache
LONGEST_ROW = 0.5  # seconds of calls that are timed together
AHEAD_CYCLES = 2_000_000  # the GPU idles this long, so that what follows is queued before it starts


class Timer:
    """Milliseconds of a call on one device."""

    def __init__(self, device: str, repeats: int = 20, warmup: int = 5):
        self.device, self.repeats, self.warmup = device, repeats, warmup
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device) if device == "cuda" else None

    def __call__(self, call: Callable[[], object]) -> float:
        """Median time on the device itself: launches are not counted on a GPU."""
        for _ in range(self.warmup):
            call()
        return statistics.median(self._on_gpu(call) if self.device == "cuda" else self._on_cpu(call))

    def wall(self, call: Callable[[], object], calls: int = 100) -> float:
        """Mean time of a call in a row of `calls`, fewer if they are long; launches and Python counted."""
        for _ in range(self.warmup):
            self._wait()
            start = time.perf_counter()
            call()
            self._wait()
        calls = min(calls, max(1, int(LONGEST_ROW / (time.perf_counter() - start))))
        times = []
        for _ in range(self.repeats):
            self._wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self._wait()
            times.append((time.perf_counter() - start) / calls * 1e3)
        return statistics.median(times)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _on_cpu(self, call: Callable[[], object]) -> list[float]:
        times = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    def _on_gpu(self, call: Callable[[], object]) -> list[float]:
        events = []
        for _ in range(self.repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(AHEAD_CYCLES)
            self.flush.zero_()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            events.append((start, end))
        return [start.elapsed_time(end) for start, end in events]


def copy_bandwidth(timer: Timer) -> float:
    """Bytes a second, read and written, of a plain float32 copy."""
    size = 2**28 if timer.device == "cuda" else 2**24
    source = torch.empty(size, device=timer.device).normal_()
    target = torch.empty_like(source)
    return 2 * 4 * size / (timer(lambda: target.copy_(source)) * 1e-3)


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """`call` recorded in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
