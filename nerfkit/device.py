# SPDX-License-Identifier: Apache-2.0
"""Choice and name of the device, free memory, determinism, seeds."""

import os
import platform
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from nerfkit.errors import RunError


def pick_device(name: str) -> torch.device:
    """The device `name`; "auto" takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RunError(f"device: {name!r} is unknown; use auto, cpu, cuda or cuda:1")
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= n_gpus:
        seen = f"torch {torch.__version__} sees {n_gpus or 'no'} GPU{'s' * (n_gpus > 1)}"
        raise RunError(f"device: {name} was requested, but {seen}; run `nerfkit doctor`, or use --device cpu")
    return device


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def free_memory() -> int:
    """Available bytes of main memory, file caches included."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`; on a GPU no more than this process is allowed to take."""
    if device.type != "cuda":
        return free_memory()
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, to be reused
    allowed = int(total * torch.cuda.get_per_process_memory_fraction(index)) - torch.cuda.memory_reserved(device)
    return max(0, min(free, allowed) + unused)


def check_memory(n_bytes: int, what: str, device: torch.device) -> None:
    """Raise RunError, with both numbers, if `what` takes more memory than the device has free."""
    free = available_memory(device)
    if n_bytes > free:
        what += f" takes {n_bytes / 2**30:.1f} GB, but {free / 2**30:.1f} GB are free on {device}"
        raise RunError(f"{what}; free memory, or ask for less")


_deterministic_lock = threading.Lock()
_deterministic: list[tuple[bool, bool, bool]] = []  # what was set before, of each that is inside


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Inside, results are reproducible to the bit, on a GPU too; without `enabled`, no effect.

    The switch is the process's: it stays on until the last of the threads inside has left.
    """
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    with _deterministic_lock:
        mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        _deterministic.append((*mode, torch.utils.deterministic.fill_uninitialized_memory))
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # no op here reads what it has not written
    try:
        yield
    finally:
        with _deterministic_lock:
            *before, fill = _deterministic.pop()
            if not _deterministic:
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])
                torch.utils.deterministic.fill_uninitialized_memory = fill


_drawing = threading.local()  # its generator: what a training in this thread draws from


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, and in this thread alone, what a training draws at random comes from `generator`."""
    before, _drawing.generator = getattr(_drawing, "generator", None), generator
    try:
        yield
    finally:
        _drawing.generator = before


def generator_on(device: torch.device) -> torch.Generator | None:
    """What to draw from on a device: the generator of the training that this thread is in; None: torch's own."""
    generator = getattr(_drawing, "generator", None)
    return generator if generator is not None and generator.device.type == device.type else None


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch reports a native op's failed allocation only as a failed call."""
    signs = "can't allocate memory", "API call failed"
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in signs)
