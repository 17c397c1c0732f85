# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import spherical_harmonics
from nerfkit.ops.spherical_harmonics import N_HARMONICS
from tests.naming import raises_naming
from tests.ops import naive
from tests.ops.cases import unit_vectors
from tests.ops.harness import backend_params, checks_of, drawn_backends
from tests.ops.tolerances import TOLERANCE, assert_close

TestSphericalHarmonics = checks_of("spherical_harmonics")


@pytest.mark.parametrize("backend, device", backend_params("spherical_harmonics"))
def test_orthonormal_over_the_sphere(backend: str, device: str):
    """By a quadrature that is exact for products of two: Gauss along z, equal steps around it."""
    heights, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(4))
    angles = torch.arange(8).double() * (2 * math.pi / 8)
    z, angle = (x.flatten() for x in torch.meshgrid(heights, angles, indexing="ij"))
    across = (1 - z * z).sqrt()
    directions = torch.stack([across * angle.cos(), across * angle.sin(), z], dim=1).to(device)
    with ops.backend(backend):
        harmonics = spherical_harmonics(directions).cpu()  # [32, 16]
    products = harmonics.T @ (harmonics * weights.repeat_interleave(8)[:, None] * (2 * math.pi / 8))
    torch.testing.assert_close(products, torch.eye(N_HARMONICS).double(), rtol=0, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), seed=st.integers(0, 99), backend=drawn_backends("spherical_harmonics"))
def test_squares_of_a_degree_add_up_to_the_same_everywhere(n: int, seed: int, backend: tuple[str, str]):
    torch.manual_seed(seed)
    with ops.backend(backend[0]):
        squares = spherical_harmonics(unit_vectors(n).to(backend[1])).cpu().square()
    for degree in range(4):
        total = squares[:, degree**2 : (degree + 1) ** 2].sum(1)
        torch.testing.assert_close(total, torch.full_like(total, (2 * degree + 1) / (4 * math.pi)))


@pytest.mark.parametrize("backend, device", backend_params("spherical_harmonics"))
@pytest.mark.parametrize("wanted", TOLERANCE, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.slow
def test_any_type_from_any(backend: str, device: str, given: torch.dtype, wanted: torch.dtype):
    """The result's type, the gradient's, and values that are rounded once; 300 rows are more than a block's.

    Values beside the loops' of tests/ops/naive.py, gradients beside those of the definition in float64.
    """
    directions, ray_index = unit_vectors(40).to(given), torch.arange(300) % 40
    grad = (torch.arange(300 * N_HARMONICS) % 7 / 4 - 0.5).view(300, N_HARMONICS)  # of few bits
    results = []
    for backend_, device_, given_, wanted_ in (
        ("torch", "cpu", torch.float64, torch.float64), (backend, device, given, wanted),
    ):  # fmt: skip
        x = directions.to(device_, given_).requires_grad_()
        with ops.backend(backend_):
            out = spherical_harmonics(x, ray_index.to(device_), wanted_)
            (x_grad,) = torch.autograd.grad(out, x, grad.to(device_, wanted_))
        assert (out.dtype, x_grad.dtype) == (wanted_, given_) and not x_grad.requires_grad
        results.append((out.detach().cpu(), x_grad.cpu()))
    (_, exact_grad), (out, x_grad) = results
    (exact,) = naive.spherical_harmonics(directions.detach().double().numpy(), ray_index.numpy())
    exact = torch.from_numpy(exact)
    half_a_bit = torch.finfo(wanted).eps / 2 if wanted.itemsize == 2 else 0
    error = 1e-15 if given == wanted == torch.float64 else 4e-7
    torch.testing.assert_close(out.double(), exact, rtol=half_a_bit, atol=error)
    assert_close(x_grad, exact_grad, "gradient")


@pytest.mark.parametrize("backend, device", backend_params("spherical_harmonics"))
def test_rows_of_one_ray_are_the_same(backend: str, device: str):
    directions, ray_index = torch.randn(5, 3, device=device), torch.tensor([4, 0, 0, 4, 2], device=device)
    with ops.backend(backend):
        got = spherical_harmonics(directions, ray_index)
        assert torch.equal(got, spherical_harmonics(directions)[ray_index])


@pytest.mark.parametrize("wrong", [5, -1, 2**40])
def test_a_ray_that_is_not_there_is_an_error_on_the_cpu(wrong: int):
    for backend in {"torch", "cpp"} & set(ops.available("spherical_harmonics")):
        with ops.backend(backend), pytest.raises((RuntimeError, IndexError)):
            spherical_harmonics(torch.rand(5, 3), torch.tensor([0, wrong, 4]))
        with ops.backend(backend), pytest.raises((RuntimeError, IndexError)):
            spherical_harmonics(torch.rand(0, 3), torch.tensor([0]))


def test_autocast_leaves_the_type_of_the_result_to_the_caller(device: str):
    directions = torch.rand(5, 3, device=device)
    wanted = spherical_harmonics(directions)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(spherical_harmonics(directions), wanted)
        assert spherical_harmonics(directions, dtype=torch.float16).dtype == torch.float16
        assert spherical_harmonics(directions.half()).dtype == torch.float32


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"directions": torch.rand(2, 4)}, ValueError, ("directions", "[R, 3]", "[2, 4]")),
        ({"directions": torch.rand(2, 3).half()}, TypeError, ("directions", "float32", "float64", "float16")),
        ({"ray_index": torch.zeros(2, 1).long()}, ValueError, ("ray_index", "[N]", "[2, 1]")),
        ({"ray_index": torch.zeros(2).int()}, TypeError, ("ray_index", "int64", "int32")),
        ({"ray_index": torch.zeros(2, device="meta").long()}, ValueError, ("ray_index", "cpu", "meta")),
        ({"dtype": torch.int64}, TypeError, ("dtype", "torch.float32", "torch.int64")),
    ],
)
def test_bad_input(change, error, named):
    with raises_naming(error, *named):
        spherical_harmonics(**({"directions": torch.rand(2, 3)} | change))
