# SPDX-License-Identifier: Apache-2.0
"""Derivatives of derivatives, forward mode, autocast, compilation: where fused ops could differ from the definition."""

import pytest
import torch
from torch.autograd import forward_ad

from nerfkit import ops
from nerfkit.nn import LLTMCell
from nerfkit.ops.checks import IN_AUTOCAST_DTYPE
from nerfkit.ops.dispatch import OPS
from nerfkit.ops.grid_encode import level_entries
from tests.naming import raises_naming
from tests.ops.cases import CASES, Case, cases
from tests.ops.harness import (
    as_tuple,
    backend_params,
    forward_and_backward,
    fused_params,
    has_kernel,
    on_backends,
    with_late_inputs,
)

FIRST = {case.op: case for case in reversed(CASES) if case.differentiable}  # of each op


def second_order(function, *inputs) -> list[torch.Tensor]:
    """First gradients of a sum of squares with create_graph=True, then the gradient of their squares."""
    first = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), inputs)
    return [x.detach().cpu() for x in (*first, *second)]


@pytest.mark.parametrize("backend, device", fused_params("lltm_cell"))
def test_second_derivatives_where_inputs_depend_on_each_other(backend: str, device: str):
    torch.manual_seed(0)
    cell = LLTMCell(3, 4, dtype=torch.float64)
    x, w = torch.randn(5, 2, 3).double(), torch.randn(3, 1, 3, 3).double()
    image, grid_table = torch.randn(1, 3, 6, 6).double(), torch.randn(level_entries(4, 4096), 2).double()
    points = torch.rand(7, 3).double()

    def recurrent(x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x:
            state = cell.to(x.device)(step, state)
        return state[0]

    def convolved_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.depthwise_conv2d(ops.depthwise_conv2d(x, w, padding=1), w, padding=1)

    def looked_up_twice(points: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return ops.grid_encode(ops.grid_encode(points, table, [4], 4096)[:, [0, 1, 0]].sigmoid(), table, [4], 4096)

    for function, inputs in (
        (recurrent, (x,)), (convolved_twice, (image, w)), (looked_up_twice, (points, grid_table)),
    ):  # fmt: skip
        with ops.backend("torch"):
            wanted = second_order(function, *(i.clone().requires_grad_() for i in inputs))
        with ops.backend(backend):
            got = second_order(function, *(i.to(device).requires_grad_() for i in inputs))
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)


def output_of(case: Case, arguments: list, place: int, value: torch.Tensor) -> torch.Tensor:
    return as_tuple(case.function(*arguments[:place], value, *arguments[place + 1 :]))[0]


@on_backends(FIRST.values(), fused_params)
@pytest.mark.slow
def test_forward_mode_is_refused_by_name(case: Case, backend: str, device: str):
    """It would be zero; also in compiled code. Without a dual input nothing changes."""
    named = case.op, "forward-mode"
    dtype = torch.float64 if has_kernel(case, backend, torch.float64) else torch.float16
    arguments = case.arguments(dtype, device)
    with ops.backend(backend):
        for place in case.differentiable:
            x = arguments[place]
            for needs_grad in (False, True):
                primal = x.clone().requires_grad_(needs_grad)
                with forward_ad.dual_level(), raises_naming(NotImplementedError, *named, "ops.backend('torch')"):
                    output_of(case, arguments, place, forward_ad.make_dual(primal, torch.ones_like(x)))
            with raises_naming(NotImplementedError, *named):
                torch.func.jvp(lambda x, place=place: output_of(case, arguments, place, x), (x,), (x,))
        wanted = as_tuple(case.function(*arguments))
        with forward_ad.dual_level():
            torch.testing.assert_close(as_tuple(case.function(*arguments)), wanted, rtol=1e-12, atol=1e-12)
        if case.op != "trilinear":
            return
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: output_of(case, arguments, 0, x), backend="aot_eager")
        compiled(arguments[0])
        with forward_ad.dual_level(), raises_naming(NotImplementedError, *named):
            compiled(forward_ad.make_dual(arguments[0], torch.ones_like(arguments[0])))


