# SPDX-License-Identifier: Apache-2.0
"""Ops of one point, row or element each, and the LLTM: borders, extremes, and what a GPU's kernel does not take."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.ops import grid_encode, lazy_adam, lltm, lltm_cell, spherical_harmonics, trilinear
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import why_no_kernel
from nerfkit.ops.packed import offsets_from_counts
from nerfkit.ops.spherical_harmonics import N_HARMONICS
from tests.naming import not_named, raises_mentioning
from tests.ops.cases import adam_inputs, cases, unit_vectors
from tests.ops.cases import lltm as lltm_case
from tests.ops.harness import TOLERANCE, assert_close, assert_refused, backend_params, dtype_name, fused_params

needs_cpp = pytest.mark.skipif("cpp" not in ops.available("trilinear"), reason="needs the C++ ops")


@needs_cpp
@pytest.mark.parametrize("features, dtype", [(16, torch.float32), (33, torch.float32), (40, torch.float64)])
@pytest.mark.slow
def test_what_no_cache_keeps(features: int, dtype: torch.dtype):
    """Results and gradients of more than 32 MB: written past the caches where a corner's features are whole lines."""
    n = 2**25 // (features * dtype.itemsize) + 1
    feats, points = torch.randn(n, 8, features, dtype=dtype), torch.rand(n, 3, dtype=dtype) * 2 - 1
    grad, few = torch.randn(n, features, dtype=dtype), n // 8 + 1
    results = []
    for backend in ("cpp", "torch"):
        with ops.backend(backend):
            inputs = [x[:few].clone().requires_grad_() for x in (feats, points)]
            gradients = torch.autograd.grad(trilinear(*inputs), inputs, grad[:few])
            results.append((trilinear(feats, points), *gradients))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


def test_gradient_at_a_cell_border_is_the_upper_cells():
    table = torch.zeros(32, 1).double()
    table[18:] = 1.0  # rises in the cell above x = 1/2 only
    points = torch.tensor([[0.5, 0.3, 0.3]]).double().requires_grad_()
    (gradient,) = torch.autograd.grad(grid_encode(points, table, [2], 32).sum(), points)
    assert gradient[0].tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_not_a_number_reads_inside_the_table():
    points = torch.tensor([[float("nan"), 0.5, float("inf")]])
    out = grid_encode(points, torch.rand(level_entries(4, 64) + level_entries(9, 64), 1), [4, 9], 64)
    assert out.shape == (1, 2) and out.isnan().all()


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_a_part_of_a_tensor_is_written_in_place(backend: str, device: str):
    whole = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(7, 5, share=0.7)]
    parts = [x[1:5, 1:] if isinstance(x, Tensor) and x.dim() else x for x in whole]
    wanted = [x.clone() for x in whole[:4]]
    with ops.backend("torch"):
        results = lazy_adam(*(x.clone() if isinstance(x, Tensor) else x for x in parts))
    for place, result in zip((0, 2, 3), results, strict=True):
        wanted[place][1:5, 1:] = result
    with ops.backend(backend):
        lazy_adam(*parts)
    torch.testing.assert_close(whole[:4], wanted)  # nothing beside the part changes


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_nan_stays_in_its_element(backend: str, device: str):
    arguments = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(50, share=1.0)]
    arguments[1][17] = math.nan
    with ops.backend(backend):
        for x in lazy_adam(*arguments):
            assert (~x.isfinite()).nonzero().flatten().tolist() == [17]


H100 = SimpleNamespace(major=9, minor=0, shared_memory_per_block_optin=232448)
L4 = SimpleNamespace(major=8, minor=9, shared_memory_per_block_optin=101376)
T4 = SimpleNamespace(major=7, minor=5, shared_memory_per_block_optin=65536)


