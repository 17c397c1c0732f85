# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit import ops
from nerfkit.ops.checks import IN_AUTOCAST_DTYPE
from nerfkit.ops.dispatch import OPS
from tests.naming import raises_naming
from tests.ops.cases import cases
from tests.ops.harness import as_tuple

NEEDS_ONE_DTYPE = ("depthwise_conv2d", "lltm_cell", "composite")


@pytest.mark.parametrize("op", OPS)
def test_autocast_follows_the_table(op: str, device: str):
    case = cases(op)[0]
    arguments = case.arguments(torch.float32, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = as_tuple(getattr(ops, op)(*arguments))
    wanted = torch.bfloat16 if op in (*IN_AUTOCAST_DTYPE, "grid_encode") else torch.float32
    assert {x.dtype for x in outputs if x.is_floating_point()} <= {wanted}  # count_visible has none


@pytest.mark.parametrize("op", NEEDS_ONE_DTYPE)
def test_mixed_dtypes_are_an_error_except_under_autocast(op: str):
    arguments = cases(op)[0].arguments(torch.float32)
    arguments[1] = arguments[1].to(torch.bfloat16)
    with raises_naming(TypeError, op, "float32", "bfloat16"):
        getattr(ops, op)(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        getattr(ops, op)(*arguments)


def test_the_gradient_of_a_table_is_not_rounded(device: str):
    """A sum of 1 and 300 times 1/1024, which bfloat16 would lose."""
    table, points = torch.zeros(8, 1, device=device, requires_grad=True), torch.zeros(301, 3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = ops.grid_encode(points, table, [1], 8)
        grads = torch.tensor([1.0] + [2.0**-10] * 300, device=device).to(out)
        (grad,) = torch.autograd.grad(out, table, grads[:, None])
    assert grad.dtype == torch.float32 and grad[0].item() == 1 + 300 / 1024


def test_float64_stays():
    x = torch.rand(1, 2, 4, 4).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.depthwise_conv2d(x, torch.rand(2, 1, 3, 3).double()).dtype == torch.float64
