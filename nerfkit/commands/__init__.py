# SPDX-License-Identifier: Apache-2.0
"""`nerfkit COMMAND`, and the scripts of the same names."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from nerfkit.errors import UserError
from nerfkit.safe_io import did_you_mean, harmless, printable, shell_join
from nerfkit.threads import limit_threads
from nerfkit.version import __version__

if TYPE_CHECKING:
    from nerfkit.parallel import Processes

BARS = {True: {"DYNAMIC_NCOLS": "1"}, False: {"NCOLS": "0", "MININTERVAL": "30", "MAXINTERVAL": "30"}}  # on a terminal?
MOST_SHOWN = 10_000  # characters of an error
SHARED = ("train", "render", "eval")  # that several processes share, under torchrun
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, the system's shutdown, a terminal that was closed


def main(arguments: list[str] | None = None) -> None:
    from nerfkit.commands.options import OPTIONS, usage

    first, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if first in OPTIONS:
        run_command(first, rest)
    if first in ("-h", "--help", "help", "--version"):
        print(f"nerfkit {__version__}" if first == "--version" else usage())
        sys.exit(0)
    print(usage(), file=sys.stderr)
    if first:
        print(f"\nerror: there is no command {printable(first)!r}{did_you_mean(first, OPTIONS)}", file=sys.stderr)
    sys.exit(2)


def run_command(name: str, arguments: list[str]) -> None:
    """Run one command; ends the process with its exit status."""

    def command(*processes: Processes) -> int | None:
        from nerfkit.commands.options import parse

        options = parse(name, arguments)  # before torch is imported, for which --help does not wait
        if processes and name not in SHARED:
            raise UserError(f"nerfkit {name} runs in one process; start it without torchrun")
        errors = sys.stderr if sys.stderr.isatty() else Lines(sys.stderr)
        with contextlib.redirect_stdout(Harmless(sys.stdout)), contextlib.redirect_stderr(errors):
            module = importlib.import_module(f"nerfkit.commands.{name}")
            limit_threads(spare=int(name == "view"))  # for the page and the browser
            return module.main(options, *processes)

    # Where the locale has another encoding, such as ASCII, the process begins anew in Python's UTF-8 mode.
    if sys.getfilesystemencoding().lower() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONUTF8": "1"})
    # Idle threads of torch sleep instead of spinning, which would take cores from other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
    for setting, value in BARS[sys.stderr.isatty()].items():
        os.environ.setdefault(f"TQDM_{setting}", value)  # read when tqdm is imported
    sys.exit(status_among_processes(command))


def status_among_processes(command: Callable[..., int | None]) -> int:
    """Exit status of a command in the processes that torchrun started, of which the first alone prints results."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # before torch is imported
        return status_of(command)
    from nerfkit import parallel

    processes = parallel.start()
    if processes.size == 1:
        return status_of(command)

    def failed(message: str, status: int = 1, prefix: str = "error: ") -> int:
        messages.update(processes.exchange_errors(message))
        if messages.get(0) != message or processes.is_first:  # what all have to say is said once
            _failed(message, status, f"{prefix}process {processes.rank} of {processes.size}: ")
        return status

    def one_of_several() -> int | None:
        if not processes.is_first:
            warnings.showwarning = lambda *warning: None
            sys.stdout = open(os.devnull, "w")
        return command(processes)

    messages: dict[int, str] = {}
    try:
        status = status_of(one_of_several, failed)
    except Exception:
        status = failed(traceback.format_exc(), prefix="")
    return processes.end(status)


def command_line(command: str, *words: object) -> str:
    """What to type for `command` with these words, in the form that started this process."""
    folder, started = os.path.split(sys.argv[0])
    if not started.endswith(".py"):
        return shell_join("nerfkit", command, *words)
    has_script = os.path.exists(os.path.join(folder, f"{command}.py"))
    return shell_join("python", *((f"scripts/{command}.py",) if has_script else ("-m", "nerfkit", command)), *words)


def _failed(message: str, status: int = 1, prefix: str = "error: ") -> int:
    if len(message) > MOST_SHOWN:
        message = f"{message[: MOST_SHOWN // 2]}...{message[-MOST_SHOWN // 2 :]}"
    print(f"{prefix}{harmless(message)}", file=sys.stderr)
    return status


def status_of(command: Callable[[], int | None], failed: Callable[..., int] = _failed) -> int:
    """Exit status of a command: an error that a user can fix is one line, without a traceback."""
    warnings.showwarning = _warn
    for number in STOPPING[1:]:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):  # names of files are printed as they are
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape")
    try:
        status = command()
        sys.stdout.flush()
        return status or 0
    except UserError as error:
        return failed(str(error))
    except KeyboardInterrupt as stop:
        return failed("stopped", 128 + next(iter(stop.args), signal.SIGINT), prefix="")
    except BrokenPipeError:  # the reader of the output has ended, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None and error.errno is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else flushing would fail again at exit
        return failed(f"{printable(error.filename or 'standard output')}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        from nerfkit.device import out_of_memory

        if not isinstance(error, MemoryError) and not out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:300]
        return failed(
            f"memory ran out ({reason}); lower trainer.samples_per_step or model.log2_hashmap_size, or raise "
            "data.downscale"
        )


def _warn(message: Warning | str, *where: Any) -> None:
    from tqdm import tqdm

    tqdm.write(f"warning: {harmless(str(message))}", file=sys.stderr)  # not into a line that a bar has begun


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


class Harmless:
    """A stream of text to a terminal, to which names of other people's files, splits and scenes are printed."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(harmless(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Lines(Harmless):
    """A stream that is no terminal, in which each state of a progress bar is a line."""

    after_state = False

    def write(self, text: str) -> int:
        if text:
            is_state = text.startswith("\r")
            line = f"{text.strip()}\n" if is_state else text
            if line != "\n" or not (is_state or self.after_state):
                self.stream.write(line)
            self.after_state = is_state
        return len(text)


class StopSignals:
    """Inside a `with` block a first signal is remembered in `number`; a second one stops at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arrived(self) -> bool:
        return self.number is not None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