@pytest.mark.parametrize(
    "gpu, dtype, widths, inputs, named",
    [
        (H100, torch.float16, (96, 64, 64, 3), (16, 16, 64), None),
        (H100, torch.float32, (32, 64, 3), (32,), ("float16", "bfloat16", "float32")),
        (H100, torch.float16, (32, 3), (32,), ("hidden", "0")),
        (H100, torch.float16, (32, 128, 3), (32,), ("hidden", "16", "32", "64", "128")),
        (H100, torch.float16, (32, 64, 3), (24, 8), ("inputs", "16", "24")),
        (H100, torch.float16, (144, 64, 3), (128, 16), ("inputs", "128", "144")),
        (H100, torch.float16, (32, 64, 17), (32,), ("outputs", "16", "17")),
        (L4, torch.float16, (32, 64, 3), (32,), ("shared memory", "150000", "101376")),
        (T4, torch.float16, (32, 64, 3), (32,), ("compute capability", "8.0", "7.5")),
    ],
)
def test_why_a_gpu_has_no_kernel(gpu, dtype, widths: tuple, inputs: tuple, named: tuple | None, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    for device in ("cuda", torch.device("cuda:1")):
        why = why_no_kernel(device, dtype, widths, inputs)
        assert why is None if named is None else not not_named(why, *named), why
    assert why_no_kernel("cpu", dtype, widths, inputs) is None


@pytest.mark.parametrize("backend, device", fused_params("mlp"))
def test_by_name_it_is_refused_and_under_auto_the_definition_runs(backend: str, device: str, monkeypatch):
    monkeypatch.setattr(sys.modules["nerfkit.ops.mlp"], "why_no_kernel", lambda *_: "its kernel takes none of these")
    case = cases("mlp")[0]
    assert_refused(case, backend, case.arguments(torch.float16, device))


@pytest.mark.parametrize("backend, device", backend_params("spherical_harmonics"))
@pytest.mark.parametrize("wanted", TOLERANCE, ids=dtype_name)
@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=dtype_name)
def test_any_type_from_any(backend: str, device: str, given: torch.dtype, wanted: torch.dtype):
    """Values are rounded once, at the end, and gradients not at all; 300 rows are more than a block's."""
    grad = torch.arange(300 * N_HARMONICS).view(300, N_HARMONICS) % 7 / 4 - 0.5  # of few bits
    x, ray_index = unit_vectors(40).to(device, given).requires_grad_(), torch.arange(300, device=device) % 40
    exact = x.detach().double().cpu().requires_grad_()
    with ops.backend("torch"):
        spherical_harmonics(exact, ray_index.cpu()).backward(grad.double())
    with ops.backend(backend):
        out = spherical_harmonics(x, ray_index, wanted)
        out.backward(grad.to(device, wanted))
        assert torch.equal(out, spherical_harmonics(x, ray_index).to(wanted)) and out.dtype == wanted
    assert_close(x.grad, exact.grad, "gradient")


def test_a_ray_that_is_not_there_is_an_error_on_the_cpu():
    for backend in {"torch", "cpp"} & set(ops.available("spherical_harmonics")):
        for rays, wrong in (5, 5), (5, -1), (5, 2**40), (0, 0):
            with ops.backend(backend), pytest.raises((RuntimeError, IndexError)):
                spherical_harmonics(torch.rand(rays, 3), torch.tensor([wrong]))


@pytest.mark.parametrize("op", ["lltm_cell", "lltm"])
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_extreme_gates_stay_finite(op: str, far: float):
    input, h, c = (x.double().requires_grad_() for x in (torch.full((2, 3), far), torch.ones(2, 2), torch.ones(2, 2)))
    weight, bias = (torch.randn(6, 5).double() * 100).requires_grad_(), torch.zeros(6).double()
    one_sample_rays = torch.arange(3)
    outputs = (
        lltm_cell(input, h, c, weight, bias) if op == "lltm_cell" else lltm(input, one_sample_rays, weight, bias, h, c)
    )
    gradients = torch.autograd.grad(sum(x.sum() for x in outputs), [input, h, c, weight])
    assert all(x.isfinite().all() for x in (*outputs, *gradients))


