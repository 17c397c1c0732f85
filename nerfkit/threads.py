# SPDX-License-Identifier: Apache-2.0
"""How many threads the commands work with, and how these wait; nothing here needs torch."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CHOSEN = "OMP_NUM_THREADS"  # of the environment; torchrun sets it


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: those it may run on, or fewer where a control group's quota allows fewer."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([there, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Cores that each control group of this process, and each that it lies in, may use; those without a limit left
    out."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controllers and "cpu")
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            for group in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
                with suppress(OSError, ValueError):  # a container sees its own groups alone; "max" is no number
                    quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
                    if quota > 0 < period:
                        yield quota / period
                if group == top:
                    break


def wait_asleep() -> None:
    """Let threads that wait for others sleep; to be called before torch is imported.

    By default they spin for milliseconds. Where other processes need the cores, the one that is waited for then does
    not get any: four processes on two cores take hundreds of times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def limit_threads(spare: int = 0) -> None:
    """Let torch, and with it the native ops, use this process's cores but for some to `spare`, unless the user chose
    how many threads there are."""
    torch = sys.modules.get("torch")
    if torch is not None and CHOSEN not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores()) - spare))
