# SPDX-License-Identifier: Apache-2.0
"""What is the same for all ops: every case of `cases.py` on every backend."""

import gc
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad

from nerfkit import ops
from nerfkit.limits import GPU_ONLY, OPS
from nerfkit.ops.checks import IN_AUTOCAST_DTYPE
from nerfkit.ops.grid_encode import level_entries
from tests.naming import raises_mentioning
from tests.ops import harness, naive
from tests.ops.cases import CASES, Case, cases, conv2d, lltm

SMOOTH = [case for case in CASES if case.differentiable]
# Not test_autograd_registration: the native ops have no autograd of their own, for the public function, which is no
# torch.ops, differentiates them; of inputs without a gradient that check would say nothing.
OPCHECKS = ("test_schema", "test_faketensor")
# Each way that an op is traced: sizes make no difference there.
COMPILED = (
    "trilinear-5x3_to_1 grid_encode-hashed depthwise_conv1d-packed_fast_k5 depthwise_conv1d-dense_k3 "
    "depthwise_conv2d-k1x4_stride depthwise_conv2d-dilated_no_bias lltm_cell-3_2_4 lltm-one_state mlp-odd_sizes "
    "march-fine march-edges_far_away count_visible-empty_rays compact_samples-empty_rays spherical_harmonics-one_ray "
    "spherical_harmonics-a_row_a_ray composite-empty_rays_3 composite-no_rays distortion-empty_rays_3 lazy_adam-scaled"
).split()
# Ops that read a value on the way, so that torch.compile splits the graph there.
BROKEN_GRAPH = {"torch": {"lltm", "march"}, "cpp": {"march"}, "cuda": {"march"}}


@harness.on_backends(CASES)
@pytest.mark.parametrize("dtype", harness.TOLERANCE, ids=harness.dtype_name)
def test_forward_is_the_naive_one(case: Case, backend: str, device: str, dtype: torch.dtype):
    if case.op == "march" and dtype != torch.float64:
        return  # a float32 middle may fall into the next cell: test_march.py compares with tolerance
    arguments = case.arguments(dtype, device)
    with ops.backend(harness.usable(case, backend, device, dtype)):
        got = harness.as_tuple(case.function(*arguments))
    loops = [x.double().cpu().numpy() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
    loops = [x.cpu().numpy() if isinstance(x, Tensor) else x for x in loops]
    wanted = getattr(naive, case.op)(*loops)
    assert len(got) == len(wanted)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if g.is_floating_point():
            harness.assert_close(g, torch.as_tensor(w), f"{case.op} output {index}")
        else:
            assert g.cpu().tolist() == w.tolist()


@harness.on_backends(SMOOTH)
@pytest.mark.slow
def test_gradient(case: Case, backend: str, device: str):
    arguments = case.arguments(torch.float64, device)
    places = case.differentiable

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        return harness.as_tuple(case.function(*arguments))

    inputs = [x.requires_grad_() for x in case.tensors(arguments)]
    repeats_differ_by = 1e-12 if device == "cuda" else 0.0  # atomic additions come in any order
    with ops.backend(harness.usable(case, backend, device, torch.float64)):
        assert torch.autograd.gradcheck(function, inputs, nondet_tol=repeats_differ_by, fast_mode=True)
        if case.second_order and all(x.numel() for x in inputs):
            assert torch.autograd.gradgradcheck(function, inputs, nondet_tol=repeats_differ_by, fast_mode=True)


@harness.on_backends(CASES)
def test_layouts(case: Case, backend: str, device: str):
    backend = harness.usable(case, backend, device, torch.float64)
    results = []
    for relayout in harness.LAYOUTS[:3]:
        arguments = [relayout(x) if isinstance(x, Tensor) else x for x in case.arguments(torch.float64, device)]
        for tensor in case.tensors(arguments):
            tensor.requires_grad_()
        with ops.backend(backend):
            results.append(harness.forward_and_backward(case, arguments))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-12, atol=1e-12)


