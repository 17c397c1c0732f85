# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them: help that answers at once, signals that stop, and where something is in the way
nothing lost, and one line that says what to do."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from nerfkit import __version__
from nerfkit.commands import StopSignals, command_line, status_of
from nerfkit.commands.options import OPTIONS
from nerfkit.commands.render import FILES
from nerfkit.files import MARKER
from nerfkit.training.run import checkpoint
from nerfkit.training.run.folder import RunFolder
from tests.naming import assert_names
from tests.processes import ROOT, call, call_process, ended
from tests.toy_scene import STEPS, write_scene

pytestmark = pytest.mark.slow
UNSCORED = ("--eval.after_training", "false")


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


EVIL = "\x1b]0;title\x07\x1b[2Jevil"


def marked(run: Path) -> None:
    (run / ".nerfkit").write_text(f"nerfkit {EVIL}{'x' * 10**5}\n")


def replaced(file: str, old: str, new: str):
    return lambda run: (run / file).write_text((run / file).read_text().replace(old, new, 1))


NAMED = {  # what somebody else wrote, and what says so
    "kind_of_a_folder": (marked, "train --config {options} --out {run}"),
    "splits": (replaced("scene.json", '"test":', f'"{json.dumps(EVIL)[1:-1]}":'), "render {run} --cameras nope"),
    "scores": (replaced("metrics.json", '"test"', json.dumps(EVIL)), "summary {run}"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_terminal_obeys_no_names_of_others(name: str, run: Path, options: Path):
    prepare, command = NAMED[name]
    prepare(run)
    first, *words = command.format(run=run, options=options).split()
    status, printed = ended(f"scripts/{first}.py", *words)
    assert "evil" in printed and "\x1b" not in printed and "\x07" not in printed and len(printed) < 20_000, printed
    assert status in (0, 1)


def test_overwrite_replaces_nothing_before_the_new_run_has_taken_a_step(options, run):
    before = content(run)
    much = "--model.log2_hashmap_size 30 --model.features_per_level 128 --model.max_resolution 60000".split()  # memory
    output = call("scripts/train.py", "--config", options, "--out", run, "--overwrite", *much, status=1)
    assert last_line(output).startswith("error: ") and content(run) == before


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="a folder in which nobody, not even root, makes another")
def test_a_run_folder_that_cannot_be_made_is_said_before_the_scene_is_read(options, tmp_path):
    asked = ("--config", options, "--data.path", tmp_path / "nowhere", "--out", "/proc/foo")
    assert_names(last_line(call("scripts/train.py", *asked, status=1)), "/proc/foo")


def test_scores_on_another_scene_are_kept_apart(options, run, tmp_path):
    other = write_scene(tmp_path / "garden", size=(15, 13), counts={"train": 1, "test": 3})
    before = content(run)
    assert_names(call("scripts/eval.py", run, "--data", other), "garden")
    after = content(run)
    assert {name: after[name] for name in before if name != MARKER} == {k: v for k, v in before.items() if k != MARKER}
    assert json.loads(after["eval/on_garden/test/metrics.json"])["n_views"] == 3
    assert "views were trained on" not in call("scripts/eval.py", run, "--data", other)
    moved = shutil.copytree(options.parent / "scene", tmp_path / "moved")
    os.remove(run / "metrics.json")
    call("scripts/eval.py", run, "--data", moved)
    assert (run / "metrics.json").exists(), "the same scene elsewhere is the run's own"
    train, test, aside = (moved / f"transforms_{name}.json" for name in ("train", "test", "aside"))
    train.rename(aside), test.rename(train), aside.rename(test)
    assert_names(call("scripts/eval.py", run, "--data", moved), "12 of 12 test views", "trained on")


def test_a_model_that_gives_no_numbers_scores_nothing(run):
    tensors, state = checkpoint.load(run)
    tensors["model.decoder.color_net.packed"][:] = float("nan")
    checkpoint.save(RunFolder.existing(run), tensors, state)
    before = (run / "metrics.json").read_bytes()
    assert_names(last_line(call("scripts/eval.py", run, status=1)), "psnr", "nan")
    assert (run / "metrics.json").read_bytes() == before


def test_a_scene_that_is_gone_or_of_another_format_is_said(options, run, tmp_path):
    """Where the run's scene was and that --data.path gives it; no folder beside it with a name like its."""
    scene = shutil.copytree(options.parent / "scene", tmp_path / "sizes")
    call("scripts/train.py", "--resume", run, "--data.path", scene, "--trainer.steps", STEPS + 1, *UNSCORED)
    scene.rename(tmp_path / "sizes1")
    message = last_line(call("scripts/train.py", "--resume", run, status=1))
    assert_names(message, scene, "--data.path")
    assert "sizes1" not in message
    other = tmp_path / "llff"
    other.mkdir()
    (other / "poses_bounds.npy").touch()
    message = last_line(call("scripts/train.py", "--resume", run, "--data.path", other, status=1))
    assert_names(message, "nerf_synthetic", scene, other, "--data.path")
    asked = ("--config", options, "--out", tmp_path / "new", "--data.path", other, "--data.format", "colmap")
    assert_names(last_line(call("scripts/train.py", *asked, status=1)), "colmap", other, "llff", "--data.format")


def test_output_that_nobody_reads(run):
    command = [sys.executable, "scripts/summary.py", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # as `| head` does
        assert process.stderr.read() == "" and process.wait() == 141


def test_a_training_in_a_log_of_any_locale(options, tmp_path):
    """Progress is a few lines, names are UTF-8, and what to type next can be copied."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TQDM")}
    env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = tmp_path / "Dose süß"
    few = ("--config", options, "--out", run, "--trainer.steps", 100, *UNSCORED)
    output = call_process("scripts/train.py", *few, env=env, encoding="utf-8")
    assert 1 <= output.count("\ntraining:") == output.count("training:") <= 3 and "100/100" in output
    assert "\r" not in output and "100%" in output and "|" not in output
    assert (run / "config.toml").exists() and f"next: python scripts/render.py '{run}'" in output
    assert f"--resume '{run}'" in last_line(call("scripts/train.py", *few, status=1))


def test_a_clone_where_nothing_is_installed(tmp_path):
    """With a Python that has no packages, and no nerfkit on its path."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for script in ("train", "render", "eval", "summary", "inspect_scene"):
        done = subprocess.run(
            [sys.executable, "-S", "-E", str(tmp_path / "scripts" / f"{script}.py")], capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "pip install -e ." in done.stderr, done.stderr


@pytest.mark.parametrize(
    "started, typed",
    [(ROOT / "scripts/train.py", "python scripts/render.py"), ("/usr/bin/nerfkit", "nerfkit render"),
     ("/site-packages/nerfkit/__main__.py", "python -m nerfkit render"),
     (ROOT / "scripts/train.py", "python -m nerfkit report")],
)  # fmt: skip
def test_what_to_type_next(monkeypatch, started: str | Path, typed: str):
    """In the form that the user has: with `python -m nerfkit` there may be no scripts, nor is there one of each."""
    monkeypatch.setattr(sys, "argv", [str(started)])
    command = Path(typed.split()[-1]).stem
    assert shlex.split(command_line(command, Path("runs/Dose süß"))) == [*typed.split(), "runs/Dose süß"]


def test_errors_say_what_to_do(options, run, toy_scene, tmp_path):
    misspelt = run.with_name(run.name + "x")
    few = ("--config", options, "--trainer.steps", "1", "--out", tmp_path / "new")
    for command, words, named in (
        ("render", (run, "--cameras", "orbitt"), ("--cameras", "'orbitt'", "did you mean orbit?")),
        ("render", (run, "--outputs", "rgb,deep"), ("--outputs", "'deep'", ",".join(FILES))),
        ("render", (run, "--size", 0, 5), ("--size", "1", "65536", "0")),
        ("render", (run, "--cameras", "test", "--frames", 9), ("--frames", "test")),
        ("render", (misspelt,), (misspelt, "did you mean", run)),
        ("render", (tmp_path,), (tmp_path, "config.toml")),
        ("train", ("--out", tmp_path / "new"), ("nerfkit train FOLDER",)),
        ("train", (*few, "--eval.split", "val"), ("eval.split", "val", "train", "test")),
        ("view", (run, "--viewer.port", 70000), ("--viewer.port", "65535", "70000")),
        ("export", ("run",), ("after the run folder", "mesh")),
        ("export", (run, "splat"), ("'splat'", "did you mean splats?")),
    ):
        assert_names(call(command, *words, status=1), *named)
    (run / "config.toml").write_text((run / "config.toml").read_text().replace('/scene"', '/gone"'))
    assert_names(call("eval", run, status=1), "gone", "--data")


def test_the_status_tells_what_went_wrong(capsys):
    for error, status, said in (
        (KeyboardInterrupt(), 130, "stopped"),
        (FileNotFoundError(2, "No such file", "x.png"), 1, "x.png"),
        (MemoryError("too much"), 1, "too much"),
    ):
        assert status_of(Mock(side_effect=error)) == status and said in capsys.readouterr().err
    assert status_of(lambda: None) == 0 and status_of(lambda: 143) == 143


def test_every_door_has_the_same_statuses(tmp_path):
    for door in (("-m", "nerfkit", "summary"), ("scripts/summary.py",)):
        call_process(*door, status=2)
        assert_names(call_process(*door, tmp_path, status=1), tmp_path)


def test_what_is_no_command_ends_with_status_2():
    assert_names(call_process("-m", "nerfkit", "trian", status=2), "--help", "did you mean train?")


def test_help_version_and_summary_do_not_wait_for_torch(run):
    code = (
        "import contextlib, json, sys; from nerfkit.commands import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(arguments)\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules), arguments"
    )
    helped = [[name, *(["mesh"] if name == "export" else []), "--help"] for name in OPTIONS]
    printed = call_process("-c", code, json.dumps([["--help"], ["--version"], ["summary", str(run)], *helped]))
    assert f"nerfkit {__version__}\n" in printed and "PSNR" in printed and printed.count("usage: ") >= len(helped)


PACKAGES = [  # one that is missing, the extra that has it, and a command that asks for it
    ("OpenEXR", "export", "export {run} depth"),
    ("xatlas", "export", "export {run} mesh --texture 64"),
    ("torch.utils.tensorboard", "tensorboard", "train --config cpu --data.path nowhere --trainer.tensorboard true"),
    ("viser", "viewer", "train --config cpu --data.path nowhere --viewer"),
    ("viser", "viewer", "view {run}"),
]


@pytest.mark.parametrize("package, extra, command", PACKAGES)
def test_a_missing_package_is_named_before_any_work(package: str, extra: str, command: str, run: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    printed = call(*command.format(run=run).split(), status=1)
    assert_names(printed, package.rpartition(".")[2], f'pip install "nerfkit[{extra}]"')


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def handlers():
    """As in a terminal: a process of nohup or of a script's background begins with some of them ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_before_a_training_begins_ends_it_with_a_word(options, tmp_path):
    code = (
        "import os, signal; from nerfkit import commands; from nerfkit.data.scene import Views\n"
        "Views.load = lambda *given, **named: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"commands.run_command('train', ['--config', {str(options)!r}, '--out', {str(tmp_path / 'run')!r}])"
    )
    assert last_line(call_process("-c", code, status=128 + signal.SIGTERM)) == "stopped"
    assert not (tmp_path / "run").exists()


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
