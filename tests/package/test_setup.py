# SPDX-License-Identifier: Apache-2.0
"""setup.py reads its variables strictly: a word that it does not know is an error, not another build.

And what it says of the build, for `nerfkit doctor` to repeat.
"""

import platform
import runpy
import shutil
import stat
from pathlib import Path

import pytest
import setuptools

from tests.naming import assert_names, raises_naming
from tests.package.conftest import ROOT

VARIABLES = "NERFKIT_NATIVE NERFKIT_CUDA NERFKIT_TORCH_DIR TORCH_CUDA_ARCH_LIST CUDA_HOME CXX".split()


@pytest.fixture
def read_setup(monkeypatch):
    """Runs setup.py with these variables, without building; its names."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.chdir(ROOT)

    def read(**variables: str) -> dict:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "setup.py"))

    return read


def program(path: Path, answer: str) -> Path:
    """An executable at `path` that prints `answer`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch) -> str:
    """CUDA_HOME of a toolkit that knows two of the default architectures, on a machine without a GPU."""
    program(tmp_path / "path" / "nvidia-smi", "")
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    program(tmp_path / "cuda" / "bin" / "nvcc", r"compute_75\ncompute_80\ncompute_87\n")
    return str(tmp_path / "cuda")


@pytest.fixture
def no_nvcc(monkeypatch) -> None:
    """A machine without nvcc."""
    monkeypatch.setattr("shutil.which", lambda name, which=shutil.which, **_: None if name == "nvcc" else which(name))
    monkeypatch.setattr(Path, "exists", lambda path, exists=Path.exists: path.name != "nvcc" and exists(path))


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"NERFKIT_NATIVE": "yes"}, ("NERFKIT_NATIVE", "auto", "0", "1", "'yes'")),
        ({"NERFKIT_TORCH_DIR": "/tmp"}, ("NERFKIT_TORCH_DIR=/tmp", "2.10", "include")),
        ({"NERFKIT_NATIVE": "1", "CXX": "no-such-compiler"}, ("no-such-compiler",)),
        ({"NERFKIT_NATIVE": "0", "NERFKIT_CUDA": "1"}, ("NERFKIT_NATIVE=0",)),
        ({"NERFKIT_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "8.0 sm_90"}, ("TORCH_CUDA_ARCH_LIST", "9.0a", "sm_90")),
    ],
)
def test_what_cannot_be_is_an_error(variables: dict[str, str], words: tuple, toolkit: str, read_setup):
    with raises_naming(SystemExit, *words):
        read_setup(CUDA_HOME=toolkit, **variables)


def test_a_missing_toolkit_is_an_error_that_names_where_it_was_sought(tmp_path: Path, read_setup, no_nvcc):
    with raises_naming(SystemExit, "NERFKIT_CUDA=1", tmp_path, "bin/nvcc"):
        read_setup(CUDA_HOME=str(tmp_path), NERFKIT_CUDA="1")


def test_variables_are_followed(read_setup):
    assert read_setup(CXX="", NERFKIT_NATIVE="", NERFKIT_CUDA="0")["CXX"] == ["g++"], "empty is as if unset"
    assert read_setup(CXX="clang++ -v", NERFKIT_CUDA="0")["CXX"] == ["clang++", "-v"]


def test_architectures_are_those_asked_for_or_of_the_gpus_or_known_to_nvcc(toolkit: str, tmp_path: Path, read_setup):
    names = read_setup(CUDA_HOME=toolkit, TORCH_CUDA_ARCH_LIST="8.0;9.0a,12.0+PTX")
    assert names["architectures"]() == ["12.0+PTX", "8.0", "9.0a"]
    assert "-gencode=arch=compute_120,code=compute_120" in names["gpu_flags"]()
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == ["7.5", "8.0+PTX"]
    program(Path(toolkit) / "bin" / "nvcc", "")
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == "7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX".split()
    program(tmp_path / "path" / "nvidia-smi", r"9.0\n9.0\n")
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == ["9.0"]


def test_only_a_build_runs_programs(toolkit: str, read_setup, monkeypatch):
    """pip reads setup.py several times, and nvidia-smi can take seconds."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a program was run"))
    names = read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1")
    assert "nerfkit._C_cuda" in [module.name for module in names["modules"]]


def test_a_summary_says_what_was_built_and_why_not_more(toolkit: str, read_setup, no_nvcc):
    names = read_setup(CUDA_HOME="/nowhere")
    if why := names["why_pure_python"]():
        pytest.skip(f"nothing is built here: {why}")
    built = {module.name.removeprefix("nerfkit.") for module in names["modules"]}
    assert_names(names["summary"](built), platform.machine(), "baseline", "no CUDA", "no nvcc", "/nowhere")
    assert_names(names["summary"](set()), "no baseline")


def test_cuda_ops_are_said_with_their_architectures(toolkit: str, read_setup):
    names = read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1", TORCH_CUDA_ARCH_LIST="8.0 9.0a")
    assert_names(names["summary"]({"_C", "_C_cuda"}), "CUDA", "8.0", "9.0a")
    assert_names(names["summary"]({"_C"}), "no CUDA")


@pytest.mark.parametrize("missing", ["NERFKIT_NATIVE=0", "no-such-compiler", "ninja"])
def test_pure_python_is_said_with_its_reason(missing: str, read_setup, monkeypatch):
    which = shutil.which
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == missing else which(name, path=path))
    variables = {"NERFKIT_NATIVE=0": {"NERFKIT_NATIVE": "0"}, "no-such-compiler": {"CXX": "no-such-compiler"}}
    names = read_setup(NERFKIT_CUDA="0", **variables.get(missing, {}))
    assert names["modules"] == []
    assert_names(names["summary"](set()), "pure Python", missing)
