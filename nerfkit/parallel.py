# SPDX-License-Identifier: Apache-2.0
"""The processes of one run, a GPU each, started by `torchrun`; a process by itself exchanges nothing.

Numbers and short messages go over the CPU: gloo, and the store that torchrun keeps. Gradients go over NCCL, or over
gloo where the device is a CPU. How they are summed is in `nerfkit.training.step.distributed`.
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from nerfkit.errors import RunError

LONGEST_STEP = timedelta(minutes=5)  # others are waited for while training; one that ended is noticed at once
LONGEST_WAIT = timedelta(hours=2)  # elsewhere: images are read, shares of views are rendered
SAME_ERROR = 1.0  # seconds in which an error that all processes find is told by the first

T = TypeVar("T")


class Processes:
    """This process, alone; `Several` has the same methods."""

    rank, size = 0, 1
    description = "1 process"

    @property
    def is_first(self) -> bool:
        return self.rank == 0  # this process prints and writes

    def shard(self, n: int) -> range:
        """Which of n items are this process's: every `size`-th."""
        return range(self.rank, n, self.size)

    def join(self, device: str) -> str:
        """Connect the processes; the name of this one's device, of a kind such as auto, cpu or cuda."""
        return device

    def barrier(self) -> None:
        """Wait for all."""

    def all_gather(self, value: Any) -> list[Any]:
        """A JSON value of each process, by rank."""
        return [value]

    def rank0_first(self, call: Callable[[], T]) -> T:
        """What `call` returns, which is called after the first process has returned from it."""
        if self.is_first:
            result = call()
        self.barrier()
        return result if self.is_first else call()

    def all_reduce_max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over the processes, on the device of `values`."""
        return values

    def all_reduce_sum(self, values: Tensor) -> None:
        """Sum over the processes, in place; part of a CUDA graph where that is being recorded."""

    def end(self, status: int) -> int:
        """Leave with an exit status; the others are waited for if it is 0."""
        return status


SINGLE_PROCESS = Processes()


class Several(Processes):
    """One of the processes that torchrun started; its methods are those of `Processes`."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        store, self.rank, self.size = next(iter(dist.rendezvous("env://", timeout=LONGEST_WAIT)))
        self.local_rank = int(os.environ["LOCAL_RANK"])
        run = f"{os.environ['TORCHELASTIC_RUN_ID']}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        self.store = dist.PrefixStore(f"nerfkit/{run}", store)
        self.exchanges = 0  # through the store so far
        self.description = f"{self.size} processes"

    def join(self, device: str) -> str:
        use_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        if use_gpu and device not in ("auto", "cuda"):
            raise RunError(f"--device {device}: each of {self.size} processes has a GPU of its own; use --device cuda")
        if use_gpu and self.local_rank >= torch.cuda.device_count():
            raise RunError(
                f"process {self.rank} on {socket.gethostname()} has no GPU of its own, torch sees "
                f"{torch.cuda.device_count()}; start at most that many a host (--nproc_per_node), or use --device cpu"
            )
        own = torch.device("cuda", self.local_rank) if use_gpu else None
        if own is not None:
            torch.cuda.set_device(own)
        backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
        group = {"store": self.dist.PrefixStore("group", self.store), "rank": self.rank, "world_size": self.size}
        self.barrier()
        self.dist.init_process_group(backend, timeout=LONGEST_STEP, device_id=own, **group)
        self.description = f"{self.size} processes, gradients over {'NCCL' if use_gpu else 'gloo'}"
        return str(own) if own is not None else device

    def barrier(self) -> None:
        self.all_gather(None)

    def all_gather(self, value: Any) -> list[Any]:
        self.exchanges += 1
        self.store.set(f"{self.exchanges}/{self.rank}", json.dumps(value))
        keys = [f"{self.exchanges}/{rank}" for rank in range(self.size)]
        end = time.monotonic() + LONGEST_WAIT.total_seconds()
        while not self._call(lambda: self.store.check(keys)):  # not store.wait, inside which no signal is handled
            if time.monotonic() > end:
                raise RunError(f"process {self.rank} waited for another one for {LONGEST_WAIT}; stopped")
            time.sleep(0.005)
        return [json.loads(self._call(lambda key=key: self.store.get(key))) for key in keys]

    def all_reduce_max(self, values: Tensor) -> Tensor:
        values = values.clone()
        self._call(lambda: self.dist.all_reduce(values, self.dist.ReduceOp.MAX))
        return values

    def all_reduce_sum(self, values: Tensor) -> None:
        self._call(lambda: self.dist.all_reduce(values))

    def end(self, status: int) -> int:
        if status:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)  # a GPU may wait for a lost process for ever: nothing is torn down
        self.barrier()
        if self.dist.is_initialized():
            self.dist.destroy_process_group()
        return 0

    def exchange_errors(self, message: str) -> dict[int, str]:
        """Tell the others why this process ends; what the first has told by now, or within seconds."""
        told, end = self.dist.PrefixStore("ended", self.store), time.monotonic() + SAME_ERROR
        try:
            told.set(str(self.rank), message)
            while not self.is_first and not told.check(["0"]) and time.monotonic() < end:
                time.sleep(0.05)
            return {0: told.get("0").decode()} if told.check(["0"]) else {}
        except RuntimeError:  # the store is gone with torchrun
            return {}

    def _call(self, exchange: Callable[[], Any]) -> Any:
        try:
            return exchange()
        except RuntimeError as error:
            known = re.search(r"Connection \w+( by peer)?|Broken pipe|[Tt]imed out", str(error))
            reason = known[0] if known else " ".join(str(error).split())[:100]
            raise RunError(
                f"another process of the run has ended, or cannot be reached ({reason}); what it printed says why"
            ) from None


def start() -> Processes:
    """The processes that torchrun started, of which this is one; just this one without torchrun."""
    is_one_of_several = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    return Several() if is_one_of_several else SINGLE_PROCESS