@pytest.mark.parametrize("backend", ["torch", pytest.param("cpp", marks=needs_cpp)])
@pytest.mark.parametrize("op", ["lltm_cell", "lltm"])
@pytest.mark.parametrize("swept", ["input gate", "output gate", "candidate", "cell"])
def test_float32_over_the_whole_range(backend, op, swept):
    far = torch.tensor([-1e38, -1e20, -1e4, -0.0, 1e4, 1e20, 1e38, float("nan")])
    values = torch.cat([torch.linspace(-110, 110, 20001), torch.linspace(-1, 1, 20001), far]).double()
    n = len(values)
    columns = {"input gate": 9.0, "output gate": 9.0, "candidate": 0.5, "cell": 0.1}
    columns = {name: values if name == swept else torch.full((n,), value).double() for name, value in columns.items()}
    cell = columns.pop("cell")[:, None]  # [n, 1]
    gates = torch.stack(list(columns.values()), dim=1)  # [n, 3]
    weight = torch.eye(3, 4).double().roll(1, dims=1)  # of the state nothing
    tensors = gates, torch.zeros(n, 1), cell, weight, torch.zeros(3)

    def run(backend: str, dtype: torch.dtype) -> torch.Tensor:
        input, h, c, weight, bias = (x.to(dtype) for x in tensors)
        with ops.backend(backend):
            if op == "lltm_cell":
                return torch.cat(lltm_cell(input, h, c, weight, bias)).double()
            return torch.cat(lltm(input, torch.arange(n + 1), weight, bias, h, c)[1:]).double()

    got, wanted = run(backend, torch.float32), run("torch", torch.float64).float().double()
    torch.testing.assert_close(got, wanted, rtol=3e-7, atol=3e-7, equal_nan=True)


LONG = 50  # samples of one ray among short ones
SHARE = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-4}  # of the largest value


def problem(counts: tuple, n_input: int = 2, n_state: int = 3, dtype: torch.dtype = torch.float64) -> list:
    return lltm_case("rays", counts, n_input, n_state).arguments(dtype)


