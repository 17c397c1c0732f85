# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import composite
from nerfkit.ops.packed import offsets_from_counts
from tests.naming import raises_naming
from tests.ops.harness import backend_params, checks_of, drawn_backends, fused_params

TestComposite = checks_of("composite")


def one_ray(density: torch.Tensor, delta: float = 0.1) -> dict:
    n = len(density)
    t = torch.arange(n).to(density) * delta
    return {
        "density": density, "rgb": torch.rand(n, 3).to(density), "t_starts": t, "t_ends": t + delta,
        "ray_offsets": torch.tensor([0, n]), "background": torch.ones(3).to(density),
    }  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), max_size=6), log=st.floats(-20, 20), seed=st.integers(0, 99),
    backend=drawn_backends("composite"),
)  # fmt: skip
def test_weights_are_shares(counts, log, seed, backend):
    torch.manual_seed(seed)
    n, r = sum(counts), len(counts)
    offsets = offsets_from_counts(torch.tensor(counts, dtype=torch.int64))
    density, t = torch.rand(n) * math.exp(log), torch.arange(n) * 0.1
    inputs = density, torch.rand(n, 3), t, t + 0.1, offsets, torch.rand(r, 3)
    with ops.backend(backend[0]):
        color, opacity, _, weights = composite(*(x.to(backend[1]) for x in inputs))
    assert (weights >= 0).all() and (weights <= 1).all()
    assert (opacity >= 0).all() and (opacity <= 1 + 1e-5).all() and (color <= 1 + 1e-5).all()


