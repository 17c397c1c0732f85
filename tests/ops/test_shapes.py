# SPDX-License-Identifier: Apache-2.0
"""Fused ops against the definition, both passes, at drawn sizes, dtypes and layouts; EXAMPLES=2000 draws so many."""

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.lltm import LARGEST_ON_GPU
from nerfkit.ops.mlp import why_no_kernel
from tests.ops import cases as make
from tests.ops.cases import Case
from tests.ops.harness import LAYOUTS, as_tuple, assert_refused, dtype_name, fused_params

pytestmark = pytest.mark.slow

# Share of the largest value. Inputs are the same, so what differs is the order of sums, what half types round on the
# way (LLTM's state at every sample), and the result's own rounding.
SHARE = {torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
EXAMPLES = int(os.environ.get("EXAMPLES", 0))  # under a sanitizer a few have to do

Int, one_of = st.integers, st.sampled_from
NAME = st.just("drawn")
RAYS = st.lists(Int(0, 300), min_size=1, max_size=40).map(tuple)  # samples of each
SIZES = st.one_of(Int(1, 20), one_of([16, 24, 32, 48, 64, 80]))


@st.composite
def conv2d(draw) -> Case:
    stride, padding, dilation = (1, 1), (0, 0), (1, 1)
    if draw(st.booleans()):  # what the fast kernels are made for
        k = draw(one_of([3, 5, 7, 9]))
        kernel, padding, stride = (k, k), (k // 2, k // 2), draw(one_of([(1, 1), (2, 2)]))
    else:
        side = st.one_of(Int(1, 7), one_of([3, 5, 9, 11, 16]))
        kernel = draw(st.one_of(st.tuples(side, side), side.map(lambda k: (k, k))))
        few = st.tuples(Int(1, 3), Int(1, 3))
        stride, padding, dilation = draw(few), draw(st.tuples(Int(0, 5), Int(0, 5))), draw(few)
    # Pixels that the kernel needs of each side.
    spans = [d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, padding, dilation, strict=True)]
    heights, widths = st.one_of(Int(1, 90), one_of([7, 14])), st.one_of(Int(1, 140), one_of([7, 14, 16, 56, 64, 128]))
    size = [max(draw(lengths), span) for lengths, span in zip((heights, widths), spans, strict=True)]
    channels = draw(one_of([1, 2, 3, 8, 12, 15, 16, 17, 24, 33, 40, 72]))
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    return make.conv2d("drawn", (draw(Int(0, 3)), channels, *size), kernel, draw(st.booleans()), **window)


@st.composite
def conv1d(draw) -> Case:
    c, dilation, k = draw(one_of([1, 3, 4, 8, 32, 36, 72, 132, 260])), draw(Int(1, 2)), draw(one_of([1, 3, 5, 7, 9]))
    if draw(st.booleans()):
        counts = draw(st.lists(Int(0, 90), min_size=1, max_size=40))
        return make.conv1d_packed("drawn", tuple(counts), c, k, draw(st.booleans()), dilation)
    stride, padding, smallest = 1, None, 1
    if draw(st.booleans()):
        k, stride, padding = draw(Int(1, 18)), draw(Int(1, 3)), draw(Int(0, 5))
        smallest = max(1, dilation * (k - 1) + 1 - 2 * padding)
    size = draw(Int(1, 80)), c, smallest + draw(Int(0, 100))
    return make.conv1d_dense("drawn", size, k, stride, padding, dilation)


def few(*shape: int, share: float) -> Tensor:
    """-1, 0 or 1; about that share is not 0."""
    return torch.randint(0, 2, shape).double().mul(2).sub(1) * (torch.rand(*shape) < share)


@st.composite
def mlp(draw, any_widths: bool = False) -> Case:
    """Networks that the GPU's kernel takes, or of `any_widths`, most of which are the library's there."""
    n = draw(st.one_of(Int(1, 40), Int(1, 700)))
    if any_widths:
        n_hidden, hidden, n_out = draw(Int(0, 3)), draw(one_of([1, 5, 16, 32, 64])), draw(Int(1, 20))
    else:
        n_hidden, hidden, n_out = draw(Int(1, 2)), draw(one_of([16, 32, 64])), draw(Int(1, 16))
    inputs = draw(st.lists(Int(1, 40) if any_widths else one_of([16, 32]), min_size=1, max_size=4))
    widths = (sum(inputs), *[hidden] * n_hidden, n_out)

    def arguments() -> tuple:
        # Few and simple numbers, so that half types round nothing on the way: it might turn a ReLU on or off.
        layers = zip(widths, widths[1:], strict=False)
        parameters = [few((n_in + 1) * n_to, share=3 / n_in) / 2 for n_in, n_to in layers]
        return torch.cat(parameters), widths, *(few(n, width, share=0.5) for width in inputs)

    return Case("mlp", "any_widths" if any_widths else "drawn", arguments, (0, *range(2, 2 + len(inputs))))


CELLS = st.tuples(*[one_of([1, 3, 8, 13, 31, 64])] * 3)
STEPS = st.builds(
    make.march, NAME, Int(1, 60), CELLS, st.floats(0.01, 1.5), st.floats(0, 2), st.floats(2.1, 5), st.booleans()
)
EDGES = st.builds(
    make.march_edges, NAME, Int(1, 40), CELLS, st.floats(0, 0.3), one_of([0.0, 0.3, 1.0, 1.5, 8.0, 3e4]),
    one_of([None, 300]), cone_angle=one_of([1 / 256, 1 / 64, 0.7]), far=st.floats(2, 3000), jitter=st.booleans(),
)  # fmt: skip
WIDTHS = st.one_of(Int(1, 70), one_of([128, 300, 2048, 2049]))
LEVELS = st.sets(Int(1, 40), min_size=1, max_size=5).map(sorted)
TABLES = one_of([1, 2, 3, 4, 8]), Int(4, 12).map(lambda log2: 2**log2)
FEW_SAMPLES = st.lists(Int(0, 40), min_size=1, max_size=70).map(tuple)
STATES = st.one_of(SIZES, SIZES, st.just(100))
ADAM = {
    "share": one_of([0.0, 0.05, 0.5, 1.0]), "scale": one_of([None, 0.25, 1024.0]), "found_inf": one_of([None, 0.0, 1.0])
}  # fmt: skip

DRAWN = {
    "trilinear": st.builds(make.trilinear, Int(1, 200), WIDTHS, st.just(1.0)),
    "grid_encode": st.builds(make.grid, NAME, Int(1, 3000), LEVELS, *TABLES, one_of([make.inside, make.along_a_line])),
    "depthwise_conv1d": conv1d(),
    "depthwise_conv2d": conv2d(),
    "lltm_cell": st.builds(make.lltm_cell, Int(1, 130), SIZES, st.one_of(SIZES, st.just(128))),
    "lltm": st.builds(make.lltm, NAME, FEW_SAMPLES, STATES, STATES),
    "mlp": mlp(),
    "mlp_any_widths": mlp(any_widths=True),
    "march": st.one_of(STEPS, EDGES),
    "count_visible": st.builds(make.count_visible, NAME, RAYS, Int(0, 300), Int(0, 2000)),
    "compact_samples": st.builds(make.compact_samples, NAME, RAYS, Int(0, 300), Int(0, 9000), Int(0, 4)),
    "spherical_harmonics": st.builds(make.spherical_harmonics, NAME, RAYS),
    "composite": st.builds(make.composite, NAME, RAYS, st.booleans()),
    "distortion": st.builds(make.distortion, NAME, RAYS, one_of([0.3, 3.0, 1000.0])),
    "lazy_adam": st.builds(make.lazy_adam, NAME, Int(0, 300), Int(0, 300), **ADAM),
}  # fmt: skip


def run(case: Case, arguments: list, layout: Callable[[Tensor], Tensor] = LAYOUTS[0]) -> list[Tensor]:
    """Outputs, and gradients for a gradient of few bits, so that no type rounds it, whose mean is not zero."""
    inputs = [arguments[p].requires_grad_() for p in case.differentiable]
    outputs = as_tuple(case.function(*arguments))
    if not inputs:
        return list(outputs)
    grads = [(torch.arange(x.numel(), device=x.device) % 7 / 4 - 0.5).to(x.dtype).view(x.shape) for x in outputs]
    return [x.detach() for x in (*outputs, *torch.autograd.grad(outputs, inputs, [layout(grad) for grad in grads]))]


def has_no_kernel(case: Case, arguments: list) -> bool:
    """Whether the fused backend refuses the case; of mlp's drawn for the GPU's kernel only float32 may be."""
    if case.op == "lltm":
        x, h0 = arguments[0], arguments[4]
        return x.is_cuda and max(x.shape[1], h0.shape[1]) > LARGEST_ON_GPU
    if case.op != "mlp":
        return False
    parameters, widths, *inputs = arguments
    unfit = why_no_kernel(parameters.device, parameters.dtype, widths, [x.shape[1] for x in inputs])
    assert unfit is None or case.name == "any_widths" or parameters.dtype == torch.float32, unfit
    return unfit is not None


def check(case: Case, layout: Callable[[Tensor], Tensor], backend: str, device: str, dtype: torch.dtype) -> None:
    share = SHARE[dtype]
    if case.op == "march":  # a float32 middle may fall into the next cell
        dtype, share = torch.float64, 1e-12
    with ops.backend("torch"):
        wanted = run(case, case.widened(case.arguments(dtype)))
    arguments = [layout(x) if isinstance(x, Tensor) else x for x in case.arguments(dtype, device)]
    if has_no_kernel(case, arguments):
        return assert_refused(case, backend, arguments)
    with ops.backend(backend):
        got = run(case, arguments, layout)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.shape == w.shape and g.device == arguments[0].device
        if not w.is_floating_point():
            assert torch.equal(g.cpu(), w)
        elif w.numel():
            difference = (g.double().cpu() - w).abs().max() / w.abs().max().clamp(min=1.0)
            assert difference < share, f"result {index}: {difference:.1e} of the largest value"


def check_drawn(name: str, backend: str, devices: tuple[str, ...], dtype: torch.dtype, examples: int) -> None:
    @settings(max_examples=EXAMPLES or examples, deadline=None, derandomize=True)
    @given(DRAWN[name], st.sampled_from(LAYOUTS))
    def holds(case: Case, layout: Callable[[Tensor], Tensor]):
        for device in devices:
            check(case, layout, backend, device, dtype)

    holds()


@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
@pytest.mark.parametrize(
    "name, backend, device",
    [
        pytest.param(name, *p.values, id=f"{name}-{p.id}", marks=p.marks)
        for name in DRAWN
        for p in fused_params(name.removesuffix("_any_widths"))
    ],
)
def test_equals_the_definition(name: str, backend: str, device: str, dtype: torch.dtype):
    check_drawn(name, backend, (device,), dtype, examples=40 if device == "cuda" else 10)


@pytest.mark.two_gpus
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
@pytest.mark.parametrize("name", DRAWN)
def test_two_gpus_one_after_the_other(name: str, dtype: torch.dtype):
    """What a kernel needs to be told once a GPU, such as its shared memory, is told to each; nothing changes GPUs."""
    check_drawn(name, "cuda", ("cuda:0", "cuda:1"), dtype, examples=10)
    assert torch.cuda.current_device() == 0
