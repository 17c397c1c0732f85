# SPDX-License-Identifier: Apache-2.0
"""What `nerfkit doctor` says of a build: what it was made for, and whether it ran on the GPUs that are there."""

from pathlib import Path

import pytest
import torch

from nerfkit import ops
from nerfkit.commands import doctor
from nerfkit.ops import native
from tests.naming import assert_names


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
    assert_names("\n".join(lines), "8.0", "9.0a", "this torch is a CPU build")
    path.write_bytes(b"")
    assert native.targets_of(path) is native.targets_of(tmp_path / "none.so") is None


def test_the_page_names_all_that_can_be_missing():
    text = "\n".join(doctor.report()[0])
    assert_names(text, "verdict", "lltm", "the viewer: ", "poses of photographs: ")
    assert_names(text, *(library.path.name for library in native.libraries()))


@pytest.mark.parametrize("backend", native.LIBRARIES)
def test_what_a_file_says_is_what_its_library_says(backend: str):
    if not native.loaded(backend):
        pytest.skip(f"{backend} is not built or does not load here")
    (library,) = [library for library in native.libraries() if library.backend == backend]
    assert native.targets_of(library.path) == native.build_info(backend)["targets"]


def test_what_the_build_left_is_shown(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    (tmp_path / "built.txt").write_text("what setup.py wrote for z80\n")
    lines, _ = doctor.report()
    assert_names("\n".join(lines), "what setup.py wrote for z80")


def test_a_fused_op_is_held_to_its_definition(device: str, monkeypatch):
    if not native.loaded({"cpu": "cpp", "cuda": "cuda"}[device]):
        pytest.skip(f"the ops for {device} are not built or do not load here")
    assert doctor._error_on(device) is None
    results = iter([torch.zeros(5, 2), torch.ones(5, 2)])
    monkeypatch.setattr(ops, "trilinear", lambda feats, points: next(results))
    assert_names(doctor._error_on(device), "definition")


@pytest.mark.parametrize("fails", [(), ("cuda:1",)])
def test_every_gpu_is_named_and_one_that_fails_is_a_verdict(two_gpus, monkeypatch, fails: tuple[str, ...]):
    monkeypatch.setattr(doctor, "_error_on", lambda device: "no kernel image" if device in fails else None)
    lines, broken = doctor._run_on_gpus()
    assert broken == ("no kernel image" if fails else None) and len(lines) == 2
    for index, line in enumerate(lines):
        assert_names(line, f"cuda:{index}", f"Card {index}")
        assert ("no kernel image" in line) == (f"cuda:{index}" in fails)


def test_without_a_gpu_it_has_run_on_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert_names(doctor._run_on_gpus()[0][0], "no GPU")
