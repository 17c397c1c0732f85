# SPDX-License-Identifier: Apache-2.0
"""The sdist is enough to build and to test: every file that its tests read is in it, or they say that it is not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.conftest import ROOT, run

pytestmark = pytest.mark.slow


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout: the files that git has are what an sdist should hold")
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_sdist_holds_the_checkout_without_the_scenes(sdist: Path):
    held = {str(file.relative_to(sdist)) for file in sdist.rglob("*") if file.is_file()}
    images = re.compile(r"data/\w+/(((depth/)?(train|val|test)|images|depth)/\w+\.(png|jpg|npz)|surface\.npz)")
    for name in tracked():
        if (ROOT / name).exists() and not name.startswith((".ci/", ".git")):
            assert (name in held) != bool(images.fullmatch(name)), name
    assert not [name for name in held if name.endswith((".so", ".pyc", "built.txt"))]


@pytest.mark.long
def test_its_tests_pass(sdist: Path):
    """The faster ones, without fused ops."""
    path = os.pathsep.join(filter(None, [str(sdist), os.environ.get("PYTHONPATH")]))
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not long and not cuda"]
    slow = ["--ignore", "tests/ops", "--ignore", "tests/test_commands.py"]  # they read nothing that others do not
    said = run(*pytest_, *slow, folder=sdist, PYTHONPATH=path, NERFKIT_NATIVE="0")
    assert re.search(r"\d+ passed", said)
