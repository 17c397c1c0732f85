# SPDX-License-Identifier: Apache-2.0
"""What `make` installs, and what `nerfkit doctor` says of that: what it was made for, which GPUs it ran on."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from nerfkit import ops
from nerfkit.commands import doctor
from nerfkit.ops import native
from tests.naming import assert_names
from tests.package.conftest import ROOT, run


def test_a_library_that_did_not_load_is_said_with_the_reason_and_what_to_type(tmp_path: Path):
    lines = doctor._library(native.Library("cuda", tmp_path / "_C_cuda.so", False, "this torch is a CPU build"))
    assert_names("\n".join(lines), "_C_cuda.so", "this torch is a CPU build", "NERFKIT_CUDA=1 pip install")


def test_the_page_names_all_that_can_be_missing_and_what_the_build_left(tmp_path: Path, monkeypatch):
    (tmp_path / "built.txt").write_text("what setup.py wrote for z80\n")
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    text = "\n".join(doctor.report()[0])
    assert_names(text, "verdict", "lltm", "the viewer: ", "poses of photographs: ", "what setup.py wrote for z80")
    assert_names(text, *(library.path.name for library in native.libraries()))


def test_a_fused_op_is_held_to_its_definition(device: str, monkeypatch):
    if not native.loaded({"cpu": "cpp", "cuda": "cuda"}[device]):
        pytest.skip(f"the ops for {device} are not built or do not load here")
    assert doctor._error_on(device) is None
    results = iter([torch.zeros(5, 2), torch.ones(5, 2)])
    monkeypatch.setattr(ops, "trilinear", lambda feats, points: next(results))
    assert_names(doctor._error_on(device), "definition")


@pytest.mark.parametrize("fails", [(), ("cuda:1",)])
def test_every_gpu_is_named_and_one_that_fails_is_a_verdict(monkeypatch, fails: tuple[str, ...]):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
    monkeypatch.setattr(native, "why_not_on", lambda index: None)
    monkeypatch.setattr(doctor, "_error_on", lambda device: "no kernel image" if device in fails else None)
    lines, broken = doctor._run_on_gpus()
    assert broken == ("no kernel image" if fails else None) and len(lines) == 2
    for index, line in enumerate(lines):
        assert_names(line, f"cuda:{index}", f"Card {index}")
        assert ("no kernel image" in line) == (f"cuda:{index}" in fails)


# Stands in for python3: says which venv was asked for, makes none, installs nothing.
FAKE = """#!{real}
import os, sys
arguments = sys.argv[1:]
if arguments[0] == "-c":
    sys.prefix, sys.base_prefix = "/base", {base!r}
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    print("venv", arguments[2:-1])
    os.makedirs(arguments[-1] + "/bin")
    os.symlink(os.path.abspath(__file__), arguments[-1] + "/bin/python")
else:
    print("asked for", arguments)
"""


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("base", ["/base", "/another"])
@pytest.mark.slow
def test_only_the_torch_of_a_base_interpreter_is_used(tmp_path, base: str):
    """A venv on top of an activated venv would not see that one's torch."""
    python, venv = tmp_path / "python3", tmp_path / "venv"
    python.write_text(FAKE.format(real=sys.executable, base=base))
    python.chmod(0o755)
    (tmp_path / "torch.py").write_text('__version__ = "2.13.0"\n')
    made = run("make", f"PYTHON={python}", f"VENV={venv}", f"{venv}/ready", folder=ROOT)
    assert ("venv ['--system-site-packages']" in made) == (base == "/base")
    assert ("'torch==" in made) == (base != "/base")
