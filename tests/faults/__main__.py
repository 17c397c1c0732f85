# SPDX-License-Identifier: Apache-2.0
"""Do the tests bite? Faults that a user would notice, each put into a copy of nerfkit, and the tests that have to fail.

    python -m tests.faults              all of them, for minutes
    python -m tests.faults NAME ...     these alone
    python -m tests.faults --list       their names

The exit status is 1 if a fault survives its tests, or if what it changes is no longer there. A new feature comes with
a fault of its own: what would go wrong, where, and which modules of tests should notice.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

from tests.faults import FAULTS
from tests.faults.fault import Fault

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("nerfkit", "tests", "scripts", "configs", "docs", "pyproject.toml")
LINKED = ("data",)
IMPORTED = (  # once, for all faults; whatever else tests need, they import themselves
    "torch", "functorch.compile", "torchmetrics.functional.image", "matplotlib.figure", "imageio.v2", "PIL.Image",
    "hypothesis.strategies", "safetensors.torch", "tyro", "msgspec", "tqdm", "skimage.metrics",
)  # fmt: skip
MOST_SECONDS = 300  # of the tests of one fault; a run that does not end is noticed, too


def copy_tree(folder: Path) -> None:
    """What tests need of this checkout, in `folder`."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def outcome(fault: Fault, folder: Path) -> str:
    """The test that notices the fault, or what went wrong; the copy is as before when this returns."""
    file = folder / "nerfkit" / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"NOT FOUND: its text occurs {text.count(fault.old)} times in {fault.file}"
    before = without_fault(fault.tests, folder)
    if before != "SURVIVED":
        return f"FAILS WITHOUT IT: {before}"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return noticed(fault.tests, folder)
    finally:
        file.write_text(text, encoding="utf-8")


def noticed(tests: str, folder: Path) -> str:
    """The first test that fails, of those that should notice."""
    log = folder / "faults.log"
    status = run_tests([f"tests/test_{name}.py" for name in tests.split()], folder, log)
    output = log.read_text(encoding="utf-8", errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if status is None:
        return f"caught: no end within {MOST_SECONDS} s"
    if status == pytest.ExitCode.TESTS_FAILED and failed:
        return f"caught: {failed[1].removeprefix('tests/')}"
    return "SURVIVED" if status == pytest.ExitCode.OK else f"NO TESTS: {output.strip()[-300:]}"


without_fault = cache(noticed)  # once for every choice of modules: tests that fail anyway notice nothing


def run_tests(modules: list[str], folder: Path, log: Path) -> int | None:
    """Exit status of pytest on `modules` in `folder`; None if it has to be ended. What it says goes to `log`.

    In a fork of this process, which has all that takes seconds to import, but not nerfkit.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()  # to be ended with all that it starts
        for stream, target in ((1, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)), (2, 1)):
            os.dup2(target, stream)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        for module in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[module]  # those of the copy count
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True  # a file that changes twice within a second would be taken for what it was
        status = 99
        try:
            status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *modules])
        finally:
            sys.stdout.flush()
            os._exit(int(status))
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="names, files and tests")
    options = parser.parse_args()
    by_name = {fault.name: fault for fault in FAULTS}
    assert len(by_name) == len(FAULTS), "two faults of one name"
    unknown = [name for name in options.names if name not in by_name]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}; --list tells their names")
    chosen = [by_name[name] for name in options.names] or FAULTS
    if options.list:
        for fault in chosen:
            print(f"{fault.name:<42} {fault.file:<32} {fault.tests}")
        return 0
    for module in IMPORTED:
        importlib.import_module(module)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        copy_tree(Path(name))
        for fault in chosen:
            began = time.monotonic()
            result = outcome(fault, Path(name))
            bad += not result.startswith("caught")
            print(f"{fault.name:<42} {time.monotonic() - began:5.0f} s  {result}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} faults are caught")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
