# SPDX-License-Identifier: Apache-2.0
"""Commands as a user types them: in this process, which takes no seconds to begin, or in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

from nerfkit import commands, ops
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