def test_an_empty_ray_is_background():
    background = torch.rand(3, 3)
    offsets = torch.tensor([0, 0, 1, 1])
    color, opacity, depth, _ = composite(
        torch.ones(1), torch.ones(1, 3), torch.zeros(1), torch.ones(1), offsets, background
    )
    assert torch.equal(color[[0, 2]], background[[0, 2]])
    assert opacity[[0, 2]].tolist() == [0, 0] and depth[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize("huge", [1e10, 1e30, math.inf])
def test_huge_density_gives_a_spike(huge: float):
    ray = one_ray(torch.tensor([0.0, huge, 5.0, huge]))
    color, opacity, depth, weights = composite(**ray)
    assert weights.tolist() == pytest.approx([0, 1, 0, 0], abs=1e-20)
    assert torch.equal(color[0], ray["rgb"][1]) and opacity.item() == 1 and depth.item() == pytest.approx(0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [1e-6, 1.0, 1e3])
def test_values_and_gradients_are_finite_at_extremes(dtype: torch.dtype, delta: float):
    density = torch.exp(torch.linspace(-100, 60, 33, dtype=dtype)).requires_grad_()
    ray = one_ray(density, delta)
    rgb = ray["rgb"].requires_grad_()
    outputs = composite(**ray)
    gradients = torch.autograd.grad(sum(x.sum() for x in outputs), [density, rgb])
    assert all(x.isfinite().all() for x in (*outputs, *gradients))


def test_many_dense_rays_before_change_nothing():
    """The running sum over all rays keeps its precision: the last of 10000 opaque rays is as it is alone."""
    ray = one_ray(torch.tensor([0.3, 2.0, 7.0]))
    alone = composite(**ray)
    n = 10000
    before = torch.full((n,), 400.0)
    many = composite(
        torch.cat([before, ray["density"]]), torch.cat([torch.rand(n, 3), ray["rgb"]]),
        torch.cat([torch.zeros(n), ray["t_starts"]]), torch.cat([torch.ones(n), ray["t_ends"]]),
        torch.cat([torch.arange(n + 1), torch.tensor([n + 3])]), torch.ones(3),
    )  # fmt: skip
    for a, b in zip(alone[:3], many[:3], strict=True):
        torch.testing.assert_close(b[-1], a[0], rtol=1e-6, atol=1e-6)


COUNTS = (3, 0, 5, 1, 0, 0, 4, 2, 0)  # samples of nine rays
INPUTS = ("density", "rgb", "t_starts", "t_ends", "background")


def rays_and_gradients(dtype: torch.dtype, device: str = "cpu") -> tuple[dict, list[torch.Tensor]]:
    """Inputs of nine rays that let some light through, and gradients of the outputs."""
    n, r = sum(COUNTS), len(COUNTS)
    t = torch.arange(n).double() / 4
    values = torch.rand(n) + 0.5, torch.rand(n, 3), t, t + 0.25, torch.rand(r, 3)
    inputs = {name: x.to(device, dtype) for name, x in zip(INPUTS, values, strict=True)}
    inputs["ray_offsets"] = offsets_from_counts(torch.tensor(COUNTS, device=device))
    return inputs, [torch.randn(size).to(device, dtype) for size in ((r, 3), (r,), (r,), (n,))]


def outputs_and_gradients(backend: str, inputs: dict, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    smooth = [inputs[name].detach().clone().requires_grad_() for name in ("density", "rgb", "background")]
    named = inputs | dict(zip(("density", "rgb", "background"), smooth, strict=True))
    with ops.backend(backend):
        outputs = composite(**named)
        return [x.detach() for x in (*outputs, *torch.autograd.grad(outputs, smooth, grads))]


NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("backend, device", fused_params("composite"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", ["density", "rgb", "t_starts", "t_ends", "background"])
def test_what_is_not_finite_is_so_at_the_definition_s_places(backend, device, dtype, value: float, name: str):
    for place in range(sum(COUNTS)):
        inputs, grads = rays_and_gradients(dtype)
        flat = inputs[name].view(-1)
        flat[place % len(flat)] = value
        if name == "t_ends" and place % 2:  # two kinds of it in one ray
            inputs["t_starts"][-1] = math.inf
        wanted = outputs_and_gradients("torch", inputs, grads)
        on_device = {name: x.to(device) for name, x in inputs.items()}
        got = [x.cpu() for x in outputs_and_gradients(backend, on_device, [x.to(device) for x in grads])]
        if device == "cpu":  # a GPU takes a sample's thickness off a sum again, which makes NaN of infinity
            torch.testing.assert_close(got[:4], wanted[:4], rtol=1e-4, atol=1e-5, equal_nan=True)
        for g, w in zip(got, wanted, strict=True):
            assert torch.equal(g.isfinite(), w.isfinite())
            torch.testing.assert_close(g[g.isfinite()], w[w.isfinite()], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend, device", backend_params("composite"))
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", ["density", "rgb", "t_starts", "t_ends", "background", "a gradient"])
def test_what_is_not_finite_stays_in_its_ray(backend: str, device: str, value: float, name: str):
    """All that is of another ray is what it is without: the samples 3 to 7 are of ray 2."""
    inputs, grads = rays_and_gradients(torch.float32, device)
    wanted = outputs_and_gradients(backend, inputs, grads)
    if name == "a gradient":
        grads[1][2] = value
    else:
        inputs[name][2 if name == "background" else 5] = value
    got = outputs_and_gradients(backend, inputs, grads)
    rays, samples = torch.arange(len(COUNTS)) != 2, torch.ones(sum(COUNTS), dtype=torch.bool)
    samples[3:8] = False
    of_rays = [True, True, True, False, False, False, True]  # color, opacity, depth, and the background's gradient
    for g, w, of_ray in zip(got, wanted, of_rays, strict=True):
        others = rays if of_ray else samples
        assert w.isfinite().all() and g[others].isfinite().all()
        torch.testing.assert_close(g[others], w[others], rtol=1e-6, atol=1e-6)
    assert not all(x.isfinite().all() for x in got) or (name == "density" and value == math.inf)


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"density": torch.rand(4, 1)}, ValueError, ("density", "[N]", "[4, 1]")),
        ({"rgb": torch.rand(4, 4)}, ValueError, ("rgb", "[4, 3]", "[4, 4]")),
        ({"t_ends": torch.rand(3)}, ValueError, ("t_ends", "[4]", "[3]")),
        ({"background": torch.rand(2, 3)}, ValueError, ("background", "[1, 3]", "[2, 3]")),
        ({"rgb": torch.rand(4, 3).double()}, TypeError, ("density", "rgb", "float32", "float64")),
        ({"ray_offsets": torch.tensor([0, 4]).int()}, TypeError, ("ray_offsets", "int64", "int32")),
    ],
)
def test_bad_input(change, error, named):
    with raises_naming(error, *named):
        composite(**(one_ray(torch.rand(4)) | change))
