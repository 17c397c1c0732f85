# SPDX-License-Identifier: Apache-2.0
"""Where fused ops could differ from the definition without a case of ordinary inputs showing it."""

import pytest
import torch

from nerfkit import ops
from nerfkit.nn import LLTMCell
from nerfkit.ops.grid_encode import level_entries
from tests.naming import raises_naming
from tests.ops.cases import cases
from tests.ops.harness import backend_params, forward_and_backward, fused_params, with_late_inputs


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


@pytest.mark.parametrize(
    "backend, device, shape",  # F.conv2d refuses an image without channels
    [
        pytest.param(*p.values, (0, 2, 8, 8), marks=p.marks, id=f"{p.id}-no_image")
        for p in backend_params("depthwise_conv2d")
    ]
    + [
        pytest.param(*p.values, (2, 0, 8, 8), marks=p.marks, id=f"{p.id}-no_channel")
        for p in fused_params("depthwise_conv2d")
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_empty_images_have_gradients(backend: str, device: str, shape: tuple, dtype: torch.dtype):
    x = torch.zeros(shape, dtype=dtype, device=device, requires_grad=True)
    weight = torch.ones(shape[1], 1, 3, 3, dtype=dtype, device=device, requires_grad=True)
    with ops.backend(backend):
        ops.depthwise_conv2d(x, weight, padding=1).sum().backward()
    assert x.grad.shape == x.shape and weight.grad.abs().sum() == 0


@pytest.mark.parametrize("backend, device", fused_params("grid_encode"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("entries", [2, 64])
def test_a_table_at_an_odd_address(backend: str, device: str, dtype: torch.dtype, entries: int):
    torch.manual_seed(0)
    rows = sum(level_entries(n, entries) for n in (1, 3))
    flat, points = torch.randn(rows * 2 + 1).to(device, dtype), torch.rand(50, 3).to(device)
    shifted, straight = flat[1:].view(rows, 2), flat[1:].clone().view(rows, 2)
    results = []
    for table in shifted, straight:
        table = table.detach().requires_grad_()
        with ops.backend(backend):
            out = ops.grid_encode(points, table, [1, 3], entries)
            grad = torch.ones(out.numel() + 1, device=device, dtype=dtype)[1:].view(out.shape)
            results.append((out.detach(), *torch.autograd.grad(out, table, grad)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


BROKEN = {  # row pointers of rays with 6 samples
    "past_the_end": [0, 2, 4, 9],
    "a_fall": [0, 4, 2, 6],
    "a_fall_past_the_end": [0, 9, 4, 6],
    "not_from_0": [1, 2, 4, 6],
    "below_0": [-1, 2, 4, 6],
    "negative_all_over": [-6, -4, -2, 0],
    "huge": [0, 2**62, 2**62, 2**62],
    "differences_overflow": [0, 2**62, -(2**62), 6],
    "least_and_most": [0, -(2**63), 2**63 - 1, 6],
    "one_ray_past_the_end": [0, 7],
}
SHORT = {"before_the_end": [0, 2, 4, 5], "no_rays": [0]}  # count_visible and compact_samples take padding rows
NEEDS_ALL = ("composite", "depthwise_conv1d", "distortion", "lltm")
OFFSETS = [(op, "ray_offsets", kind) for op in NEEDS_ALL for kind in (*BROKEN, *SHORT)]
OFFSETS += [("count_visible", "ray_offsets", kind) for kind in BROKEN]
OFFSETS += [("compact_samples", name, kind) for name in ("ray_offsets", "source_offsets") for kind in BROKEN]


def call_with_offsets(op: str, offsets: torch.Tensor, n: int, broken: str) -> object:
    """The op on `n` samples and as many rays as `offsets` have; of compact_samples the other offsets are right."""
    rays, x = len(offsets) - 1, torch.rand(n, 3)
    if op == "composite":
        return ops.composite(x[:, 0], x, x[:, 1], x[:, 2], offsets, torch.ones(3))
    if op == "count_visible":
        return ops.count_visible(x[:, 0], x[:, 1], x[:, 2], offsets, 0.1)
    if op == "distortion":
        return ops.distortion(x[:, 0], x[:, 1], x[:, 2], offsets, 0.0, 1.0, 1.0)
    if op == "depthwise_conv1d":
        return ops.depthwise_conv1d(x, torch.rand(3, 3), ray_offsets=offsets)
    if op == "lltm":
        return ops.lltm(x, offsets, torch.rand(12, 7), torch.rand(12), torch.zeros(rays, 4), torch.zeros(rays, 4))
    pairs = {
        "source_offsets": (offsets, torch.zeros_like(offsets)),
        "ray_offsets": (torch.arange(rays + 1) * (n // max(rays, 1)), offsets),
    }
    return ops.compact_samples(torch.rand(rays, 3), torch.rand(rays, 3), x[:, 0], x[:, 1], *pairs[broken], n)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("op, broken, kind", OFFSETS)
def test_broken_offsets_are_an_error_on_the_cpu(op: str, broken: str, kind: str, backend: str):
    """A RuntimeError of the definition too, where `torch.repeat_interleave` would write beside its result."""
    if backend not in ops.available(op):
        pytest.skip("needs the C++ ops")
    offsets = torch.tensor((BROKEN | SHORT)[kind])
    named = ("row pointers",) if backend == "cpp" else (op, broken)
    for n in (6, 0) if kind in BROKEN else (6,):
        with ops.backend(backend), raises_naming(RuntimeError, *named):
            call_with_offsets(op, offsets, n, broken)


@pytest.mark.parametrize("op", [*NEEDS_ALL, "count_visible", "compact_samples"])
def test_offsets_that_fit_are_taken(op: str):
    """Whatever rays are empty, and where there are none; every backend gives the same."""
    for offsets, n in (([0, 0, 6, 6], 6), ([0, 6], 6), ([0, 0, 0], 0), ([0], 0)):
        found = []
        for backend in {"torch", "cpp"} & set(ops.available(op)):
            with ops.backend(backend):
                torch.manual_seed(0)
                found.append(call_with_offsets(op, torch.tensor(offsets), n, "source_offsets"))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0])
        rows = found[0][0] if isinstance(found[0], tuple) else found[0]
        assert len(rows) == (len(offsets) - 1 if op in ("composite", "count_visible", "distortion") else n)


@pytest.mark.parametrize(
    "offsets, named",
    [
        ([1, 2, 6], ("6", "1")),
        ([0, 4, 2, 6], ("ray 1", "4", "2")),
        ([0, 2, 7], ("6", "7")),
    ],
)
def test_the_definition_says_what_is_wrong_with_offsets(offsets: list, named: tuple):
    with ops.backend("torch"), raises_naming(RuntimeError, "composite", "ray_offsets", *named):
        call_with_offsets("composite", torch.tensor(offsets), 6, "ray_offsets")


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


@pytest.mark.parametrize("backend, device", backend_params("compact_samples"))
def test_placed_samples_have_no_gradient(backend: str, device: str):
    (case,) = (case for case in cases("compact_samples") if case.name == "long_and_short")
    arguments = case.arguments(torch.float64, device)
    for x in arguments[:4]:
        x.requires_grad_()
    with ops.backend(backend):
        assert not any(x.requires_grad for x in ops.compact_samples(*arguments))


def test_autocast_leaves_features_as_they_are():
    feats, points = torch.randn(20, 8, 16), torch.rand(20, 3) * 2 - 1
    with ops.backend("torch"):
        wanted = ops.trilinear(feats, points)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(ops.trilinear(feats, points), wanted)


def test_other_ops_keep_their_backend():
    with ops.backend("torch"):
        with ops.backend(overrides={"lltm": "auto"}):
            assert ops.resolved("cpu")["march"].backend == "torch"
        assert ops.resolved("cpu")["lltm"].backend == "torch"
