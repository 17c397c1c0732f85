# SPDX-License-Identifier: Apache-2.0
"""docs/add_an_op.md does what it says: its files are written out as they stand, compiled and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nerfkit import jit
from nerfkit.ops import native
from tests.naming import raises_naming

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The page's files."""
    path = tmp_path_factory.mktemp("three_x")
    for block in BLOCK.finditer((ROOT / "docs" / "add_an_op.md").read_text()):
        (path / block["name"]).write_text(block["text"])
    return path


def run(command: list, folder: Path, **environment: str) -> str:
    """Output of a command that has to succeed, in that folder."""
    result = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_page_runs_as_written(folder: Path):
    assert len(list(folder.iterdir())) == 7
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    printed = run([sys.executable, "check.py"], folder, PYTHONPATH=path, TORCH_EXTENSIONS_DIR=str(folder / "built"))
    assert "all checks passed" in printed


@pytest.mark.long
def test_ahead_of_time_it_builds_with_the_package(folder: Path, tmp_path: Path):
    shutil.copytree(ROOT / "cuda", tmp_path / "cuda")
    shutil.copy(ROOT / "setup.py", tmp_path)
    op = tmp_path / "cuda" / "three_x"
    op.mkdir()
    for name in ("args.h", "bind.cpp", "cpu.cpp"):
        text = re.sub(r"^const char\* status_text.*\n", "", (folder / name).read_text(), flags=re.M)
        (op / name).write_text(text.replace("LIBRARY_IMPL(three,", "LIBRARY_IMPL(nerfkit,"))
    schema = (tmp_path / "cuda" / "schema.cpp").read_text()
    line = re.search(r'm\.def\("_three_x.*?"\);', (folder / "schema.cpp").read_text())[0]
    (tmp_path / "cuda" / "schema.cpp").write_text(schema.replace("  m.def(", f"  {line}\n  m.def(", 1))
    for source in (tmp_path / "cuda").glob("*/*.cpp"):  # one neighbour is enough, and quicker
        if source.parent.name not in ("three_x", "compact_samples"):
            source.unlink()
    build = [sys.executable, "setup.py", "build_ext", "--build-lib", "out"]
    run(build, tmp_path, NERFKIT_NATIVE="1", NERFKIT_CUDA="0")
    for library, _ in native.libraries_for_cpu():
        load = f"import torch; torch.ops.load_library('out/nerfkit/{library}'); x = torch.ones(2); "
        printed = run([sys.executable, "-c", f"{load} print(torch.ops.nerfkit._three_x(x, x))"], tmp_path)
        assert "tensor([2., 2.])" in printed


def test_a_lock_that_was_left_behind_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "lock").touch()
    with raises_naming(jit.BuildError, tmp_path / "three" / "lock"):
        jit.load("three", [])


def test_a_compiler_error_is_shown(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "broken.cpp").write_text("this is not C++")
    with raises_naming(jit.BuildError, "broken", "error:"):
        jit.load("broken", [tmp_path / "broken.cpp"])
