# SPDX-License-Identifier: Apache-2.0
"""What is the same for all ops: each op's module calls `checks_of`, so no op can go without one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from nerfkit import ops
from nerfkit.ops.dispatch import DEVICE_OF
from tests.naming import raises_naming
from tests.ops import naive
from tests.ops.cases import Case, cases
from tests.ops.tolerances import TOLERANCE, assert_close

# Of mlp's cases on a GPU: there the kernel takes half types and some shapes, as `nerfkit.ops.mlp` has it.
NO_KERNEL = {"mlp": ("odd_sizes", "no_hidden")}
HALF = (torch.float16, torch.bfloat16)
SLEEP = 200_000_000  # cycles, about a tenth of a second
# Not test_autograd_registration: the native ops have no autograd of their own, for the public function, which is no
# torch.ops, differentiates them; of inputs without a gradient that check would say nothing.
OPCHECKS = ("test_schema", "test_faketensor")
# A float32 middle of march may fall into the next cell: test_march.py compares with tolerance.
DTYPES = {"march": (torch.float64,)}
BROKEN_GRAPH = {  # ops that read a value on the way, so that torch.compile splits the graph there
    "torch": {"lltm", "march"},
    "cpp": {"march"},
    "cuda": {"march"},
}


def backend_params(op: str) -> list:
    """(backend, device) for everything that is built here, and CUDA marked as such."""
    pairs = [(b, d) for b in ops.available(op) for d in ("cpu", "cuda") if DEVICE_OF.get(b, d) == d]
    return [pytest.param(b, d, id=f"{b}-{d}", marks=[pytest.mark.cuda] if d == "cuda" else []) for b, d in pairs]


def fused_params(op: str) -> list:
    return [p for p in backend_params(op) if p.values[0] != "torch"]


def drawn_backends(op: str) -> st.SearchStrategy[tuple[str, str]]:
    """For property tests: a (backend, device) of those that are built and can run here."""
    pairs = [p.values for p in backend_params(op) if p.values[1] == "cpu" or torch.cuda.is_available()]
    return st.sampled_from([tuple(pair) for pair in pairs])


def has_kernel(case: Case, backend: str, dtype: torch.dtype) -> bool:
    """Whether `backend` takes the case in `dtype`, by what is written here and not by what the op says of it."""
    return backend != "cuda" or case.op not in NO_KERNEL or (dtype in HALF and case.name not in NO_KERNEL[case.op])


def kernel_dtype(case: Case, backend: str) -> torch.dtype:
    """float32, or a half type where only that has a kernel."""
    only_half = has_kernel(case, backend, torch.float16) and not has_kernel(case, backend, torch.float32)
    return torch.float16 if only_half else torch.float32


def usable(case: Case, backend: str, device: str, dtype: torch.dtype) -> str:
    """`backend`, or "auto" where that has no kernel for the case, which it then says instead of running another one."""
    if has_kernel(case, backend, dtype):
        return backend
    refused_by_name(case, backend, case.arguments(dtype, device))
    return "auto"


def refused_by_name(case: Case, backend: str, arguments: list) -> None:
    """Require that a backend without a kernel for the case refuses it, and that "auto" gives the definition's bits."""
    with ops.backend(backend), raises_naming(ops.BackendError, case.op, f"'{backend}'", "ops.backend=auto"):
        case.function(*arguments)
    with ops.backend("torch"):
        wanted = as_tuple(case.function(*arguments))
    with ops.backend("auto"):
        got = as_tuple(case.function(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def as_tuple(result: Tensor | tuple) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def checks_of(op: str) -> type:
    """A test class with the parts that every op has."""
    every_case = pytest.mark.parametrize("case", cases(op), ids=lambda case: case.name)
    smooth_case = pytest.mark.parametrize("case", smooth_cases(op), ids=lambda case: case.name)
    every_backend = pytest.mark.parametrize("backend, device", backend_params(op))

    class Checks:
        @every_case
        @every_backend
        @pytest.mark.parametrize("dtype", DTYPES.get(op, TOLERANCE), ids=lambda d: str(d).removeprefix("torch."))
        def test_forward_is_the_naive_one(self, case: Case, backend: str, device: str, dtype: torch.dtype):
            check_forward(case, backend, device, dtype)

        @smooth_case
        @every_backend
        @pytest.mark.slow
        def test_gradient(self, case: Case, backend: str, device: str):
            check_gradient(case, backend, device)

        @every_case
        @every_backend
        def test_layouts(self, case: Case, backend: str, device: str):
            check_layouts(case, backend, device)

        @every_case
        @every_backend
        @pytest.mark.slow
        def test_compiles(self, case: Case, backend: str, device: str):
            check_compiles(case, backend, device)

        @every_case
        @pytest.mark.parametrize("backend, device", fused_params(op))
        def test_opcheck(self, case: Case, backend: str, device: str):
            check_native_ops(case, backend, device)

        @smooth_case
        @pytest.mark.parametrize("backend, device", fused_params(op))
        def test_deterministic(self, case: Case, backend: str, device: str):
            check_deterministic(case, backend, device)

        @every_case
        @pytest.mark.cuda
        def test_graph_and_stream(self, case: Case):
            check_graph_and_stream(case)

    if not smooth_cases(op):  # nothing is differentiable
        del Checks.test_gradient, Checks.test_deterministic
    if op == "march":  # the number of samples is read on the way
        del Checks.test_graph_and_stream
    return Checks


def smooth_cases(op: str) -> list[Case]:
    return [case for case in cases(op) if case.differentiable]


def check_forward(case: Case, backend: str, device: str, dtype: torch.dtype) -> None:
    arguments = case.arguments(dtype, device)
    with ops.backend(usable(case, backend, device, dtype)):
        got = as_tuple(case.function(*arguments))
    loops = [x.double().cpu().numpy() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
    loops = [x.cpu().numpy() if isinstance(x, Tensor) else x for x in loops]
    wanted = getattr(naive, case.op)(*loops)
    assert len(got) == len(wanted)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if g.is_floating_point():
            assert_close(g, torch.as_tensor(w), f"{case.op} output {index}")
        else:
            assert g.cpu().tolist() == w.tolist()


def check_gradient(case: Case, backend: str, device: str) -> None:
    arguments = case.arguments(torch.float64, device)
    places = case.differentiable

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        return as_tuple(case.function(*arguments))

    inputs = [x.requires_grad_() for x in case.tensors(arguments)]
    repeats_differ_by = 1e-12 if device == "cuda" else 0.0  # atomic additions come in any order
    with ops.backend(usable(case, backend, device, torch.float64)):
        assert torch.autograd.gradcheck(function, inputs, nondet_tol=repeats_differ_by)
        if case.second_order and all(x.numel() for x in inputs):
            assert torch.autograd.gradgradcheck(function, inputs, nondet_tol=repeats_differ_by)


def check_layouts(case: Case, backend: str, device: str) -> None:
    """Transposed storage, slices of a larger tensor and expanded gradients change nothing."""
    backend = usable(case, backend, device, torch.float64)
    results = []
    for relayout in (lambda x: x, _transposed, _sliced):
        arguments = [relayout(x) if isinstance(x, Tensor) else x for x in case.arguments(torch.float64, device)]
        inputs = [arguments[p].detach().requires_grad_() for p in case.differentiable]
        for place, tensor in zip(case.differentiable, inputs, strict=True):
            arguments[place] = tensor
        with ops.backend(backend):
            outputs = as_tuple(case.function(*arguments))
        gradients = []
        if inputs:
            smooth = [x for x in outputs if x.is_floating_point()]
            gradients = torch.autograd.grad(
                smooth, inputs, [torch.ones((), device=device).double().expand_as(x) for x in smooth]
            )
        results.append([*outputs, *gradients])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def _transposed(x: Tensor) -> Tensor:
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def _sliced(x: Tensor) -> Tensor:
    wide = x.new_zeros([n + 2 for n in x.shape])
    inner = wide[tuple(slice(1, n + 1) for n in x.shape)]
    inner.copy_(x)
    return inner


def forward_and_backward(case: Case, arguments: list) -> list[Tensor]:
    """Outputs and the gradients of their sum, detached."""
    inputs = case.tensors(arguments)
    outputs = as_tuple(case.function(*arguments))
    smooth = [x for x in outputs if x.is_floating_point()]
    gradients = torch.autograd.grad([x.sum() for x in smooth], inputs) if inputs else []
    return [x.detach() for x in (*outputs, *gradients)]


def check_compiles(case: Case, backend: str, device: str) -> None:
    """Under torch.compile, forward and backward give what they give without, and a fused backend runs its own op."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, _) -> Callable:
        graphs.append(str(graph.graph))
        return make_boxed_func(graph.forward)

    is_fused = backend != "torch" and has_kernel(case, backend, torch.float64)
    arguments = case.arguments(torch.float64, device)
    for tensor in case.tensors(arguments):
        tensor.requires_grad_()
    torch._dynamo.reset()
    with ops.backend(usable(case, backend, device, torch.float64)):
        eager = forward_and_backward(case, arguments)
        compiler = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
        compiled = torch.compile(case.function, backend=compiler, fullgraph=case.op not in BROKEN_GRAPH[backend])
        outputs = as_tuple(compiled(*arguments))
        assert any("nerfkit._" in graph for graph in graphs) == is_fused, "whether a native op was compiled"
        inputs = case.tensors(arguments)
        smooth = [x for x in outputs if x.is_floating_point()]
        gradients = torch.autograd.grad([x.sum() for x in smooth], inputs) if inputs else []
    for got, wanted in zip([*outputs, *gradients], eager, strict=True):
        torch.testing.assert_close(got.detach(), wanted, rtol=1e-10, atol=1e-10)


class NativeCalls(TorchDispatchMode):
    """Notes the native ops that are called, with copies of their arguments."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "nerfkit":
            self.calls.append((function, tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in args)))
        return function(*args, **(kwargs or {}))


def check_native_ops(case: Case, backend: str, device: str) -> None:
    """torch.library.opcheck on every native op that the case calls: schema, fake tensors, no aliases."""
    half = [torch.float16] if device == "cuda" else []  # which have kernels of their own
    for dtype in (torch.float32, *half):
        arguments = case.arguments(dtype, device)
        for tensor in case.tensors(arguments):
            tensor.requires_grad_()
        with ops.backend(usable(case, backend, device, dtype)), NativeCalls() as seen:
            forward_and_backward(case, arguments)
        assert bool(seen.calls) == has_kernel(case, backend, dtype), "whether a native op was called"
        for function, args in seen.calls:
            torch.library.opcheck(function, args, test_utils=OPCHECKS)


def check_deterministic(case: Case, backend: str, device: str) -> None:
    """torch.use_deterministic_algorithms: ten runs give the same bits."""
    dtype = kernel_dtype(case, backend)
    arguments = case.arguments(dtype, device)
    for tensor in case.tensors(arguments):
        tensor.requires_grad_()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with ops.backend(usable(case, backend, device, dtype)):
            first, *others = (forward_and_backward(case, arguments) for _ in range(10))
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def with_late_inputs(
    function: Callable[[list], list[Tensor]], arguments: list, side: torch.cuda.Stream
) -> list[Tensor]:
    """What `function` gives on the stream `side`, where the arguments' values arrive late: another one sees zeros."""
    late = [torch.zeros_like(x, requires_grad=x.requires_grad) if isinstance(x, Tensor) else x for x in arguments]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(late)  # takes the memory that it needs, for that may wait for the GPU
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        with torch.no_grad():
            for x, value in zip(late, arguments, strict=True):
                if isinstance(x, Tensor):
                    x.copy_(value)
        results = [x.clone() for x in function(late)]
    torch.cuda.synchronize()
    return results


def check_graph_and_stream(case: Case) -> None:
    """On a side stream and in a CUDA graph the results are those of the default stream."""
    dtype = kernel_dtype(case, "cuda")
    arguments = case.arguments(dtype, "cuda")
    for tensor in case.tensors(arguments):
        tensor.requires_grad_()
    with ops.backend(usable(case, "cuda", "cuda", dtype)):
        wanted = forward_and_backward(case, arguments)
        arguments = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in arguments]
        side = torch.cuda.Stream()
        on_side = with_late_inputs(lambda late: forward_and_backward(case, late), arguments, side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            captured = forward_and_backward(case, arguments)
        graph.replay()
        torch.cuda.synchronize()
    for got in (on_side, captured):
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