@pytest.mark.parametrize("backend, device", backend_params("lltm"))
def test_state_may_change_in_place_before_the_backward_pass(backend: str, device: str):
    x, offsets, weight, bias, h0, c0 = (value.to(device) for value in problem((3, 2)))
    results = []
    for changed in (False, True):
        parameter, start, cell = weight.clone().requires_grad_(), h0.clone(), c0.clone()
        with ops.backend(backend):
            h, h_n, c_n = lltm(x, offsets, parameter, bias, start, cell)
        loss = h.sum() + c_n.sum()
        if changed:
            start.copy_(h_n.detach()), cell.copy_(c_n.detach()), h.mul_(2)
        results.append(torch.autograd.grad(loss, parameter)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("backend, device", fused_params("lltm"))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("n_state, n_input", [(16, 16), (5, 3), (64, 4)])
def test_a_gradient_that_is_not_asked_for_changes_no_other(backend, device, dtype, n_state, n_input):
    x, offsets, weight, *rest = (value.to(device) for value in problem((3, 0, 5), n_input, n_state, dtype))

    def gradients(**wanted: bool) -> list[Tensor]:
        inputs = {"x": x, "weight": weight} | dict(zip(("bias", "h0", "c0"), rest, strict=True))
        inputs = {name: value.detach().requires_grad_(wanted.get(name, True)) for name, value in inputs.items()}
        with ops.backend(backend):
            total = sum(y.sum() for y in lltm(inputs["x"], offsets, *list(inputs.values())[1:]))
        total.backward()
        return [value.grad for value in inputs.values()]

    everything = gradients()
    for wanted in ({"x": False}, {"weight": False}, {"x": False, "weight": False}):
        some = gradients(**wanted)
        assert all(torch.equal(a, b) for a, b in zip(some, everything, strict=True) if a is not None)
        assert [gradient is None for gradient in some[:2]] == [name in wanted for name in ("x", "weight")]


def short_rays(n_rays: int, n_input: int, n_state: int, last: int, spread: float) -> tuple[Tensor, list[Tensor]]:
    """Offsets of rays of up to 5 samples, of which the last ray has `last`, and the other arguments of `lltm`."""
    torch.manual_seed(0)
    counts, width = torch.randint(0, 6, (n_rays,)), n_state + n_input
    counts[[0, -1]] = torch.tensor([0, last])
    x, weight = torch.randn(int(counts.sum()), n_input), torch.randn(3 * n_state, width) * spread / width**0.5
    return offsets_from_counts(counts), [x, weight, torch.randn(3 * n_state) * 0.2, *torch.randn(2, n_rays, n_state)]


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_rays", [(32, 40), (32, 300), (64, 40), (64, 300)])
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
def test_without_weight_gradient(n_state: int, n_rays: int, dtype: torch.dtype):
    """The library's products are not called, so that a race checker under which they fail sees the kernels."""
    offsets, inputs = short_rays(n_rays, 5, n_state, last=5, spread=1.0)
    inputs = [t.to(dtype) for t in inputs]

    def run(backend: str, x: Tensor, weight: Tensor, *rest: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in rest]
        with ops.backend(backend):
            outputs = lltm(x, offsets.to(x.device), weight, *leaves)
        return [*outputs, *torch.autograd.grad([y.double().square().sum() for y in outputs], leaves)]

    exact = run("torch", *(t.double() for t in inputs))
    for got, wanted in zip(run("cuda", *(t.cuda() for t in inputs)), exact, strict=True):
        assert (got.detach().cpu() - wanted.detach()).abs().max() <= SHARE[dtype] * wanted.detach().abs().max()


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_input", [(16, 16), (16, 64), (13, 29), (32, 32), (64, 16), (64, 64), (50, 47)])
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
@pytest.mark.parametrize("n_rays", [40, 3000, 40000], ids=["few_rays", "some_rays", "more_rays_than_fit"])
def test_a_state_of_up_to_64_units_on_a_gpu(n_state: int, n_input: int, dtype: torch.dtype, n_rays: int):
    """The same bits twice, and about as near to the exact result as the definition, which rounds at every step."""
    offsets, inputs = short_rays(n_rays, n_input, n_state, last=LONG, spread=1.4)

    def run(backend: str, wide: bool = False) -> list[Tensor]:
        leaves = [t.to("cuda", dtype) for t in inputs]
        leaves = [(t.double() if wide else t).requires_grad_() for t in leaves]
        with ops.backend(backend):
            outputs = lltm(leaves[0], offsets.cuda(), *leaves[1:])
        losses = [y.double().square().sum() / 8 for y in outputs]  # keeps the parameters' gradients within float16
        return [x.detach().double() for x in (*outputs, *torch.autograd.grad(losses, leaves))]

    def of_short_rays(results: list[Tensor]) -> list[Tensor]:
        h, h_n, c_n, grad_input, _, _, grad_h0, grad_c0 = results
        return [h[:-LONG], h_n[:-1], c_n[:-1], grad_input[:-LONG], grad_h0[:-1], grad_c0[:-1]]

    exact, definition, got, again = run("torch", wide=True), run("torch"), run("cuda"), run("cuda")
    assert all(torch.equal(*pair) for pair in zip(got, again, strict=True))
    # In float32 tensor cores cut sums off where the definition rounds them. Along short rays that was up to 76 eps of
    # the largest value, where the definition has 3; long rays amplify it, to 40 times the definition's. What half types
    # are rounded by grows along the one long ray, too: to 2.4 times the definition's in bfloat16.
    of_float32, of_half = [(of_short_rays, 16, 64), (list, 100, 16)], [(of_short_rays, 2, 1), (list, 3, 1)]
    for part, times, room in of_float32 if dtype == torch.float32 else of_half:
        for fused, defined, wanted in zip(part(got), part(definition), part(exact), strict=True):
            error, most = ((x - wanted).abs().max() / wanted.abs().max() for x in (fused, defined))
            assert error <= times * most + room * torch.finfo(dtype).eps, part.__name__


@pytest.mark.parametrize("backend, device", backend_params("lltm"))
def test_second_derivative_raises_instead_of_lying(backend: str, device: str):
    """Also where another gradient is not wanted."""
    x, offsets, *rest = (value.to(device) for value in problem((5,)))
    with ops.backend(backend):
        (gradient,) = torch.autograd.grad(lltm(x.requires_grad_(), offsets, *rest)[0].sum(), x, create_graph=True)
    with raises_mentioning(NotImplementedError, "lltm", "second derivative"):
        gradient.sum().backward()
