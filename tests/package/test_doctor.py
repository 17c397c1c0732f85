# SPDX-License-Identifier: Apache-2.0
"""What `nerfkit doctor` says of a build: what it was made for, and whether it ran on the GPUs that are there."""

from pathlib import Path

import pytest
import torch

from nerfkit import ops
from nerfkit.commands import doctor
from nerfkit.ops import native


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
    monkeypatch.setattr(native, "why_not_on", lambda index: None)


def test_a_library_that_did_not_load_says_what_it_is_for(tmp_path: Path):
    path = tmp_path / "_C_cuda.so"
    path.write_bytes(b"\x7fELF\0compiler=g++\ntorch=2.10\ntargets=8.0 9.0a\nschema=ab\0")
    assert native.targets_of(path) == "8.0 9.0a"
    lines = doctor._library(native.Library("cuda", path, False, "this torch is a CPU build"))
    assert any("compute capability 8.0 9.0a" in line for line in lines)
    path.write_bytes(b"")
    assert native.targets_of(path) is native.targets_of(tmp_path / "none.so") is None


@pytest.mark.parametrize("backend", native.LIBRARIES)
def test_what_a_file_says_is_what_its_library_says(backend: str):
    if not native.loaded(backend):
        pytest.skip(f"{backend} is not built or does not load here")
    (library,) = [library for library in native.libraries() if library.backend == backend]
    assert native.targets_of(library.path) == native.build_info(backend)["targets"]


def test_what_the_build_left_is_shown(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    (tmp_path / "built.txt").write_text("CPU ops for z80 baseline; no CUDA ops: no nvcc found\n")
    lines, _ = doctor.report()
    assert [line for line in lines if line.endswith("CPU ops for z80 baseline; no CUDA ops: no nvcc found")]


def test_a_fused_op_is_held_to_its_definition(device: str, monkeypatch):
    if not native.loaded({"cpu": "cpp", "cuda": "cuda"}[device]):
        pytest.skip("the fused ops are not built")
    assert doctor._error_on(device) is None
    results = iter([torch.zeros(5, 2), torch.ones(5, 2)])
    monkeypatch.setattr(ops, "trilinear", lambda feats, points: next(results))
    assert "differs from its definition" in doctor._error_on(device)


def test_every_gpu_is_named_on_which_it_ran(two_gpus, monkeypatch):
    monkeypatch.setattr(doctor, "_error_on", lambda device: None)
    lines, broken = doctor._run_on_gpus()
    assert broken is None and [line.split(" on ")[1] for line in lines] == ["cuda:0 Card 0", "cuda:1 Card 1"]


def test_a_gpu_that_fails_is_a_verdict(two_gpus, monkeypatch):
    monkeypatch.setattr(doctor, "_error_on", lambda device: "no kernel image" if device == "cuda:1" else None)
    lines, broken = doctor._run_on_gpus()
    assert broken == "no kernel image" and "FAILED: no kernel image on cuda:1 Card 1" in lines[1]


def test_without_a_gpu_it_has_run_on_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "no GPU" in doctor._run_on_gpus()[0][0]
