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

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY_OF = {name: library for name, (library, _) in native.INSTRUCTION_SETS.items()} | {"DEFAULT": "_C.so"}


def test_setup_builds_what_is_looked_for(monkeypatch):
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("NERFKIT_CUDA", "0")
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(ROOT / "setup.py"))
    marches = {f"{name}.so": march for name, march in names["INSTRUCTION_SETS"].items()}
    assert marches == dict(native.INSTRUCTION_SETS.values()) | {native.LIBRARIES["cpp"]: ""}
    assert [extension.name for extension in names["modules"]] == [f"nerfkit.{name[:-3]}" for name in marches]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert [e.name for e in runpy.run_path(str(ROOT / "setup.py"))["modules"]] == ["nerfkit._C"]


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
    assert native._path("cpp").name == best
    assert native._path("cuda").name == "_C_cuda.so"


@pytest.mark.parametrize("capability", LIBRARY_OF)
def test_kernels_for_other_cpus(capability: str):
    """Every case of every op by that library: forward and backward."""
    library = LIBRARY_OF[capability]
    if not native.loaded("cpp"):
        pytest.skip("the fused ops are not built")
    if library == native._path("cpp").name:
        pytest.skip("all other tests are of this one")
    if library not in [name for name, _ in native.libraries_for_cpu()]:
        pytest.skip(f"this CPU has no {capability}")
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability.lower()}
    print_library = "from nerfkit.ops import native; print(native.libraries()[0].path.name)"
    loaded = subprocess.run(
        [sys.executable, "-c", print_library], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == library, loaded.stderr
    parts = "cpp-cpu and (test_forward_is_the_naive_one or test_gradient)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops", "-k", parts]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert tests.returncode == 0, tests.stdout[-4000:]
