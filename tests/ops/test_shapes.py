# SPDX-License-Identifier: Apache-2.0
"""Fused ops against the definition at sizes that are drawn: those that fast kernels are made for, and any other."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.dispatch import OPS
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.lltm import LARGEST_ON_GPU
from nerfkit.ops.mlp import why_no_kernel
from tests.ops.cases import (
    ADAM_PLACES,
    Case,
    adam_inputs,
    between,
    normal,
    offsets,
    place_inputs,
    unit_vectors,
    visible_inputs,
)
from tests.ops.harness import as_tuple, fused_params, refused_by_name

pytestmark = pytest.mark.slow

# Share of the largest value. Inputs are the same, so what differs is the order of sums, what half types round on the
# way (LLTM's state at every sample), and the result's own rounding.
SHARE = {torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}

EXAMPLES = int(os.environ.get("EXAMPLES", 0))  # of each op and type; under a sanitizer a few have to do

Int = st.integers


@st.composite
def conv2d(draw) -> Case:
    if draw(st.booleans()):  # what the fast kernels are made for
        ky = kx = draw(st.sampled_from([3, 5, 7, 9]))
        window, smallest = {"padding": ky // 2, "stride": draw(Int(1, 2))}, (1, 1)
    else:
        side = st.one_of(Int(1, 7), st.sampled_from([3, 5, 9, 11, 16]))
        ky, kx = kernel = draw(st.one_of(st.tuples(side, side), side.map(lambda k: (k, k))))
        few, paddings = st.tuples(Int(1, 3), Int(1, 3)), st.tuples(Int(0, 5), Int(0, 5))
        window = {"stride": draw(few), "padding": draw(paddings), "dilation": draw(few)}
        spans = [d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, window["padding"], window["dilation"], strict=True)]
        smallest = [max(1, span) for span in spans]  # that a kernel fits into
    b, c = draw(Int(0, 3)), draw(st.sampled_from([1, 2, 3, 8, 12, 15, 16, 17, 24, 33, 40, 72]))
    height, width = (n + draw(Int(0, most)) for n, most in zip(smallest, (90, 140), strict=True))
    height = max(smallest[0], draw(st.sampled_from([height, height, height, 7, 14])))
    width = max(smallest[1], draw(st.sampled_from([width, width, 7, 14, 16, 56, 64, 128])))
    bias, last = draw(st.booleans()), draw(st.booleans())

    def make() -> tuple:
        x = normal(b, c, height, width)
        x = x.to(memory_format=torch.channels_last) if last else x
        return x, normal(c, 1, ky, kx) * 0.3, normal(c) if bias else None, *window.values()

    names = "x", "weight", "bias", *window
    return Case("depthwise_conv2d", f"{names}", make, (0, 1, 2) if bias else (0, 1)), dict(enumerate(names))


@st.composite
def conv1d(draw) -> Case:
    c, bias, dense = draw(st.sampled_from([1, 3, 4, 8, 32, 36, 72, 132, 260])), draw(st.booleans()), draw(st.booleans())
    k, dilation = draw(st.sampled_from([1, 3, 5, 7, 9])), draw(Int(1, 2))
    stride, padding = 1, None
    if dense and draw(st.booleans()):
        k, stride, padding = draw(Int(1, 18)), draw(Int(1, 3)), draw(Int(0, 5))
    counts = draw(st.lists(Int(0, 90), min_size=1, max_size=40))
    smallest = 1 if padding is None else max(1, dilation * (k - 1) + 1 - 2 * padding)
    b, length = draw(Int(1, 80)), smallest + draw(Int(0, 100))

    def make() -> tuple:
        x = normal(b, c, length) if dense else normal(sum(counts), c)
        others = None if dense else offsets(*counts), stride, padding, dilation
        return x, normal(c, k) * 0.3, normal(c) if bias else None, *others

    names = "x", "weight", "bias", "ray_offsets", "stride", "padding", "dilation"
    return Case("depthwise_conv1d", "drawn", make, (0, 1, 2) if bias else (0, 1)), dict(enumerate(names))


SIZES = st.one_of(Int(1, 20), st.sampled_from([16, 24, 32, 48, 64, 80]))


@st.composite
def lltm(draw) -> Case:
    sizes = st.one_of(SIZES, SIZES, st.just(100))
    counts, i, h = draw(st.lists(Int(0, 40), min_size=1, max_size=70)), draw(sizes), draw(sizes)

    def make() -> tuple:
        weight = normal(3 * h, h + i) / (h + i) ** 0.5
        rays = len(counts)
        return normal(sum(counts), i), offsets(*counts), weight, normal(3 * h), normal(rays, h), normal(rays, h)

    return Case("lltm", "drawn", make, (0, 2, 3, 4, 5)), {}


@st.composite
def lltm_cell(draw) -> Case:
    b, i, h = draw(Int(1, 130)), draw(SIZES), draw(st.one_of(SIZES, st.just(128)))

    def make() -> tuple:
        return normal(b, i), normal(b, h), normal(b, h), normal(3 * h, h + i) / (h + i) ** 0.5, normal(3 * h)

    return Case("lltm_cell", "drawn", make, (0, 1, 2, 3, 4)), {}


@st.composite
def grid_encode(draw) -> Case:
    n, features, entries = draw(Int(1, 3000)), draw(st.sampled_from([1, 2, 3, 4, 8])), 2 ** draw(Int(4, 12))
    resolutions = sorted(draw(st.sets(Int(1, 40), min_size=1, max_size=5)))
    together = draw(st.booleans())  # neighbours along a line, as samples of a ray are

    def make() -> tuple:
        rows = sum(level_entries(n, entries) for n in resolutions)
        points = torch.rand(n, 3).double()
        if together:
            points = points[:1] * 0.5 + torch.linspace(0, 0.4, n).double()[:, None]
        return points, normal(rows, features), resolutions, entries

    return Case("grid_encode", "drawn", make, (0, 1), keep_wide=(0,)), {}


@st.composite
def trilinear(draw) -> Case:
    n, features = draw(Int(1, 200)), draw(st.one_of(Int(1, 70), st.sampled_from([128, 300, 2048, 2049])))
    return Case(
        "trilinear", "drawn", lambda: (normal(n, 8, features), torch.rand(n, 3).double() * 2 - 1), (0, 1), (1,)
    ), {}


@st.composite
def composite(draw) -> Case:
    counts = draw(st.lists(Int(0, 300), min_size=1, max_size=40))
    per_ray = draw(st.booleans())

    def make() -> tuple:
        n, rays = sum(counts), len(counts)
        t = torch.cat([torch.rand(k).double().sort().values for k in counts])
        background = torch.rand(rays, 3).double() if per_ray else torch.rand(3).double()
        return torch.rand(n).double() * 8, torch.rand(n, 3).double(), t, t + 1 / 64, offsets(*counts), background

    return Case("composite", "drawn", make, (0, 1, 5)), {}


@st.composite
def distortion(draw) -> Case:
    counts = draw(st.lists(Int(0, 300), min_size=1, max_size=40))

    def make() -> tuple:
        n = sum(counts)
        t = torch.cat([(torch.rand(k).double() * 8).sort().values for k in counts])
        return torch.rand(n).double(), t, t + 1 / 64, offsets(*counts), 0.0, 8.0, 2.0

    return Case("distortion", "drawn", make, (0,)), {}


def few(*shape: int, share: float) -> Tensor:
    """-1, 0 or 1; about that share is not 0."""
    return torch.randint(0, 2, shape).double().mul(2).sub(1) * (torch.rand(*shape) < share)


@st.composite
def mlp(draw, any_widths: bool = False) -> Case:
    """Networks that the GPU's kernel takes, or of `any_widths`, most of which are the library's there."""
    n = draw(Int(1, 700))
    if any_widths:
        n_hidden, hidden, n_out = draw(Int(1, 3)), draw(st.sampled_from([5, 16, 32, 64])), draw(Int(1, 20))
        widths = Int(1, 40)
    else:
        n_hidden, hidden, n_out = draw(Int(1, 2)), draw(st.sampled_from([16, 32, 64])), draw(Int(1, 16))
        widths = st.sampled_from([16, 32])
    inputs = draw(st.lists(widths, min_size=1, max_size=4))
    widths = (sum(inputs), *[hidden] * n_hidden, n_out)

    def make() -> tuple:
        # Few and simple numbers, so that half types round nothing on the way: it might turn a ReLU on or off.
        parameters = [
            few((n_in + 1) * n_to, share=3 / n_in) / 2 for n_in, n_to in zip(widths, widths[1:], strict=False)
        ]
        return torch.cat(parameters), widths, *(few(n, width, share=0.5) for width in inputs)

    name = "any_widths" if any_widths else "drawn"
    return Case("mlp", name, make, (0, *range(2, 2 + len(inputs)))), {}


@st.composite
def count_visible(draw) -> Case:
    counts = draw(st.lists(Int(0, 300), min_size=1, max_size=40))
    behind, levels = draw(Int(0, 300)), draw(Int(0, 2000))
    return Case("count_visible", "drawn", lambda: (*visible_inputs(counts, behind), between(levels)), ()), {}


@st.composite
def compact_samples(draw) -> Case:
    source = draw(st.lists(Int(0, 300), max_size=40))
    kept = [draw(Int(0, n)) for n in source]
    source_behind, behind = draw(Int(0, 300)), draw(st.one_of(Int(0, 300), Int(5000, 9000)))
    make = lambda: place_inputs(source, kept, source_behind, behind)  # noqa: E731
    return Case("compact_samples", "drawn", make, (), keep_wide=(0, 1, 2, 3)), {}


@st.composite
def spherical_harmonics(draw) -> Case:
    rays, n, per_sample = draw(Int(1, 3000)), draw(Int(0, 3000)), draw(st.booleans())

    def make() -> tuple:
        return unit_vectors(rays), torch.randint(rays, (n,)) if per_sample else None

    return Case("spherical_harmonics", "drawn", make, (0,), keep_wide=(0,)), {}


@st.composite
def lazy_adam(draw) -> Case:
    size = draw(st.lists(Int(0, 300), min_size=1, max_size=2))
    share, scale = draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])), draw(st.sampled_from([None, 0.25, 1024.0]))
    found_inf = draw(st.sampled_from([None, 0.0, 1.0]))
    make = lambda: adam_inputs(*size, share=share, scale=scale, found_inf=found_inf)  # noqa: E731
    return Case("lazy_adam", "drawn", make, (), **ADAM_PLACES), {}


DRAWN = {
    "trilinear": trilinear(), "grid_encode": grid_encode(), "depthwise_conv1d": conv1d(),
    "depthwise_conv2d": conv2d(), "lltm_cell": lltm_cell(), "lltm": lltm(), "composite": composite(),
    "distortion": distortion(),
    "mlp": mlp(), "count_visible": count_visible(), "compact_samples": compact_samples(),
    "spherical_harmonics": spherical_harmonics(), "lazy_adam": lazy_adam(),
}  # fmt: skip


def run(case: Case, names: dict[int, str], arguments: list) -> list[Tensor]:
    """Outputs, and gradients for a gradient of few bits, so that no type rounds it, whose mean is not zero."""
    inputs = [arguments[p].requires_grad_() for p in case.differentiable]
    named = {names[p]: value for p, value in enumerate(arguments) if p in names}
    outputs = as_tuple(case.function(**named) if named else case.function(*arguments))
    if not inputs:
        return list(outputs)
    grads = [(torch.arange(x.numel(), device=x.device) % 7 / 4 - 0.5).to(x.dtype).view(x.shape) for x in outputs]
    return [x.detach() for x in (*outputs, *torch.autograd.grad(outputs, inputs, grads))]


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


def check(case: Case, names: dict[int, str], backend: str, device: str, dtype: torch.dtype) -> None:
    wide = case.widened(case.arguments(dtype))
    with ops.backend("torch"):
        wanted = run(case, names, wide)
    arguments = case.arguments(dtype, device)
    if has_no_kernel(case, arguments):
        return refused_by_name(case, backend, arguments)
    with ops.backend(backend):
        got = run(case, names, arguments)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.shape == w.shape
        if not w.is_floating_point():
            assert torch.equal(g.cpu(), w)
        elif w.numel():
            difference = (g.double().cpu() - w).abs().max() / w.abs().max().clamp(min=1.0)
            assert difference < SHARE[dtype], f"result {index}: {difference:.1e} of the largest value"


def params_of(op: str, name: str, drawn: st.SearchStrategy) -> list:
    return [pytest.param(drawn, *p.values, id=f"{name}-{p.id}", marks=p.marks) for p in fused_params(op)]


@pytest.mark.parametrize(
    "drawn_case, backend, device",
    [p for op, drawn in DRAWN.items() for p in params_of(op, op, drawn)]
    + params_of("mlp", "mlp_any_widths", mlp(any_widths=True)),
)
@pytest.mark.parametrize("dtype", SHARE, ids=lambda d: str(d).removeprefix("torch."))
def test_equals_the_definition(drawn_case: st.SearchStrategy, backend: str, device: str, dtype: torch.dtype):
    @settings(max_examples=EXAMPLES or (40 if device == "cuda" else 15), deadline=None, derandomize=True)
    @given(drawn_case)
    def holds(drawn: tuple[Case, dict[int, str]]):
        check(*drawn, backend, device, dtype)

    holds()


def test_no_op_is_left_out():
    assert set(DRAWN) == set(OPS) - {"march"}  # test_march.py draws its own
