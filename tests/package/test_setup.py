# SPDX-License-Identifier: Apache-2.0
"""setup.py compiles only what changed, builds what it can, and says what was built, which `nerfkit doctor` repeats with
what it was made for and which GPUs it ran on.

It reads its variables strictly: a word that it does not know is an error, not another build.
"""

import os
import platform
import re
import runpy
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
import torch

from nerfkit import ops
from nerfkit.commands import doctor
from nerfkit.ops import native
from tests.naming import assert_names, raises_mentioning
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


def recorded(names: dict, package: Path, built: set[str]) -> str:
    """What setup.py leaves in the package for `nerfkit doctor`."""
    names["record"](package, built)
    return (package / "built.txt").read_text()


@pytest.fixture
def no_nvcc(monkeypatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, which=shutil.which, **_: None if name == "nvcc" else which(name))
    monkeypatch.setattr(Path, "exists", lambda path, exists=Path.exists: path.name != "nvcc" and exists(path))


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"NERFKIT_NATIVE": "yes"}, ("NERFKIT_NATIVE", "auto", "0", "1", "'yes'")),
        ({"NERFKIT_TORCH_DIR": "/tmp"}, ("NERFKIT_TORCH_DIR=/tmp", "2.10", "include")),
        ({"NERFKIT_NATIVE": "1", "CXX": "no-such-compiler"}, ("no-such-compiler",)),
        ({"NERFKIT_NATIVE": "0", "NERFKIT_CUDA": "1"}, ("NERFKIT_NATIVE=0",)),
    ],
)
def test_what_cannot_be_is_an_error(variables: dict[str, str], words: tuple, toolkit: str, read_setup):
    with raises_mentioning(SystemExit, *words):
        read_setup(CUDA_HOME=toolkit, **variables)


def test_a_missing_toolkit_is_an_error_that_names_where_it_was_sought(tmp_path: Path, read_setup, no_nvcc):
    with raises_mentioning(SystemExit, "NERFKIT_CUDA=1", tmp_path, "bin/nvcc"):
        read_setup(CUDA_HOME=str(tmp_path), NERFKIT_CUDA="1")


def test_variables_are_followed(read_setup):
    assert read_setup(CXX="", NERFKIT_NATIVE="", NERFKIT_CUDA="0")["CXX"] == ["g++"], "empty is as if unset"
    assert read_setup(CXX="clang++ -v", NERFKIT_CUDA="0")["CXX"] == ["clang++", "-v"]


def test_architectures_are_those_asked_for_or_of_the_gpus_or_known_to_nvcc(toolkit: str, tmp_path: Path, read_setup):
    names = read_setup(CUDA_HOME=toolkit, TORCH_CUDA_ARCH_LIST="8.0;9.0a,12.0+PTX")
    assert names["architectures"]() == ["12.0+PTX", "8.0", "9.0a"]
    command = names["compile_command"]("cuda/one/one.cu", "one.o", "_C_cuda")
    assert "-gencode=arch=compute_120,code=compute_120" in command
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


def test_what_was_built_is_said_and_why_not_more(toolkit: str, read_setup, no_nvcc, tmp_path: Path):
    names = read_setup(CUDA_HOME="/nowhere")
    if why := names["why_not"]("_C"):
        pytest.skip(f"nothing is built here: {why}")
    built = {module.name.removeprefix("nerfkit.") for module in names["modules"]}
    assert_names(recorded(names, tmp_path, built), platform.machine(), "baseline", "no CUDA", "no nvcc", "/nowhere")
    assert_names(recorded(names, tmp_path, set()), "no baseline")


def test_cuda_ops_are_said_with_their_architectures(toolkit: str, read_setup, tmp_path: Path):
    names = read_setup(CUDA_HOME=toolkit, NERFKIT_CUDA="1", TORCH_CUDA_ARCH_LIST="8.0 9.0a")
    assert_names(recorded(names, tmp_path, {"_C", "_C_cuda"}), "CUDA", "8.0", "9.0a")
    assert_names(recorded(names, tmp_path, {"_C"}), "no CUDA")


@pytest.mark.parametrize("missing", ["NERFKIT_NATIVE=0", "no-such-compiler", "ninja"])
def test_pure_python_is_said_with_its_reason(missing: str, read_setup, monkeypatch, tmp_path: Path):
    which = shutil.which
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == missing else which(name, path=path))
    variables = {"NERFKIT_NATIVE=0": {"NERFKIT_NATIVE": "0"}, "no-such-compiler": {"CXX": "no-such-compiler"}}
    names = read_setup(NERFKIT_CUDA="0", **variables.get(missing, {}))
    assert names["modules"] == []
    assert_names(recorded(names, tmp_path, set()), "pure Python", missing)


