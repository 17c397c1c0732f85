# SPDX-License-Identifier: Apache-2.0
"""Forward mode, autocast, compilation: where fused ops could differ from the definition."""

import pytest
import torch
from torch.autograd import forward_ad

from nerfkit import ops
from nerfkit.limits import GPU_ONLY, OPS
from nerfkit.ops.checks import IN_AUTOCAST_DTYPE
from nerfkit.ops.grid_encode import level_entries
from tests.naming import raises_mentioning
from tests.ops.cases import CASES, Case, cases, lltm
from tests.ops.harness import as_tuple, backend_params, fused_params, has_kernel, on_backends

FIRST = {case.op: case for case in reversed(CASES) if case.differentiable}  # of each op


@on_backends([*FIRST.values(), lltm("nothing", (0, 0), 3, 2)], fused_params)
def test_the_same_results_need_gradients_on_all_backends(case: Case, backend: str, device: str):
    dtype = torch.float32 if has_kernel(case, backend, torch.float32) else torch.float16
    for place in case.differentiable:
        needed = []
        for name in ("torch", backend):
            arguments = case.arguments(dtype, device)
            arguments[place].requires_grad_()
            with ops.backend(name):
                needed.append([x.requires_grad for x in as_tuple(case.function(*arguments))])
        assert needed[0] == needed[1], place


@on_backends(FIRST.values(), fused_params)
def test_forward_mode_is_refused_by_name(case: Case, backend: str, device: str):
    """It would be zero. Without a dual input nothing changes."""
    dtype = torch.float64 if has_kernel(case, backend, torch.float64) else torch.float16
    arguments = case.arguments(dtype, device)
    with ops.backend(backend):
        wanted = as_tuple(case.function(*arguments))
        for place in case.differentiable:
            before, after, x = arguments[:place], arguments[place + 1 :], arguments[place]
            for primal in (x, x.clone().requires_grad_()):
                with (
                    forward_ad.dual_level(),
                    raises_mentioning(NotImplementedError, case.op, "forward-mode", "ops.backend('torch')"),
                ):
                    case.function(*before, forward_ad.make_dual(primal, torch.ones_like(x)), *after)
        with forward_ad.dual_level():
            torch.testing.assert_close(as_tuple(case.function(*arguments)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend, device", fused_params("trilinear"))
def test_compiled_code_follows_the_backend(backend: str, device: str):
    graphs = []

    def keep(graph: torch.fx.GraphModule, _):
        graphs.append(str(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda f, p: ops.trilinear(f, p), backend=keep, fullgraph=True)
    inputs = torch.rand(2, 8, 3, device=device), torch.rand(2, 3, device=device)
    for choice in (backend, "torch", backend):
        with ops.backend(choice):
            compiled(*inputs)
    assert ["_trilinear" in graph for graph in graphs] == [True, False]  # and the third call finds the first graph


@pytest.mark.parametrize("backend, device", backend_params("grid_encode"))
def test_not_a_number_in_the_gradient_stays_one(backend: str, device: str):
    table = torch.rand(level_entries(2, 64), 2, device=device, requires_grad=True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with ops.backend(backend):
            out = ops.grid_encode(torch.rand(5, 3, device=device), table, [2], 64)
            out.backward(torch.full_like(out, torch.nan))
    finally:
        torch.use_deterministic_algorithms(before)
    assert table.grad.isnan().any()


@pytest.mark.parametrize("op", [op for op in OPS if op not in GPU_ONLY])
def test_autocast_follows_the_table(op: str, device: str):
    case = cases(op)[0]
    arguments = case.arguments(torch.float32, device)
    if op in IN_AUTOCAST_DTYPE:
        arguments[0] = arguments[0].bfloat16()  # which alone is an error
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = as_tuple(getattr(ops, op)(*arguments))
        wide = as_tuple(getattr(ops, op)(*case.arguments(torch.float64, device)))
    wanted = torch.bfloat16 if op in (*IN_AUTOCAST_DTYPE, "grid_encode") else torch.float32
    assert {x.dtype for x in outputs if x.is_floating_point()} <= {wanted}  # count_visible has none
    assert {x.dtype for x in wide if x.is_floating_point()} <= {torch.float64}


def test_the_gradient_of_a_table_is_not_rounded(device: str):
    """A sum of 1 and 300 times 1/1024, which bfloat16 would lose."""
    table, points = torch.zeros(8, 1, device=device, requires_grad=True), torch.zeros(301, 3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = ops.grid_encode(points, table, [1], 8)
        grads = torch.tensor([1.0] + [2.0**-10] * 300, device=device).to(out)
        (grad,) = torch.autograd.grad(out, table, grads[:, None])
    assert grad.dtype == torch.float32 and grad[0].item() == 1 + 300 / 1024
