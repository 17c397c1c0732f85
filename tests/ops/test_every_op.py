# SPDX-License-Identifier: Apache-2.0
"""What is the same for all ops: every case of `cases.py` on every backend."""

import gc
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from nerfkit import ops
from tests.ops import harness, naive
from tests.ops.cases import CASES, Case, conv2d, lltm

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
