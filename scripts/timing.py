# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure: medians over rows of calls."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROTATED_BYTES = 256 * 2**20  # of inputs that a row goes through: several times any L2 cache
MOST_SETS = 64
LEAST_CALLS, LEAST_ROW = 32, 2.0  # of a row on a GPU, or milliseconds: its ends, 2 or 3 microseconds, then count little
LONGEST_ROW = 0.5  # seconds of calls on the wall's clock that are timed together
LONGEST_AHEAD = 0.1  # seconds; a call that waits for the GPU cannot be queued
CYCLES = 2e9  # of the GPU in a second, about


def write_records(file: Path, head: dict[str, Any], name: str, records: Sequence[dict[str, Any]]) -> None:
    """A JSON file with a line for each record, under `name` behind what `head` says of all."""
    lines = ",\n".join(map(json.dumps, records))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{json.dumps(head).removesuffix("}")}, "{name}": [\n{lines}\n]}}\n')


def sets_for(n_bytes: int, device: str) -> int:
    """How many copies of inputs of `n_bytes` a row of calls goes through, so that each finds its own in memory."""
    return max(1, min(MOST_SETS, -(-ROTATED_BYTES // n_bytes))) if device == "cuda" and n_bytes else 1


class Timer:
    """Milliseconds of a call on one device."""

    def __init__(self, device: str, repeats: int = 20, warmup: int = 5):
        self.device, self.repeats, self.warmup = device, repeats, warmup

    def row(self, calls: Sequence[Callable[[], object]]) -> float:
        """Median of a row's time by its number of calls, on a GPU itself: launches are not counted.

        The calls of a row take turns with inputs, and their results are kept to its end: so each reads from memory,
        and as much is written there as it writes.
        """
        for i in range(max(self.warmup, len(calls))):
            calls[i % len(calls)]()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        row, times, ahead = list(calls), [], LONGEST_AHEAD
        for turn in range(1 + self.repeats):
            self._wait()
            torch.cuda._sleep(int(ahead * CYCLES))  # meanwhile the row is queued
            began = time.perf_counter()
            start.record()
            kept = [call() for call in row]
            end.record()
            queued = (time.perf_counter() - began) / len(row)
            self._wait()
            del kept
            elapsed = start.elapsed_time(end)
            if turn:
                times.append(elapsed / len(row))
            else:
                row *= turns_of(len(row), elapsed, queued)
            ahead = min(LONGEST_AHEAD, 2 * queued * len(row))
        return statistics.median(times)

    def in_turns(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Median of each call on a CPU. They take turns, for its clock may be another from one second to the next.

        Each is called once before it is timed, and so finds in the caches what it left there, not what the others did.
        """
        times: list[list[float]] = [[] for _ in calls]
        for turn in range(self.warmup + self.repeats):
            for call, own in zip(calls, times, strict=True):
                call()
                start = time.perf_counter()
                kept = call()
                if turn >= self.warmup:
                    own.append((time.perf_counter() - start) * 1e3)
                del kept
        return [statistics.median(own) for own in times]

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


def turns_of(calls: int, elapsed: float, queued: float) -> int:
    """How often a row of `calls`, which took `elapsed` ms, repeats; the host, `queued` s a call, has to be ahead."""
    most = int(LONGEST_AHEAD / (2 * queued * calls)) if calls > 1 else 1
    return max(1, min(most, -(-LEAST_CALLS // calls), math.ceil(LEAST_ROW / elapsed)))


def copy_bandwidth(timer: Timer, size: int | None = None) -> float:
    """Bytes a second, read and written, of a plain copy of `size` float32 numbers; on a CPU by all threads."""
    size = size or (2**28 if timer.device == "cuda" else 2**26)
    source = torch.empty(size, device=timer.device).normal_()
    target = torch.empty_like(source)
    if timer.device == "cuda":
        return 2 * 4 * size / (timer.row([lambda: target.copy_(source)]) * 1e-3)
    threads = torch.get_num_threads()  # target.copy_(source) is the work of one
    parts = list(zip(*(np.array_split(x.numpy(), threads) for x in (target, source)), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        (ms,) = timer.in_turns([lambda: list(pool.map(lambda part: np.copyto(*part), parts))])
    return 2 * 4 * size / (ms * 1e-3)


def copy_of(n_bytes: int) -> Callable[[], object]:
    """Reads half of so many bytes and writes the other half, on a CPU by all threads."""
    source = torch.zeros(n_bytes // 8)
    target = torch.empty_like(source)
    return lambda: torch.neg(source, out=target)  # target.copy_(source) may be the work of one thread


def product_of(multiply_adds: int) -> Callable[[], object]:
    """About so many multiply-adds as a product of matrices of a size that PyTorch is good at."""
    left, right = torch.zeros(max(1, multiply_adds // 256**2), 256), torch.zeros(256, 256)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


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
