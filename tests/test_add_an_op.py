# SPDX-License-Identifier: Apache-2.0
"""docs/ops.md, "An op of your own", does what it says: its files are written out as they stand, compiled and run."""

import os
import re
import sys
from pathlib import Path

import pytest

from nerfkit import jit
from tests.naming import raises_mentioning
from tests.package.conftest import ROOT, run

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The page's files."""
    path = tmp_path_factory.mktemp("three_x")
    for block in BLOCK.finditer((ROOT / "docs" / "ops.md").read_text()):
        (path / block["name"]).write_text(block["text"])
    return path


def test_the_page_runs_as_written(folder: Path):
    assert len(list(folder.iterdir())) == 7
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    built = str(folder / "built")
    printed = run(sys.executable, "check.py", folder=folder, PYTHONPATH=path, TORCH_EXTENSIONS_DIR=built)
    assert "all checks passed" in printed


def test_a_lock_that_was_left_behind_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "lock").touch()
    with raises_mentioning(jit.BuildError, tmp_path / "three" / "lock"):
        jit.load("three", [])


def test_a_compiler_error_is_shown(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "broken.cpp").write_text("this is not C++")
    with raises_mentioning(jit.BuildError, "broken", "error:"):
        jit.load("broken", [tmp_path / "broken.cpp"])
