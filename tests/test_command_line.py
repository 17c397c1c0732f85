# SPDX-License-Identifier: Apache-2.0
"""What is typed: help that answers at once, the folder of the scene, signals that stop."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nerfkit import __version__
from nerfkit import config as config_module
from nerfkit.commands import StopSignals
from nerfkit.commands.options import OPTIONS, parse, train_options
from nerfkit.errors import ConfigError
from tests.naming import assert_names, raises_naming
from tests.processes import ROOT, call_process

# Each list of arguments in turn; status, and what of torch and numpy has been imported since the start.
IN_TURN = """
import contextlib, io, json, sys
from nerfkit.commands import main
for arguments in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(arguments)
    print(json.dumps([arguments, printed.getvalue(), [name for name in ("torch", "numpy") if name in sys.modules]]))
"""


def in_turn(*lines: list[str]) -> list[tuple[list[str], str, list[str]]]:
    done = subprocess.run([sys.executable, "-c", IN_TURN, json.dumps(lines)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_door_has_the_same_statuses(tmp_path):
    for door in (("-m", "nerfkit", "summary"), ("scripts/summary.py",)):
        call_process(*door, status=2)
        assert_names(call_process(*door, tmp_path, status=1), tmp_path)


@pytest.mark.parametrize("arguments", [("trian",), ("doctor", "x")], ids=" ".join)
def test_what_is_no_command_ends_with_status_2(arguments):
    printed = call_process("-m", "nerfkit", *arguments, status=2)
    assert "--help" in printed, "what to type next"
    assert ("did you mean train?" in printed) == ("trian" in arguments)


def test_the_folder_of_the_scene_comes_first(tmp_path):
    """As in `inspect`; it is data.path, which beats that of a file."""
    scene, file = str(tmp_path), ["--config", "lego"]
    for arguments in ([scene], [scene, *file], [scene, *file, "--data.path", f"{scene}/."], ["--data.path", scene]):
        assert Path(train_options(arguments).data.path) == tmp_path
    assert train_options(file).data.path == "scenes/lego"
    assert Path(parse("train", [scene, "--device", "cpu", "--trainer.steps", "3"]).data.path) == tmp_path
    for other in (["--data.path", "elsewhere"], ["--data.path=elsewhere"]):
        for command, files in (("train", file), ("inspect", [])):
            with raises_naming(ConfigError, scene, "elsewhere", "--data.path"):
                parse(command, [scene, *files, *other])
    assert parse("inspect", [scene]).data.path == parse("inspect", ["--data.path", scene]).data.path == scene


@pytest.fixture
def run(tmp_path) -> Path:
    config = config_module.Config()
    config.data.path, config.sampling.kind = "scenes/mine", "contracted"
    config_module.dump(config.resolved(device="cpu"), tmp_path / "config.toml")
    (tmp_path / "scene.json").write_text('{"format": 1}')
    return tmp_path


def test_help_version_and_summary_do_not_wait_for_torch(run):
    helped = [[name, *(["mesh"] if name == "export" else []), "--help"] for name in OPTIONS]
    found = in_turn(["--help"], ["--version"], ["summary", str(run)], *helped)
    for arguments, printed, imported in found:
        assert printed and not imported, arguments
    assert found[1][1] == f"nerfkit {__version__}\n" and all("usage" in printed for _, printed, _ in found[3:])


def test_a_run_goes_on_without_a_scene(run):
    assert train_options(["--resume", str(run)]).data.path == "scenes/mine"
    assert train_options(["scenes/moved", "--resume", str(run)]).data.path == "scenes/moved"


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def handlers():
    """As in a terminal: a process of nohup or of a script's background begins with some of them ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_remembered_and_the_second_stops_at_once(handlers):
    for number in STOPPING:
        before = signal.getsignal(number)
        with StopSignals() as signals:
            assert not signals.arrived()
            signal.raise_signal(number)
            assert signals.arrived() and signals.number == number
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert not signals.arrived()