@harness.on_backends([case for case in CASES if f"{case.op}-{case.name}" in COMPILED])
@pytest.mark.slow
def test_compiles(case: Case, backend: str, device: str):
    """Under torch.compile, forward and backward give what they give without, and a fused backend runs its own op."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, _) -> Callable:
        graphs.append(str(graph.graph))
        return make_boxed_func(graph.forward)

    is_fused = backend != "torch" and harness.has_kernel(case, backend, torch.float64)
    arguments = case.with_gradients(torch.float64, device)
    torch._dynamo.reset()
    with ops.backend(harness.usable(case, backend, device, torch.float64)):
        eager = harness.forward_and_backward(case, arguments)
        compiler = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
        function = torch.compile(case.function, backend=compiler, fullgraph=case.op not in BROKEN_GRAPH[backend])
        compiled = harness.forward_and_backward(case, arguments, function)
    assert any("nerfkit._" in graph for graph in graphs) == is_fused, "whether a native op was compiled"
    torch.testing.assert_close(compiled, eager, rtol=1e-10, atol=1e-10)


@harness.on_backends(CASES, harness.fused_params)
def test_opcheck(case: Case, backend: str, device: str):
    """torch.library.opcheck on every native op that the case calls: schema, fake tensors, no aliases."""
    half = [torch.float16] if device == "cuda" else []  # which have kernels of their own
    for dtype in (torch.float32, *half):
        arguments = case.with_gradients(dtype, device)
        with ops.backend(harness.usable(case, backend, device, dtype)), harness.NativeCalls() as seen:
            harness.forward_and_backward(case, arguments)
        assert bool(seen.calls) == harness.has_kernel(case, backend, dtype), "whether a native op was called"
        for function, args in seen.calls:
            torch.library.opcheck(function, args, test_utils=OPCHECKS)


@harness.on_backends(SMOOTH, harness.fused_params)
def test_deterministic(case: Case, backend: str, device: str):
    dtype = harness.kernel_dtype(case, backend)
    arguments = case.with_gradients(dtype, device)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with ops.backend(harness.usable(case, backend, device, dtype)):
            first, *others = (harness.forward_and_backward(case, arguments) for _ in range(10))
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


LONG = [
    *(conv2d("long", (2, 20, 39, 41), (3, 3), True, stride=n, padding=1, dilation=1) for n in (1, 2)),
    lltm("long", tuple(range(20)) * 15, 5, 17),
]


@harness.on_backends(LONG, lambda op: [p for p in harness.fused_params(op) if p.values[1] == "cpu"])
def test_the_number_of_threads_changes_no_bit(case: Case, backend: str, device: str):
    arguments, threads, found = case.with_gradients(torch.float32), torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            with ops.backend(backend):
                found.append(harness.forward_and_backward(case, arguments))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("case", [c for c in CASES if c.op != "march"], ids=lambda c: f"{c.op}-{c.name}")
@pytest.mark.cuda
def test_graph_and_stream(case: Case):
    dtype = harness.kernel_dtype(case, "cuda")
    arguments = case.with_gradients(dtype, "cuda")
    with ops.backend(harness.usable(case, "cuda", "cuda", dtype)):
        wanted = harness.forward_and_backward(case, arguments)
        arguments = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in arguments]
        side = torch.cuda.Stream()
        on_side = harness.with_late_inputs(lambda late: harness.forward_and_backward(case, late), arguments, side)
        gc.collect()  # a graph of an earlier test that is freed during a capture ends it
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            captured = harness.forward_and_backward(case, arguments)
        graph.replay()
        torch.cuda.synchronize()
    for got in (on_side, captured):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


# ---- forward mode, autocast, compilation: where fused ops could differ from the definition


FIRST = {case.op: case for case in reversed(CASES) if case.differentiable}  # of each op


@harness.on_backends([*FIRST.values(), lltm("nothing", (0, 0), 3, 2)], harness.fused_params)
def test_the_same_results_need_gradients_on_all_backends(case: Case, backend: str, device: str):
    dtype = torch.float32 if harness.has_kernel(case, backend, torch.float32) else torch.float16
    for place in case.differentiable:
        needed = []
        for name in ("torch", backend):
            arguments = case.arguments(dtype, device)
            arguments[place].requires_grad_()
            with ops.backend(name):
                needed.append([x.requires_grad for x in harness.as_tuple(case.function(*arguments))])
        assert needed[0] == needed[1], place


@harness.on_backends(FIRST.values(), harness.fused_params)
def test_forward_mode_is_refused_by_name(case: Case, backend: str, device: str):
    """It would be zero. Without a dual input nothing changes."""
    dtype = torch.float64 if harness.has_kernel(case, backend, torch.float64) else torch.float16
    arguments = case.arguments(dtype, device)
    with ops.backend(backend):
        wanted = harness.as_tuple(case.function(*arguments))
        for place in case.differentiable:
            before, after, x = arguments[:place], arguments[place + 1 :], arguments[place]
            for primal in (x, x.clone().requires_grad_()):
                with (
                    forward_ad.dual_level(),
                    raises_mentioning(NotImplementedError, case.op, "forward-mode", "ops.backend('torch')"),
                ):
                    case.function(*before, forward_ad.make_dual(primal, torch.ones_like(x)), *after)
        with forward_ad.dual_level():
            torch.testing.assert_close(harness.as_tuple(case.function(*arguments)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend, device", harness.fused_params("trilinear"))
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


@pytest.mark.parametrize("backend, device", harness.backend_params("grid_encode"))
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
        outputs = harness.as_tuple(getattr(ops, op)(*arguments))
        wide = harness.as_tuple(getattr(ops, op)(*case.arguments(torch.float64, device)))
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
