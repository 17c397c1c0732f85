# SPDX-License-Identifier: Apache-2.0
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from nerfkit import nn, ops
from nerfkit.ops import mlp
from nerfkit.ops.mlp import n_parameters, why_no_kernel
from tests.naming import not_named, raises_naming
from tests.ops.harness import NativeCalls, checks_of, fused_params

TestMlp = checks_of("mlp")


def test_is_what_linear_layers_give():
    net = nn.MLP(5, 8, 2, 3)
    x = torch.randn(7, 5)
    (w0, b0), (w1, b1), (w2, b2) = net.layers()
    wanted = F.linear(F.relu(F.linear(F.relu(F.linear(x, w0, b0)), w1, b1)), w2, b2)
    torch.testing.assert_close(net(x[:, :2], x[:, 2:]), wanted)


def test_layers_are_views():
    net = nn.MLP(2, 3, 1, 1)
    with torch.no_grad():
        for weight, bias in net.layers():
            weight.zero_()
            bias.fill_(2.0)
    assert net(torch.randn(4, 2)).tolist() == [[2.0]] * 4


def test_nan_of_a_row_stays_in_it():
    net = nn.MLP(16, 16, 2, 3)
    x = torch.randn(40, 16)
    x[17, 3] = float("nan")
    assert (~net(x).isfinite()).any(1).nonzero().flatten().tolist() == [17]


@pytest.mark.skipif("cpp" not in ops.available("mlp"), reason="needs the C++ ops")
@pytest.mark.parametrize("widths", [(1, 1), (3, 3), (2, 1, 4), (4, 9, 2), (7, 5, 8, 17)], ids=str)
@pytest.mark.parametrize("n_rows", [1, 3, 32, 75])
def test_narrow_layers(widths: tuple, n_rows: int):
    """Kernels take some rows and columns at once: what is beyond the last ones counts for nothing."""
    parameters = torch.randn(n_parameters(widths), requires_grad=True)
    x = torch.randn(n_rows, widths[0], requires_grad=True)
    grad = torch.randn(n_rows, widths[-1])

    def results() -> tuple:
        out = mlp(parameters, widths, x)
        return out, *torch.autograd.grad(out, (parameters, x), grad)

    with ops.backend("torch"):
        wanted = results()
    with ops.backend("cpp"):
        got = results()
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


H100 = SimpleNamespace(major=9, minor=0, shared_memory_per_block_optin=232448)
L4 = SimpleNamespace(major=8, minor=9, shared_memory_per_block_optin=101376)
T4 = SimpleNamespace(major=7, minor=5, shared_memory_per_block_optin=65536)


@pytest.mark.parametrize(
    "gpu, dtype, widths, inputs, named",
    [
        (H100, torch.float16, (96, 64, 64, 3), (16, 16, 64), None),
        (H100, torch.bfloat16, (128, 16, 16), (128,), None),
        (H100, torch.float32, (32, 64, 3), (32,), ("float16", "bfloat16", "float32")),
        (H100, torch.float16, (32, 3), (32,), ("hidden", "0")),
        (H100, torch.float16, (32, 64, 64, 64, 3), (32,), ("hidden", "3")),
        (H100, torch.float16, (32, 128, 3), (32,), ("hidden", "16", "32", "64", "128")),
        (H100, torch.float16, (32, 16, 64, 3), (32,), ("hidden", "16", "64")),
        (H100, torch.float16, (32, 64, 3), (24, 8), ("inputs", "16", "24")),
        (H100, torch.float16, (144, 64, 3), (128, 16), ("inputs", "128", "144")),
        (H100, torch.float16, (32, 64, 17), (32,), ("outputs", "16", "17")),
        (L4, torch.float16, (32, 64, 3), (32,), ("shared memory", "150000", "101376")),
        (T4, torch.float16, (32, 64, 3), (32,), ("compute capability", "8.0", "7.5")),
    ],
)
def test_why_a_gpu_has_no_kernel(gpu, dtype, widths: tuple, inputs: tuple, named: tuple | None, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    for device in ("cuda", torch.device("cuda:1")):
        why = why_no_kernel(device, dtype, widths, inputs)
        assert why is None if named is None else not not_named(why, *named), why
    assert why_no_kernel("cpu", dtype, widths, inputs) is None


@pytest.mark.parametrize("backend, device", fused_params("mlp"))
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_by_name_it_never_falls_back(backend: str, device: str, compiles: bool, monkeypatch):
    """A kernel that takes only even widths, of a network of 7: refused by name, the definition under auto."""

    def why_not(device, dtype, widths, input_widths) -> str | None:
        return f"its kernel takes even widths, got {widths[1]}" if widths[1] % 2 else None

    monkeypatch.setattr(sys.modules["nerfkit.ops.mlp"], "why_no_kernel", why_not)
    torch._dynamo.reset()
    call = torch.compile(mlp, backend="aot_eager", fullgraph=True) if compiles else mlp
    x = torch.randn(9, 16, device=device, dtype=torch.float16)
    for hidden, is_native in ((7, False), (16, True)):
        widths = (16, hidden, 3)
        parameters = (torch.randn(n_parameters(widths), device=device) / 4).half()
        with ops.backend("torch"):
            wanted = mlp(parameters, widths, x)
        with ops.backend("auto"), NativeCalls() as seen:
            got = mlp(parameters, widths, x)
        assert bool(seen.calls) == is_native
        assert is_native or torch.equal(got, wanted)
        with ops.backend("auto"):
            torch.testing.assert_close(call(parameters, widths, x), wanted, rtol=1e-2, atol=2e-2)
        with ops.backend(backend):
            if is_native:
                torch.testing.assert_close(call(parameters, widths, x), wanted, rtol=1e-2, atol=2e-2)
                continue
            # Of torch.compile, whose own error repeats it, or as it is.
            with raises_naming(RuntimeError, "mlp", f"'{backend}'", "7"):
                call(parameters, widths, x)


@pytest.mark.parametrize(
    "parameters, widths, inputs, error, named",
    [
        (26, (3, 4, 2), [], ValueError, ("1", "4", "inputs", "0", "widths", "[3, 4, 2]")),
        (26, (3,), [(5, 3)], ValueError, ("1", "8", "layers", "inputs", "widths", "[3]")),
        (26, (3, 4, 2), [(5, 2)], ValueError, ("inputs", "widths[0]", "3", "2")),
        (26, (3, 4, 2), [(5, 2), (4, 1)], ValueError, ("inputs[1]", "[5, I_1]", "[4, 1]")),
        (25, (3, 4, 2), [(5, 3)], ValueError, ("parameters", "[26]", "[25]")),
    ],
)
def test_bad_input(parameters: int, widths: tuple, inputs: list, error, named: tuple):
    with raises_naming(error, *named):
        mlp(torch.rand(parameters), widths, *(torch.rand(size) for size in inputs))


def test_bad_dtypes():
    with raises_naming(TypeError, "inputs[0]", "parameters", "float32", "float64"):
        mlp(torch.rand(26).double(), (3, 4, 2), torch.rand(5, 3))
    with raises_naming(TypeError, "inputs[0]", "float32", "int64"):
        mlp(torch.ones(26).long(), (3, 4, 2), torch.ones(5, 3).long())
