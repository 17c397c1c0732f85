# SPDX-License-Identifier: Apache-2.0
"""How many threads there are to be: the one place that decides it."""

import math
import os
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath

# By the controller that /proc/self/cgroup names, none in version 2: where the groups' quotas and periods are.
PLACES = {"": ("", ("cpu.max",)), "cpu": ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"))}


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: those it may run on, or fewer by the quota of a control group around it."""
    usable = [len(os.sched_getaffinity(0))]
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            place, names = PLACES.get("cpu" if "cpu" in kinds.split(",") else kinds, ("", ()))
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                files = [root / "sys/fs/cgroup" / place / str(group).lstrip("/") / name for name in names]
                with suppress(OSError, ValueError):  # a container sees its own groups alone; "max" is no number
                    quota, period = map(int, " ".join(file.read_text() for file in files).split())
                    usable += [math.ceil(quota / period)] * (quota > 0)
    return max(1, min(usable))


def limit_threads(spare: int = 0) -> None:
    """Let torch, and so the native ops, use `cores` but for some to `spare`, unless the user chose a number."""
    torch = sys.modules.get("torch")  # a command that does not need it does not wait for it
    if torch is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores()) - spare))
