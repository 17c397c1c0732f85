# SPDX-License-Identifier: Apache-2.0
"""Distributions of this package, and an environment that has nothing of it but a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
IGNORED = shutil.ignore_patterns(
    *(".git*", ".ci", ".venv", ".*cache*", ".hypothesis", "__pycache__"),  # not .clang-format, which is shipped
    *("build", "dist", "runs", "scenes", "*.so", "*.egg-info"),
)


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    environment = os.environ | variables
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def build_wheel(source: Path, folder: Path, **variables: str) -> Path:
    """A wheel of the sources, in `folder`; with this environment's setuptools and torch, so that nothing is fetched."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, "."]
    run(*pip, folder=source, **variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


def folders_of_dependencies() -> list[str]:
    """Where this process finds its packages: site-packages, and what PYTHONPATH names, but no checkout of nerfkit."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")}
    return [p for p in sys.path if os.path.isdir(p) and p not in standard and not (Path(p) / "setup.py").exists()]


class Environment:
    """A virtual environment with one wheel; torch and the other dependencies are this process's, nothing is fetched."""

    def __init__(self, folder: Path, wheel: Path):
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text("\n".join(folders_of_dependencies()) + "\n")
        self.package = site / "nerfkit"
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "-q", "--no-deps", "--no-index"]
        run(*pip, "--force-reinstall", "--ignore-installed", wheel, folder=folder)

    def run(self, program: str, *arguments: str | Path, folder: Path, **variables: str) -> str:
        return run(self.bin / program, *arguments, folder=folder, PYTHONPATH="", **variables)


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout without what was built there."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "nerfkit", ignore=IGNORED))


@pytest.fixture(scope="session")
def sdist(source: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, folder=source, NERFKIT_NATIVE="0")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder)
    archive.unlink()
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="session")
def installed(request, tmp_path_factory) -> Environment:
    """An environment with the wheel that the sdist gives, its fused ops for the CPU compiled; or with NERFKIT_WHEEL."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = os.environ.get("NERFKIT_WHEEL")
    if not wheel:
        source = Path(shutil.copytree(request.getfixturevalue("sdist"), folder / "source"))
        wheel = build_wheel(source, folder, NERFKIT_NATIVE="1", NERFKIT_CUDA="0")
    return Environment(folder / "venv", Path(wheel).resolve())