def test_the_definition_has_it():
    (case,) = (case for case in CASES if case.name == "5x3_to_1")
    feats, points = case.arguments()
    with ops.backend("torch"):
        _, tangent = torch.func.jvp(lambda x: ops.trilinear(x, points), (feats,), (torch.ones_like(feats),))
    torch.testing.assert_close(tangent, torch.ones_like(tangent))  # the weights of a cell's corners sum to 1


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
def test_an_image_without_channels_has_gradients(backend: str, device: str):
    """Which F.conv2d refuses."""
    x, weight = (torch.ones(size, device=device).requires_grad_() for size in ((2, 0, 8, 8), (0, 1, 3, 3)))
    with ops.backend(backend):
        ops.depthwise_conv2d(x, weight, padding=1).sum().backward()
    assert x.grad.shape == x.shape and weight.grad.shape == weight.shape


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


@pytest.mark.cuda
def test_an_op_on_another_stream_would_be_noticed():
    case = cases("trilinear")[0]
    arguments = case.arguments(torch.float32, "cuda")
    for tensor in case.tensors(arguments):
        tensor.requires_grad_()

    def elsewhere(late: list) -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return forward_and_backward(case, late)

    with ops.backend("cuda"):
        wanted = forward_and_backward(case, arguments)
        got = with_late_inputs(elsewhere, arguments, torch.cuda.Stream())
    assert not torch.allclose(got[0], wanted[0])


@pytest.mark.parametrize("backend, device", backend_params("composite"))
def test_distances_have_no_gradient(backend: str, device: str):
    t, offsets = torch.linspace(0, 1, 5, device=device).requires_grad_(), torch.tensor([0, 5], device=device)
    density = torch.ones(5, device=device, requires_grad=True)
    with ops.backend(backend):
        color, *_ = ops.composite(density, torch.rand(5, 3, device=device), t, t + 0.1, offsets, torch.ones(3).to(t))
    assert torch.autograd.grad(color.sum(), [density, t], allow_unused=True)[1] is None


def turned(angles: torch.Tensor) -> torch.Tensor:
    """Rotation [3, 3] by `angles` [3] around x, y and z."""
    a, b, c = angles.unbind()
    zero = torch.zeros_like(a)
    generator = torch.stack([zero, -c, b, c, zero, -a, -b, a, zero]).view(3, 3)
    return torch.linalg.matrix_exp(generator)


@pytest.mark.parametrize("backend, device", backend_params("grid_encode"))
def test_gradients_reach_a_camera(backend: str, device: str):
    """Of what samples of its rays look like, through their positions and directions, beside finite differences."""
    resolutions, counts = [3, 7], torch.tensor([4, 0, 3])
    table = torch.randn(sum(level_entries(n, 4096) for n in resolutions), 2).double().to(device)
    mix = torch.randn(16, 4).double().to(device)
    towards = torch.nn.functional.normalize(torch.randn(3, 3).double(), dim=1).to(device)  # [R, 3]
    ray_index = torch.arange(3).repeat_interleave(counts).to(device)  # [N]
    t = torch.rand(len(ray_index), 1).double().to(device) * 0.3  # [N, 1]

    def look(angles: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
        directions = towards @ turned(angles).T
        features = ops.grid_encode(origin + directions[ray_index] * t, table, resolutions, 4096)  # [N, 4]
        return features * (ops.spherical_harmonics(directions, ray_index) @ mix)

    pose = torch.randn(3).double().to(device) / 10, torch.tensor([0.48, 0.52, 0.55]).double().to(device)
    with ops.backend(backend):
        assert torch.autograd.gradcheck(look, tuple(x.requires_grad_() for x in pose), nondet_tol=1e-12)
        gradients = torch.autograd.grad(look(*pose).sum(), pose)
    assert all(gradient.abs().min() > 1e-3 for gradient in gradients)


@pytest.mark.parametrize("op", OPS)
def test_autocast_follows_the_table(op: str, device: str):
    case = cases(op)[0]
    arguments = case.arguments(torch.float32, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = as_tuple(getattr(ops, op)(*arguments))
        wide = as_tuple(getattr(ops, op)(*case.arguments(torch.float64, device)))
    wanted = torch.bfloat16 if op in (*IN_AUTOCAST_DTYPE, "grid_encode") else torch.float32
    assert {x.dtype for x in outputs if x.is_floating_point()} <= {wanted}  # count_visible has none
    assert {x.dtype for x in wide if x.is_floating_point()} <= {torch.float64}


@pytest.mark.parametrize("op", ["depthwise_conv2d", "lltm_cell", "composite"])
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
