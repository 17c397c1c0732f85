# SPDX-License-Identifier: Apache-2.0
"""Which backend runs; the best library for this CPU is loaded, one of other sources is named instead."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nerfkit import ops
from nerfkit.limits import GPU_ONLY
from nerfkit.ops import BackendError, dispatch, native
from nerfkit.ops.native import Library
from tests.naming import assert_names, raises_mentioning

NO_CPP = {(op, "cpp") for op in GPU_ONLY}


@pytest.fixture(autouse=True)
def resolved_anew():
    """What is registered changes here."""
    dispatch._resolve_once.cache_clear()
    yield
    dispatch._resolve_once.cache_clear()


def test_a_backend_of_all_ops_is_a_wish_for_the_kernel_of_a_frame():
    """Which does not take every model; by its own name it is a demand."""
    with ops.backend("cuda"):
        assert (ops.choices()["render_rays"], ops.choices()["march"]) == ("auto", "cuda")
    with ops.backend("cpp", overrides={"render_rays": "cuda"}):
        assert ops.choices()["render_rays"] == "cuda"


@pytest.mark.parametrize("op, name", [(op, b) for op in dispatch.OPS for b in ("cpp", "cuda") if (op, b) not in NO_CPP])
def test_a_backend_that_was_not_built_raises(op: str, name: str, monkeypatch):
    monkeypatch.delitem(dispatch._implementations, (op, name), raising=False)
    with raises_mentioning(BackendError, op, f"'{name}'", "torch", native.how_to_build(name)):
        dispatch.resolve(op, dispatch.DEVICE_OF[name], name)


def test_auto_takes_the_fused_one_where_built(monkeypatch):
    monkeypatch.setitem(dispatch._implementations, ("trilinear", "cpp"), lambda feats, points: "fused")
    assert dispatch.resolve("trilinear", "cpu").backend == "cpp"
    assert ops.trilinear(torch.rand(1, 8, 1), torch.rand(1, 3)) == "fused"
    with ops.backend("cpp", {"trilinear": "torch"}):
        assert ops.trilinear(torch.rand(1, 8, 1), torch.rand(1, 3)).shape == (1, 1)


def test_unknown_names_raise():
    with raises_mentioning(BackendError, "'lstm'", *dispatch.OPS):
        ops.set_backend("auto", {"lstm": "torch"})
    with raises_mentioning(BackendError, "'cudnn'", "auto", "torch", "cpp", "cuda"):
        ops.set_backend("cudnn")


def test_the_context_restores():
    with ops.backend("torch"):
        assert {r.backend for r in ops.resolved("cpu").values()} == {"torch"}
        with pytest.raises(RuntimeError, match="^inner$"), ops.backend("auto"):
            raise RuntimeError("inner")
        assert {r.backend for r in ops.resolved("cpu").values()} == {"torch"}
    assert set(ops.choices().values()) == {"auto"}


@pytest.mark.parametrize(
    "target, capability, runs",
    [
        ("9.0", (9, 0), True), ("8.0", (8, 6), True), ("8.6", (8, 0), False), ("9.0", (10, 0), False),
        ("9.0a", (9, 0), True), ("10.0a", (10, 3), False), ("12.0+PTX", (12, 1), True), ("9.0+PTX", (12, 0), True),
    ],
)  # fmt: skip
def test_which_gpu_a_binary_runs_on(target: str, capability: tuple[int, int], runs: bool):
    assert native._runs_on(target, capability) == runs


def test_a_gpu_that_the_library_was_not_built_for_is_named(monkeypatch):
    monkeypatch.setitem(dispatch._implementations, ("trilinear", "cuda"), lambda: None)
    monkeypatch.setattr(native, "why_not_on", lambda gpu: "built for 9.0, but Old GPU has compute capability 7.5")
    assert dispatch.resolve("trilinear", "cuda:1").backend == "torch"
    with raises_mentioning(BackendError, "trilinear", "'cuda'", "cpu"):
        dispatch.resolve("trilinear", "cpu", "cuda")
    with raises_mentioning(BackendError, "9.0", "Old GPU", "7.5", native.how_to_build("cuda")):
        dispatch.resolve("trilinear", "cuda:1", "cuda")


ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY_OF = {name: library for name, (library, _) in native.INSTRUCTION_SETS.items()} | {"DEFAULT": "_C.so"}


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
    parts = "cpp-cpu and (forward_is_the_naive_one or test_gradient or (equals_the_definition and lltm)) or whole_range"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops", "-k", parts]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert tests.returncode == 0, tests.stdout[-4000:]


@pytest.mark.slow
def test_doctor_names_a_stale_library(tmp_path: Path):
    """After a pull that changed the schemas: the package imports, trains by its definitions and says what to type."""
    shutil.copytree(ROOT / "nerfkit", tmp_path / "nerfkit", ignore=shutil.ignore_patterns("__pycache__", "_C*.so"))
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "schema.cpp").write_text("// pulled\n")
    (tmp_path / "nerfkit" / "_C.so").write_text(f"targets=9.0\nschema={native.schema_hash()}\n")
    command = [sys.executable, "-m", "nerfkit", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    library, op = (re.search(rf"^.*\b{name}\b.*$", done.stdout, re.M)[0] for name in ("_C.so", "trilinear"))
    assert_names(library, "sources")
    assert_names(op, "torch")
    assert_names(done.stdout, "verdict", "NERFKIT_NATIVE=1 pip install --no-build-isolation -e .")