def test_setup_builds_what_is_looked_for(read_setup, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    names = read_setup(NERFKIT_CUDA="0")
    marches = {f"{name}.so": march for name, march in names["INSTRUCTION_SETS"].items()}
    assert marches == dict(native.INSTRUCTION_SETS.values()) | {native.LIBRARIES["cpp"]: ""}
    if reason := names["why_not"]("_C"):
        pytest.skip(f"nothing is built here: {reason}")
    command = names["compile_command"]("cuda/build_info.cpp", "build_info.o", "_C")
    assert f'-DBUILD_SCHEMA="{native.schema_hash()}"' in command
    assert [extension.name for extension in names["modules"]] == [f"nerfkit.{name[:-3]}" for name in marches]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert [extension.name for extension in read_setup(NERFKIT_CUDA="0")["modules"]] == ["nerfkit._C"]


# Builds of a small tree

FILES = {
    "schema.cpp": "int schema;\n",
    "build_info.cpp": "const char* facts = BUILD_TARGETS;\n",
    "one/args.h": "#define ONE 1\n",
    "one/bind.cpp": '#include "one/args.h"\nint bound = ONE;\n',
    "one/cpu.cpp": '#include "one/args.h"\nint kernel() { return ONE; }\n',
    "two/bind.cpp": "int two;\n",
}
STEP = re.compile(r"^nerfkit build: (\d+) of (\d+), (\S+) \(\S+\)$", re.M)


class Tree:
    """A folder with setup.py and a few sources, which includes none of torch and compiles in no time."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copy(ROOT / "setup.py", folder)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        file = self.folder / "cuda" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def build(self, status: int = 0, **variables: str) -> str:
        command = [sys.executable, "setup.py", "build_ext", "--build-lib", "out"]
        environment = os.environ | {"NERFKIT_NATIVE": "1", "NERFKIT_CUDA": "0", "MAX_JOBS": "2"} | variables
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stderr

    def compiled(self, **variables: str) -> list[str]:
        """Sources that a build compiles, once for each library that they are compiled for."""
        return sorted(match[3] for match in STEP.finditer(self.build(**variables)))

    def libraries(self) -> set[str]:
        return {file.name for file in (self.folder / "out" / "nerfkit").glob("*.so")}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    if (sys.platform, platform.machine()) != ("linux", "x86_64") or not shutil.which("g++"):
        pytest.skip("needs g++, and counts the libraries of Linux on x86-64")
    return Tree(tmp_path)


@pytest.mark.slow
def test_only_what_changed_is_compiled_again(tree: Tree):
    once, thrice = ["one/bind.cpp", "schema.cpp", "two/bind.cpp"], ["build_info.cpp", "one/cpu.cpp"]
    said = tree.build()
    steps = list(STEP.finditer(said))
    assert sorted(step[3] for step in steps) == sorted(once + thrice * 3)
    assert [(int(step[1]), int(step[2])) for step in steps] == [(n, 12) for n in range(1, 10)], "then three are linked"
    assert re.search(r"^nerfkit build: done: .*baseline\+AVX2\+AVX-512", said, re.M)
    assert tree.libraries() == {"_C.so", "_C_avx2.so", "_C_avx512.so"}
    assert tree.compiled() == []
    tree.write("one/args.h", "#define ONE 2\n")
    assert tree.compiled() == ["one/bind.cpp", *["one/cpu.cpp"] * 3]
    tree.write("schema.cpp", "int other_schema;\n")
    assert tree.compiled() == [*["build_info.cpp"] * 3, "schema.cpp"], "its hash is in build_info"
    assert tree.compiled(CXX="g++ -g0") == sorted(once + thrice * 3), "another command"


@pytest.mark.slow
def test_one_library_that_fails_leaves_the_others(tree: Tree):
    tree.build()
    tree.write("one/cpu.cpp", "#ifdef __AVX512F__\n#error not here\n#endif\nint kernel() { return 1; }\n")
    said = tree.build(NERFKIT_NATIVE="auto")
    assert_names(said, "not here", "one/cpu.cpp (AVX-512)", "no AVX-512 ops: they did not compile")
    assert tree.libraries() == {"_C.so", "_C_avx2.so"}, "nor is an older one left"


@pytest.mark.slow
def test_a_library_that_must_be_built_stops_the_build(tree: Tree):
    tree.write("two/bind.cpp", "this is not C++\n")
    assert_names(tree.build(status=1), "two/bind.cpp", "error:", "nerfkit._C failed")
    assert not tree.libraries()


# What `nerfkit doctor` says


def test_the_page_names_all_that_can_be_missing_and_what_the_build_left(tmp_path: Path, monkeypatch):
    (tmp_path / "built.txt").write_text("what setup.py wrote for z80\n")
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    text = "\n".join(doctor.report()[0])
    assert_names(text, "verdict", "lltm", "the viewer: ", "poses of photos: ", "what setup.py wrote for z80")
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
