# SPDX-License-Identifier: Apache-2.0
"""Ops of one point, row or element each: borders, extremes, and what a GPU's kernel does not take."""

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
from nerfkit.ops.spherical_harmonics import N_HARMONICS
from tests.naming import not_named
from tests.ops.cases import adam_inputs, cases, unit_vectors
from tests.ops.harness import TOLERANCE, assert_close, backend_params, dtype_name, fused_params, refused_by_name

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
    refused_by_name(case, backend, case.arguments(torch.float16, device))


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
