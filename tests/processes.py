# SPDX-License-Identifier: Apache-2.0
"""Commands as a user types them: in this process, which takes no seconds to begin, or in one of its own; and processes
that torchrun starts, or as it starts them: forked from this one, none imports torch again, for seconds."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed

from nerfkit import commands, ops, parallel
from nerfkit.commands import eval, render, train  # noqa: F401 - imported once, for all processes
from nerfkit.commands.options import parse

ROOT = Path(__file__).resolve().parent.parent


def ended(script: str | Path, *arguments: object, folder: str | Path = ROOT) -> tuple[int, str]:
    """Exit status of scripts/NAME.py, begun in `folder`, and what it prints."""
    printed, before = io.StringIO(), (os.getcwd(), sys.argv)
    os.chdir(folder)
    sys.argv = [str(script), *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a new process
            commands.run_command(Path(script).stem, sys.argv[1:])
    except SystemExit as end:
        return end.code, printed.getvalue()
    finally:
        os.chdir(before[0])
        sys.argv = before[1]
        ops.set_backend("auto")


def call(script: str | Path, *arguments: object, status: int = 0, folder: str | Path = ROOT) -> str:
    """What scripts/NAME.py prints, begun in `folder`; it has to end with `status`."""
    found, printed = ended(script, *arguments, folder=folder)
    assert found == status, printed
    return printed


def run_main(command: ModuleType, *arguments: object) -> int:
    """Exit status of `main` of a command's module; errors are raised."""
    return command.main(parse(command.__name__.rpartition(".")[2], [str(argument) for argument in arguments])) or 0


def call_process(*arguments: object, status: int = 0, folder: str | Path = ROOT, **options) -> str:
    """What a Python process prints; it has to end with `status`, and without a traceback."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, **options)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def torchrun(*command: object, n: int = 2, status: int = 0, seconds: float = 280) -> str:
    """What a script prints in n processes; without NVLink multicast, which shared hosts may not allow."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"NCCL_NVLS_ENABLE": "0", "PYTHONPATH": path}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", n)
    done = subprocess.run(
        [*map(str, (*launcher, *command))], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=seconds
    )
    assert (done.returncode != 0) == (status != 0), done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


class Ended(list):
    """Exit statuses by rank, and what each process printed."""

    def __init__(self, statuses: list[int], printed: list[str]):
        super().__init__(statuses)
        self.printed = printed


def forked(n: int, folder: Path, call: Callable[[int], Any], seconds: float = 60) -> Ended:
    """Call `call(rank)` in n processes; those that have not ended in time are killed."""
    (ports, told), children = os.pipe(), []
    for rank in range(n):
        child = os.fork()
        if not child:
            _be(rank, n, ports, folder, call)
        children.append(child)
    # After the forks: a lock that the store's thread held during one would be held for ever in the child.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(told, f"{store.port:5}".encode() * n)
    os.close(ports), os.close(told)
    end, statuses = time.monotonic() + seconds, {}
    while len(statuses) < n:
        for rank, child in enumerate(children):
            if rank not in statuses:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    statuses[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(child, 9)
        time.sleep(0.01)
    return Ended([statuses[rank] for rank in range(n)], [(folder / f"printed{r}").read_text() for r in range(n)])


def _be(rank: int, n: int, ports: int, folder: Path, call: Callable[[int], Any]) -> None:
    """The life of a forked process, which waits for the port of the store."""
    status = 99
    try:
        port = int(os.read(ports, 5))
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        file = os.open(folder / f"printed{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # be they ignored, as in the background of a shell
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        status = call(rank) or 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def command(*arguments: Any) -> Callable[[int], None]:
    name, *words = map(str, arguments)
    return lambda rank: commands.run_command(name, words)


def in_processes(n: int, folder: Path, call: Callable[[parallel.Processes], Any]) -> list[Any]:
    """What `call(processes)` returns in each of n connected processes, by rank; all have to succeed."""

    def connected(rank: int) -> None:
        processes = parallel.start()
        processes.join("cpu")
        torch.save(call(processes), folder / f"result{rank}")
        processes.barrier()

    ended = forked(n, folder, connected)
    assert ended == [0] * n, "\n".join(ended.printed)
    return [torch.load(folder / f"result{rank}", weights_only=False) for rank in range(n)]
