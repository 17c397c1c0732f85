# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives, which no native op has, are refused by name instead of being zero."""

import pytest
import torch
from torch.autograd import forward_ad

from nerfkit import ops
from tests.naming import raises_naming
from tests.ops.cases import CASES, Case
from tests.ops.harness import as_tuple, fused_params, has_kernel

pytestmark = pytest.mark.slow

FIRST = {case.op: case for case in reversed(CASES) if case.differentiable}  # of each op
NATIVE = [pytest.param(op, *p.values, id=f"{op}-{p.id}", marks=p.marks) for op in FIRST for p in fused_params(op)]


def dtype_of(case: Case, backend: str) -> torch.dtype:
    return torch.float64 if has_kernel(case, backend, torch.float64) else torch.float16


def output_of(case: Case, arguments: list, place: int, value: torch.Tensor) -> torch.Tensor:
    return as_tuple(case.function(*arguments[:place], value, *arguments[place + 1 :]))[0]


@pytest.mark.parametrize("op, backend, device", NATIVE)
def test_a_dual_input_is_refused(op: str, backend: str, device: str):
    case = FIRST[op]
    named = op, "forward-mode", "ops.backend('torch')"
    arguments = case.arguments(dtype_of(case, backend), device)
    with ops.backend(backend):
        for place in case.differentiable:
            x = arguments[place]
            for needs_grad in (False, True):
                primal = x.clone().requires_grad_(needs_grad)
                with forward_ad.dual_level(), raises_naming(NotImplementedError, *named):
                    output_of(case, arguments, place, forward_ad.make_dual(primal, torch.ones_like(x)))
            with raises_naming(NotImplementedError, *named):
                torch.func.jvp(lambda x, place=place: output_of(case, arguments, place, x), (x,), (x,))


@pytest.mark.parametrize("op, backend, device", NATIVE)
def test_compiled_code_refuses_it_too(op: str, backend: str, device: str):
    case = FIRST[op]
    arguments = case.arguments(dtype_of(case, backend), device)
    x = arguments[case.differentiable[0]]
    torch._dynamo.reset()
    with ops.backend(backend):
        compiled = torch.compile(lambda x: output_of(case, arguments, case.differentiable[0], x), backend="aot_eager")
        compiled(x)
        with forward_ad.dual_level(), raises_naming(NotImplementedError, op, "forward-mode"):
            compiled(forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("op, backend, device", NATIVE)
def test_without_a_dual_input_nothing_changes(op: str, backend: str, device: str):
    case = FIRST[op]
    arguments = case.arguments(dtype_of(case, backend), device)
    with ops.backend(backend):
        wanted = as_tuple(case.function(*arguments))
        with forward_ad.dual_level():
            got = as_tuple(case.function(*arguments))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_the_definition_has_it():
    (case,) = (case for case in CASES if case.name == "5x3_to_1")
    feats, points = case.arguments()
    with ops.backend("torch"):
        _, tangent = torch.func.jvp(lambda x: ops.trilinear(x, points), (feats,), (torch.ones_like(feats),))
    torch.testing.assert_close(tangent, torch.ones_like(tangent))  # the weights of a cell's corners sum to 1
