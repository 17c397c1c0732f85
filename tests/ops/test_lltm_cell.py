# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit.ops import lltm_cell
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


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"input": torch.rand(4, 3, 1)}, ValueError, r"input must have shape \[B, I\], got \[4, 3, 1\]"),
        ({"h": torch.rand(5, 2)}, ValueError, r"h must have shape \[4, H\], got \[5, 2\]"),
        ({"c": torch.rand(4, 3)}, ValueError, r"c must have shape \[4, 2\], got \[4, 3\]"),
        ({"weight": torch.rand(6, 4)}, ValueError, r"weight must have shape \[6, 5\], got \[6, 4\]"),
        ({"bias": torch.rand(4)}, ValueError, r"bias must have shape \[6\], got \[4\]"),
        ({"c": torch.rand(4, 2).double()}, TypeError, "input and c must have one dtype, got float32 and float64"),
    ],
)
def test_bad_input(change, error, message):
    good = {
        "input": torch.rand(4, 3), "h": torch.rand(4, 2), "c": torch.rand(4, 2),
        "weight": torch.rand(6, 5), "bias": torch.rand(6),
    }  # fmt: skip
    with pytest.raises(error, match=message):
        lltm_cell(**(good | change))
