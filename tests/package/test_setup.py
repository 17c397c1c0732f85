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
import torch

from tests.naming import assert_names, raises_naming
from tests.package.conftest import ROOT

VARIABLES = "NERFKIT_NATIVE NERFKIT_CUDA NERFKIT_TORCH_DIR TORCH_CUDA_ARCH_LIST CUDA_HOME CUDA_PATH CXX".split()


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


@pytest.mark.parametrize("name", ["NERFKIT_NATIVE", "NERFKIT_CUDA"])
def test_an_unknown_switch_is_an_error(name: str, read_setup):
    with raises_naming(SystemExit, name, "auto", "0", "1", "'yes'"):
        read_setup(**{name: "yes"})


def test_an_empty_variable_is_as_if_unset(read_setup, capsys):
    assert read_setup(CXX="", NERFKIT_NATIVE="", NERFKIT_CUDA="0")["CXX"] == ["g++"]
    assert read_setup(CXX="clang++ -v", NERFKIT_CUDA="0")["CXX"] == ["clang++", "-v"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_without_torch_is_an_error(exists: bool, tmp_path: Path, read_setup):
    folder = tmp_path / "torch"
    if exists:
        folder.mkdir()
    with raises_naming(SystemExit, f"NERFKIT_TORCH_DIR={folder}", "2.10", "include"):
        read_setup(NERFKIT_TORCH_DIR=str(folder), NERFKIT_NATIVE="0")


def test_the_torch_that_is_asked_for_is_taken(read_setup):
    folder = Path(torch.__file__).parent
    assert read_setup(NERFKIT_TORCH_DIR=str(folder), NERFKIT_CUDA="0")["TORCH"].folder == folder


@pytest.mark.parametrize("wrong", ["Hopper", "90", "sm_90", "9.0+ptx"])
def test_an_unknown_architecture_is_an_error(wrong: str, toolkit: str, read_setup):
    with raises_naming(SystemExit, "TORCH_CUDA_ARCH_LIST", "8.0", "9.0a", "12.0+PTX", wrong):
        read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1", TORCH_CUDA_ARCH_LIST=f"8.0 {wrong}")


def test_architectures_are_those_asked_for(toolkit: str, read_setup):
    names = read_setup(CUDA_HOME=toolkit, TORCH_CUDA_ARCH_LIST="8.0;9.0a,12.0+PTX")
    assert names["architectures"]() == ["12.0+PTX", "8.0", "9.0a"]
    assert "-gencode=arch=compute_120,code=compute_120" in names["gencode"]()


def test_the_default_architectures_are_known_to_nvcc(toolkit: str, read_setup):
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == ["7.5", "8.0+PTX"]
    program(Path(toolkit) / "bin" / "nvcc", "")
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == "7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX".split()


def test_the_architectures_of_the_gpus_come_first(toolkit: str, tmp_path: Path, read_setup):
    program(tmp_path / "path" / "nvidia-smi", r"9.0\n9.0\n")
    assert read_setup(CUDA_HOME=toolkit)["architectures"]() == ["9.0"]


def test_only_a_build_runs_programs(toolkit: str, read_setup, monkeypatch):
    """pip reads setup.py several times, and nvidia-smi can take seconds."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a program was run"))
    names = read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1")
    assert "nerfkit._C_cuda" in [module.name for module in names["modules"]]


def test_a_cuda_home_without_nvcc_is_named(tmp_path: Path, read_setup, monkeypatch):
    names = read_setup(CUDA_HOME=str(tmp_path), NERFKIT_CUDA="0")
    assert_names(names["about_nvcc"](), f"CUDA_HOME={tmp_path}", "bin/nvcc")
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nvcc" else name)
    monkeypatch.setattr(Path, "exists", lambda path, exists=Path.exists: path.name != "nvcc" and exists(path))
    with raises_naming(SystemExit, "NERFKIT_CUDA=1", f"CUDA_HOME={tmp_path}", "bin/nvcc"):
        read_setup(CUDA_HOME=str(tmp_path), NERFKIT_CUDA="1")


@pytest.mark.parametrize(
    "variables, reason",
    [
        ({"NERFKIT_CUDA": "0"}, ("NERFKIT_CUDA=0",)),
        ({}, ("nvcc",)),
        ({"CUDA_HOME": "/nowhere"}, ("nvcc", "CUDA_HOME=/nowhere")),
    ],
)
def test_why_there_are_no_cuda_ops(variables: dict[str, str], reason: tuple, read_setup, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, which=shutil.which: None if name == "nvcc" else which(name))
    monkeypatch.setattr(Path, "exists", lambda path, exists=Path.exists: path.name != "nvcc" and exists(path))
    names = read_setup(**variables)
    if why := names["why_pure_python"]():
        pytest.skip(f"nothing is built here: {why}")
    built = {module.name.removeprefix("nerfkit.") for module in names["modules"]}
    said = names["summary"](built)
    assert_names(said, platform.machine(), "baseline", "no CUDA", *reason)
    assert_names(names["summary"](set()), "no baseline", *reason)


def test_cuda_ops_are_said_with_their_architectures(toolkit: str, read_setup):
    names = read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1", TORCH_CUDA_ARCH_LIST="8.0 9.0a")
    assert_names(names["summary"]({"_C", "_C_cuda"}), "CUDA", "8.0", "9.0a")
    assert_names(names["summary"]({"_C"}), "no CUDA")


def test_pure_python_is_said_with_its_reason(read_setup):
    assert_names(read_setup(NERFKIT_NATIVE="0")["summary"](set()), "NERFKIT_NATIVE=0")
    assert_names(read_setup(CXX="no-such-compiler", NERFKIT_CUDA="0")["summary"](set()), "no-such-compiler")
