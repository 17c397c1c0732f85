# SPDX-License-Identifier: Apache-2.0
"""What tests of ops share: backends that are built, how far results may be off, and which native ops are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nerfkit import ops
from nerfkit.ops.dispatch import DEVICE_OF
from tests.naming import raises_mentioning
from tests.ops.cases import Case

TOLERANCE = {  # of the naive one in float64: rtol, atol
    torch.float64: (1e-9, 1e-10),  # sums in another order
    torch.float32: (2e-4, 2e-5),  # 24-bit mantissa, a few hundred terms
    torch.float16: (1e-2, 1e-2),  # inputs and outputs rounded to 11 bits, sums in float32
    torch.bfloat16: (5e-2, 5e-2),  # inputs and outputs rounded to 8 bits, sums in float32
}
HALF = (torch.float16, torch.bfloat16)
# Of mlp's cases on a GPU: there the kernel takes half types and some shapes, as `nerfkit.ops.mlp` has it.
NO_KERNEL = {"mlp": ("odd_sizes", "no_hidden")}
SLEEP = 200_000_000  # cycles, about a tenth of a second


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def assert_close(got: Tensor, wanted: Tensor, what: str) -> None:
    rtol, atol = TOLERANCE[got.dtype]
    message = lambda text: f"{what}: {text}"  # noqa: E731
    torch.testing.assert_close(got.double().cpu(), wanted.double().cpu(), rtol=rtol, atol=atol, msg=message)


def backend_params(op: str) -> list:
    """(backend, device) for everything that is built here, and CUDA marked as such."""
    pairs = [(b, d) for b in ops.available(op) for d in ("cpu", "cuda") if DEVICE_OF.get(b, d) == d]
    return [pytest.param(b, d, id=f"{b}-{d}", marks=[pytest.mark.cuda] if d == "cuda" else []) for b, d in pairs]


def fused_params(op: str) -> list:
    return [p for p in backend_params(op) if p.values[0] != "torch"]


def on_backends(cases: list[Case], params=backend_params) -> pytest.MarkDecorator:
    pairs = [(case, p) for case in cases for p in params(case.op)]
    return pytest.mark.parametrize(
        "case, backend, device",
        [pytest.param(c, *p.values, id=f"{c.op}-{c.name}-{p.id}", marks=p.marks) for c, p in pairs],
    )


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
    assert_refused(case, backend, case.arguments(dtype, device))
    return "auto"


def assert_refused(case: Case, backend: str, arguments: list) -> None:
    """Require that a backend without a kernel for the case refuses it, and that "auto" gives the definition's bits."""
    named = case.op, f"'{backend}'", "ops.backend auto", f"--ops.overrides {case.op} torch"
    with ops.backend(backend), raises_mentioning(ops.BackendError, *named):
        case.function(*arguments)
    with ops.backend("torch"):
        wanted = as_tuple(case.function(*arguments))
    with ops.backend("auto"):
        got = as_tuple(case.function(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def as_tuple(result: Tensor | tuple) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def forward_and_backward(case: Case, arguments: list, function: Callable | None = None) -> list[Tensor]:
    inputs = case.tensors(arguments)
    outputs = as_tuple((function or case.function)(*arguments))
    smooth = [x for x in outputs if x.is_floating_point()]
    gradients = torch.autograd.grad([x.sum() for x in smooth], inputs) if inputs else []
    return [x.detach() for x in (*outputs, *gradients)]


class NativeCalls(TorchDispatchMode):
    """Notes the native ops that are called, with copies of their arguments."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "nerfkit":
            self.calls.append((function, tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in args)))
        return function(*args, **(kwargs or {}))


def transposed(x: Tensor) -> Tensor:
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def sliced(x: Tensor) -> Tensor:
    wide = x.new_zeros([n + 2 for n in x.shape])
    inner = wide[tuple(slice(1, n + 1) for n in x.shape)]
    inner.copy_(x)
    return inner


def shifted(x: Tensor) -> Tensor:
    """At an odd address, as in a slice of something larger."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


LAYOUTS = (lambda x: x, transposed, sliced, shifted, channels_last)


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
