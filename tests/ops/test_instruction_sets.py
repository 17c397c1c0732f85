# SPDX-License-Identifier: Apache-2.0
"""The CPU's kernels are compiled for several instruction sets: the best library is loaded, and all are right."""

import os
import platform
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
import torch

from nerfkit.ops import native
from nerfkit.ops.native import Library
from tests.naming import assert_names

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY_OF = {name: library for name, (library, _) in native.INSTRUCTION_SETS.items()} | {"DEFAULT": "_C.so"}


def test_setup_builds_what_is_looked_for(monkeypatch):
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("NERFKIT_CUDA", "0")
    monkeypatch.delenv("NERFKIT_NATIVE", raising=False)
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(ROOT / "setup.py"))
    marches = {f"{name}.so": march for name, march in names["INSTRUCTION_SETS"].items()}
    assert marches == dict(native.INSTRUCTION_SETS.values()) | {native.LIBRARIES["cpp"]: ""}
    if reason := names["why_pure_python"]():
        pytest.skip(f"nothing is built here: {reason}")
    assert [extension.name for extension in names["modules"]] == [f"nerfkit.{name[:-3]}" for name in marches]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert names["libraries_for_cpus"]() == ["_C"]
    assert [extension.name for extension in names["extensions"]()] == ["nerfkit._C"]


def test_an_old_compiler_builds_what_it_can(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("NERFKIT_NATIVE", "0")
    monkeypatch.setenv("NERFKIT_CUDA", "0")
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" != -march=x86-64-v4 ]\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    names = runpy.run_path(str(ROOT / "setup.py"))
    capsys.readouterr()
    assert names["libraries_for_cpus"]() == ["_C", "_C_avx2"]
    assert_names(capsys.readouterr().err, "_C_avx512.so", "x86-64-v4")


@pytest.mark.parametrize(
    "capability, built, best",
    [
        ("AVX512", ["_C.so", "_C_avx2.so", "_C_avx512.so"], "_C_avx512.so"),
        ("AVX512", ["_C.so", "_C_avx2.so"], "_C_avx2.so"),
        ("AVX2", ["_C.so", "_C_avx2.so", "_C_avx512.so"], "_C_avx2.so"),
        ("DEFAULT", ["_C.so", "_C_avx2.so", "_C_avx512.so"], "_C.so"),
        ("SVE256", ["_C.so"], "_C.so"),
        ("AVX512", [], "_C.so"),
    ],
)
def test_the_best_library_is_taken(capability: str, built: list[str], best: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    for name in built:
        (tmp_path / name).touch()
    monkeypatch.setattr(native, "_load_from", lambda path, backend: Library(backend, path, True, "loaded"))
    assert native._load("cpp").path.name == best
    assert native._load("cuda").path.name == "_C_cuda.so"


def test_a_library_that_does_not_load_gives_way(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    monkeypatch.delenv("NERFKIT_DISABLE_NATIVE", raising=False)
    for name in ("_C.so", "_C_avx512.so"):
        (tmp_path / name).write_text("no library")
    library = native._load("cpp")
    assert not library.loaded and library.reason.startswith("_C_avx512.so "), "of the best one"
    load = native._load_from
    from_plain = lambda path, backend: Library(backend, path, True, "") if path.name == "_C.so" else load(path, backend)  # noqa: E731
    monkeypatch.setattr(native, "_load_from", from_plain)
    library = native._load("cpp")
    assert library.loaded and library.path.name == "_C.so"
    monkeypatch.setitem(native._libraries, "cpp", library)
    assert native.faster_library() == "_C_avx512.so"


@pytest.mark.parametrize("capability", LIBRARY_OF)
@pytest.mark.long
def test_kernels_for_other_cpus(capability: str):
    """Every case of every op by that library: forward and backward."""
    library = LIBRARY_OF[capability]
    if not native.loaded("cpp"):
        pytest.skip("needs the C++ ops")
    if library == native.libraries()[0].path.name:
        pytest.skip(f"{library} is the one that is loaded: all other tests run it")
    if library not in [name for name, _ in native.libraries_for_cpu()]:
        pytest.skip(f"this CPU has no {capability}")
    if not (native.libraries()[0].path.parent / library).exists() and os.environ.get("NERFKIT_NATIVE") != "1":
        pytest.skip(f"{library} is not built")
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability.lower()}
    print_library = "from nerfkit.ops import native; print(native.libraries()[0].path.name)"
    loaded = subprocess.run(
        [sys.executable, "-c", print_library], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == library, loaded.stderr
    parts = "cpp-cpu and (test_forward_is_the_naive_one or test_gradient) or cpp and (whole_range or packs_and)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops", "-k", parts]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert tests.returncode == 0, tests.stdout[-4000:]
