# SPDX-License-Identifier: Apache-2.0
"""A stage of COLMAP in a process of its own, with lines of progress; see `colmap_stage.py` for why."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from nerfkit.errors import SceneError
from nerfkit.reading import shown

Report = Callable[[str], None]

INSTALL = 'pip install "nerfkit[photos]"'
STAGE = Path(__file__).with_name("colmap_stage.py")
INTERVAL = 5.0  # seconds between lines of progress
POLL = 0.2  # seconds


def run_stage(request: dict, title: str, total: int, count: Callable[[list[str]], int], report: Report) -> Any:
    """Run a stage and report how far it is; it ends with this process, and at Ctrl-C.

    `count` says how many of `total` are done, from what the stage has said since it began.
    """
    said: list[str] = []
    result: dict[str, Any] = {}
    began, told, first = time.monotonic(), time.monotonic(), count(said)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, str(STAGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,  # or Ctrl-C would reach it, too
        )  # fmt: skip
        reader = threading.Thread(target=_listen, args=(process.stdout, said, result), daemon=True)
        reader.start()
        try:
            _send(process, request)
            while process.poll() is None:
                time.sleep(POLL)
                if time.monotonic() - told >= INTERVAL:
                    told = time.monotonic()
                    report(progress(title, count(said), total, first, told - began))
        finally:
            _end(process, reader)
        if process.returncode or "result" not in result:
            raise _stage_error(title, process.returncode, errors)
    report(f"{title}: done in {duration(time.monotonic() - began)}")
    return result["result"]


def progress(title: str, done: int, total: int, first: int, seconds: float) -> str:
    """A line of progress, with an estimate once something is done."""
    left = ""
    if first < done < total:
        left = f", about {duration(seconds * (total - done) / (done - first))} left"
    return f"{title}: {min(done, total)} of {total}{left}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _send(process: subprocess.Popen, request: dict) -> None:
    """Give the request, and leave the pipe open: its end tells the process that this one has gone."""
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:  # it died at once: its exit status says why
        pass


def _listen(stream: IO[bytes], said: list[str], result: dict) -> None:
    """Sort what a process says into words and the result."""
    for line in stream:
        try:
            value = json.loads(line)
        except ValueError:  # of a library that prints
            continue
        if isinstance(value, dict):
            result.update(value)
        else:
            said.append(value)


def _end(process: subprocess.Popen, reader: threading.Thread) -> None:
    """Stop a process, at Ctrl-C too: what it committed to the database stays."""
    if process.poll() is None:
        process.kill()
    process.wait()
    reader.join(1)
    process.stdout.close()
    process.stdin.close()


def _stage_error(title: str, status: int, errors: IO[bytes]) -> SceneError:
    """What the end of a process's words says."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4000))
    lines = errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    how = f"was ended by signal {-status}" if status < 0 else "failed"
    if "No module named 'pycolmap'" in lines[-1]:
        return _no_pycolmap()
    return SceneError(f"pycolmap {how} in the stage '{title}': {shown(lines[-1].strip())}")


def check_pycolmap() -> None:
    """Raise SceneError if pycolmap is not installed."""
    try:
        found = importlib.util.find_spec("pycolmap") is not None
    except ValueError:
        found = False
    if not found:
        raise _no_pycolmap()


def _no_pycolmap() -> SceneError:
    return SceneError(f"camera poses of photographs are found by pycolmap, which is not installed: {INSTALL}")
