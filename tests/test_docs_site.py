# SPDX-License-Identifier: Apache-2.0
"""The site of the pages and the API reference builds without a warning."""

import importlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_the_site_builds(tmp_path):
    pytest.importorskip("material", reason="needs the extra 'docs'")
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs the extra 'docs'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs/mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for package in ("nerfkit", "nerfkit.ops", "nerfkit.nn"):
        page = (tmp_path / "api" / package.rpartition(".")[2] / "index.html").read_text()
        names = set(importlib.import_module(package).__all__) - {"__version__", "nn", "ops"}
        assert not [name for name in names if f"{package}.{name}" not in page], package
        assert ".. math::" not in page
