# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit import ops
from nerfkit.limits import GPU_ONLY
from nerfkit.ops import BackendError, dispatch, native
from tests.naming import raises_mentioning

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
