# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit import ops
from nerfkit.ops import lltm, lltm_cell
from tests.naming import raises_naming
from tests.ops.harness import checks_of

TestLltmCell = checks_of("lltm_cell")


def test_closed_gates_keep_the_cell():
    h, c = torch.randn(3, 2).double(), torch.randn(3, 2).double()
    bias = torch.cat([torch.full((4,), -1e3), torch.zeros(2)]).double()  # input and output gates shut
    new_h, new_c = lltm_cell(torch.randn(3, 5).double(), h, c, torch.zeros(6, 7).double(), bias)
    torch.testing.assert_close(new_c, c)
    assert new_h.abs().max() == 0


def test_extreme_gates_stay_finite():
    inputs = [x.double().requires_grad_() for x in (torch.full((2, 3), 1e4), torch.ones(2, 2), torch.ones(2, 2))]
    weight = (torch.randn(6, 5).double() * 100).requires_grad_()
    outputs = lltm_cell(*inputs, weight, torch.zeros(6).double())
    gradients = torch.autograd.grad(sum(x.sum() for x in outputs), [*inputs, weight])
    assert all(x.isfinite().all() for x in (*outputs, *gradients))


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("op", ["lltm_cell", "lltm"])
@pytest.mark.parametrize("swept", ["input gate", "output gate", "candidate", "cell"])
def test_float32_over_the_whole_range(backend, op, swept):
    if backend not in ops.available(op):
        pytest.skip("needs the C++ ops")
    far = torch.tensor([-1e38, -1e20, -1e4, -0.0, 1e4, 1e20, 1e38, float("nan")])
    values = torch.cat([torch.linspace(-110, 110, 20001), torch.linspace(-1, 1, 20001), far]).double()
    n = len(values)
    columns = {"input gate": 9.0, "output gate": 9.0, "candidate": 0.5, "cell": 0.1}
    columns = {name: values if name == swept else torch.full((n,), value).double() for name, value in columns.items()}
    cell = columns.pop("cell")[:, None]  # [n, 1]
    gates = torch.stack(list(columns.values()), dim=1)  # [n, 3]
    weight = torch.eye(3, 4).double().roll(1, dims=1)  # of the state nothing
    tensors = gates, torch.zeros(n, 1), cell, weight, torch.zeros(3)

    def run(backend: str, dtype: torch.dtype) -> torch.Tensor:
        input, h, c, weight, bias = (x.to(dtype) for x in tensors)
        with ops.backend(backend):
            if op == "lltm_cell":
                return torch.cat(lltm_cell(input, h, c, weight, bias)).double()
            return torch.cat(lltm(input, torch.arange(n + 1), weight, bias, h, c)[1:]).double()

    got, wanted = run(backend, torch.float32), run("torch", torch.float64).float().double()
    torch.testing.assert_close(got, wanted, rtol=3e-7, atol=3e-7, equal_nan=True)


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"input": torch.rand(4, 3, 1)}, ValueError, ("input", "[B, I]", "[4, 3, 1]")),
        ({"h": torch.rand(5, 2)}, ValueError, ("h", "[4, H]", "[5, 2]")),
        ({"c": torch.rand(4, 3)}, ValueError, ("c", "[4, 2]", "[4, 3]")),
        ({"weight": torch.rand(6, 4)}, ValueError, ("weight", "[6, 5]", "[6, 4]")),
        ({"bias": torch.rand(4)}, ValueError, ("bias", "[6]", "[4]")),
        ({"c": torch.rand(4, 2).double()}, TypeError, ("input", "c", "float32", "float64")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "input": torch.rand(4, 3), "h": torch.rand(4, 2), "c": torch.rand(4, 2),
        "weight": torch.rand(6, 5), "bias": torch.rand(6),
    }  # fmt: skip
    with raises_naming(error, *named):
        lltm_cell(**(good | change))
