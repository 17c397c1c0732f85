# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import trilinear
from tests.naming import raises_naming
from tests.ops.harness import checks_of, drawn_backends

TestTrilinear = checks_of("trilinear")


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 9), f=st.integers(1, 5), seed=st.integers(0, 99), spread=st.floats(0, 3),
    backend=drawn_backends("trilinear"),
)  # fmt: skip
def test_constant_corners_give_the_constant(n: int, f: int, seed: int, spread: float, backend: tuple[str, str]):
    generator = torch.Generator().manual_seed(seed)
    constant = torch.randn(n, 1, f, generator=generator, dtype=torch.float64)
    points = (torch.rand(n, 3, generator=generator, dtype=torch.float64) * 2 - 1) * spread
    with ops.backend(backend[0]):
        out = trilinear(constant.expand(n, 8, f).to(backend[1]), points.to(backend[1]))
    torch.testing.assert_close(out.cpu(), constant[:, 0])


def test_a_corner_gives_its_feature():
    feats = torch.arange(8.0).view(1, 8, 1).expand(8, 8, 1)
    corners = torch.tensor([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    assert trilinear(feats, corners)[:, 0].tolist() == list(range(8))


@pytest.mark.skipif("cpp" not in ops.available("trilinear"), reason="needs the C++ ops")
@pytest.mark.parametrize("features", [16, 33])
def test_gradients_that_no_cache_keeps(features):
    """More than 32 MB: written past the caches where the features of a corner are whole lines of them."""
    n = 2**25 // (8 * features * 4) + 1
    feats, points = torch.randn(n, 8, features).requires_grad_(), (torch.rand(n, 3) * 2 - 1).requires_grad_()
    grad = torch.randn(n, features)
    results = []
    for backend in ("cpp", "torch"):
        with ops.backend(backend):
            results.append(torch.autograd.grad(trilinear(feats, points), (feats, points), grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif("cpp" not in ops.available("trilinear"), reason="needs the C++ ops")
@pytest.mark.parametrize("features, dtype", [(48, torch.float32), (50, torch.float32), (40, torch.float64)])
@pytest.mark.slow
def test_results_that_no_cache_keeps(features, dtype):
    """More than 32 MB of results alone."""
    n = 2**25 // (features * dtype.itemsize) + 1
    feats, points = torch.randn(n, 8, features, dtype=dtype), torch.rand(n, 3, dtype=dtype) * 2 - 1
    with ops.backend("cpp"):
        got = trilinear(feats, points)
    with ops.backend("torch"):
        torch.testing.assert_close(got, trilinear(feats, points), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "feats, points, error, named",
    [
        (torch.ones(2, 7, 1), torch.ones(2, 3), ValueError, ("feats", "[N, 8, F]", "[2, 7, 1]")),
        (torch.ones(2, 8, 1), torch.ones(3, 3), ValueError, ("points", "[2, 3]", "[3, 3]")),
        (torch.ones(2, 8, 1).int(), torch.ones(2, 3), TypeError, ("feats", "float32", "int32")),
        (torch.ones(2, 8, 1), torch.ones(2, 3).half(), TypeError, ("points", "float32", "float16")),
        (torch.ones(2, 8, 1), torch.ones(2, 3, device="meta"), ValueError, ("points", "cpu", "meta")),
    ],
)
def test_bad_input(feats, points, error, named):
    with raises_naming(error, *named):
        trilinear(feats, points)
