# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import distortion
from nerfkit.ops.packed import offsets_from_counts
from tests.naming import raises_naming
from tests.ops.harness import backend_params, checks_of, drawn_backends

TestDistortion = checks_of("distortion")

every_backend = pytest.mark.parametrize("backend, device", backend_params("distortion"))


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=6), seed=st.integers(0, 99), log=st.floats(-3, 3),
    backend=drawn_backends("distortion"),
)  # fmt: skip
def test_not_negative_and_of_second_degree(counts, seed, log, backend):
    torch.manual_seed(seed)
    n, offsets = sum(counts), offsets_from_counts(torch.tensor(counts)).to(backend[1])
    t = torch.cat([(torch.rand(k) * 8).double().sort().values for k in counts]).to(backend[1])
    weights = torch.rand(n).double().to(backend[1])
    with ops.backend(backend[0]):
        losses, of_double = (
            distortion(w, t, t + 0.01, offsets, 0.0, 8.0, math.exp(log)) for w in (weights, 2 * weights)
        )
    assert (losses >= 0).all() and (losses.cpu()[torch.tensor(counts) == 0] == 0).all()
    torch.testing.assert_close(of_double, 4 * losses)


@every_backend
def test_weights_that_are_apart_cost_more(backend: str, device: str):
    """And as much far away as near, where the scale is logarithmic: the same ratio of distances."""
    t = torch.tensor([1.0, 2, 4, 8, 16, 1, 2, 4, 8, 16, 1, 2, 4, 8, 16], device=device)
    weights = torch.tensor([0.0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1], device=device)
    with ops.backend(backend):
        near, far, apart = distortion(weights, t, t, torch.tensor([0, 5, 10, 15], device=device), 1.0, 16.0, 1.0)
    assert near.item() == pytest.approx(2 * 1 / 4) and far.item() == pytest.approx(near.item())
    assert apart.item() == pytest.approx(2.0)


@every_backend
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["weights", "t_ends"])
def test_what_is_not_finite_stays_in_its_ray(backend: str, device: str, bad: float, where: str):
    torch.manual_seed(0)
    t = torch.linspace(0.1, 3, 12, device=device)
    named = {"weights": torch.rand(12, device=device), "t_starts": t, "t_ends": t + 0.1}
    offsets = torch.tensor([0, 3, 7, 7, 12], device=device)
    found = []
    for value in (None, bad):
        inputs = {name: x.clone() for name, x in named.items()}
        if value is not None:
            inputs[where][4] = value
        weights = inputs.pop("weights").requires_grad_()
        with ops.backend(backend):
            losses = distortion(weights, **inputs, ray_offsets=offsets, near=0.1, far=4.0, linear=1.0)
            found.append((losses.detach(), *torch.autograd.grad(losses.sum(), weights)))
    (good_losses, good_grads), (losses, grads) = found
    assert not losses[1].isfinite() and torch.equal(losses[[0, 2, 3]], good_losses[[0, 2, 3]])
    others = [0, 1, 2, 7, 8, 9, 10, 11]
    torch.testing.assert_close(grads[others], good_grads[others], rtol=1e-6, atol=1e-7)


@every_backend
def test_small_losses_of_float32_are_precise(backend: str, device: str):
    """A surface far along its ray: what counts are the differences between the distances."""
    torch.manual_seed(0)
    t = 50 + torch.arange(30).double() / 8
    weights, offsets = torch.rand(30).double() / 30, torch.tensor([0, 30])
    with ops.backend("torch"):
        wanted = distortion(weights, t, t + 1 / 8, offsets, 0.1, 300.0, 1.0)
    with ops.backend(backend):
        got = distortion(*(x.float().to(device) for x in (weights, t, t + 1 / 8)), offsets.to(device), 0.1, 300.0, 1.0)
    torch.testing.assert_close(got.double().cpu(), wanted, rtol=2e-4, atol=0)


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"weights": torch.rand(4, 1)}, ValueError, ("weights", "[N]", "[4, 1]")),
        ({"t_starts": torch.rand(3)}, ValueError, ("t_starts", "[4]", "[3]")),
        ({"t_ends": torch.rand(4).double()}, TypeError, ("weights", "t_ends", "float32", "float64")),
        ({"weights": torch.ones(4).int()}, TypeError, ("weights", "float32", "int32")),
        ({"ray_offsets": torch.tensor([0.0, 4])}, TypeError, ("ray_offsets", "int64")),
        ({"near": 2.0, "far": 1.0}, ValueError, ("near", "far", "2.0", "1.0")),
        ({"far": math.inf}, ValueError, ("far", "inf")),
        ({"near": -1.0}, ValueError, ("near", "-1.0")),
        ({"linear": 0.0}, ValueError, ("linear", "0.0")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "weights": torch.rand(4), "t_starts": torch.rand(4), "t_ends": torch.rand(4),
        "ray_offsets": torch.tensor([0, 4]), "near": 0.0, "far": 1.0, "linear": 1.0,
    }  # fmt: skip
    with raises_naming(error, *named):
        distortion(**(good | change))
