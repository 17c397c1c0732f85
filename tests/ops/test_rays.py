# SPDX-License-Identifier: Apache-2.0
"""Ops on packed samples of rays: huge numbers, numbers that are not finite, rows that are of no ray."""

import math
import re

import pytest
import torch

from nerfkit import ops
from nerfkit.ops import compact_samples, composite, count_visible, distortion
from nerfkit.ops.packed import offsets_from_counts
from tests.naming import not_named
from tests.ops import cases as make
from tests.ops.cases import Case, between, offsets, place_inputs, visible_inputs
from tests.ops.harness import backend_params, fused_params

NOT_FINITE = [math.nan, math.inf, -math.inf]


def one_ray(density: torch.Tensor, delta: float = 0.1) -> dict:
    n = len(density)
    t = torch.arange(n).to(density) * delta
    return {
        "density": density, "rgb": torch.rand(n, 3).to(density), "t_starts": t, "t_ends": t + delta,
        "ray_offsets": torch.tensor([0, n]), "background": torch.ones(3).to(density),
    }  # fmt: skip


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


@pytest.mark.parametrize("backend, device", backend_params("distortion"))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["weights", "t_ends"])
def test_a_distortion_that_is_not_finite_stays_in_its_ray(backend: str, device: str, bad: float, where: str):
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


@pytest.mark.parametrize("backend, device", backend_params("distortion"))
def test_weights_that_are_apart_cost_more(backend: str, device: str):
    """And as much far away as near, where the scale is logarithmic: the same ratio of distances."""
    t = torch.tensor([1.0, 2, 4, 8, 16, 1, 2, 4, 8, 16, 1, 2, 4, 8, 16], device=device)
    weights = torch.tensor([0.0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1], device=device)
    with ops.backend(backend):
        near, far, apart = distortion(weights, t, t, torch.tensor([0, 5, 10, 15], device=device), 1.0, 16.0, 1.0)
    assert near.item() == pytest.approx(2 * 1 / 4) and far.item() == pytest.approx(near.item())
    assert apart.item() == pytest.approx(2.0)


@pytest.mark.parametrize("backend, device", backend_params("distortion"))
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


@pytest.mark.parametrize("backend, device", backend_params("count_visible"))
def test_all_none_and_those_before_the_first_wall(backend: str, device: str):
    t = torch.arange(30.0, device=device)
    ray_offsets = offsets(20, 0, 7).to(device)
    with ops.backend(backend):
        for thick in (0.0, 1e10, math.inf):
            density = torch.where(t % 10 == 5, thick, 0.0)
            assert count_visible(density, t, t + 1, ray_offsets, 1.0).tolist() == [0, 0, 0]
            assert count_visible(density, t, t + 1, ray_offsets, 0.0).tolist() == [20, 0, 7]
            some = count_visible(density, t, t + 1, ray_offsets, 0.5).tolist()
            assert some == ([6, 0, 6] if thick else [20, 0, 7])


@pytest.mark.parametrize("backend, device", backend_params("count_visible"))
def test_rows_behind_the_rays_are_not_looked_at(backend: str, device: str):
    density, t_starts, t_ends, ray_offsets = (x.to(device) for x in visible_inputs((30, 0, 17), behind=40))
    density[47:], t_ends[47:] = math.nan, -math.inf
    alone = density[:47], t_starts[:47], t_ends[:47], ray_offsets
    with ops.backend(backend):
        got = count_visible(density, t_starts, t_ends, ray_offsets, between(50))
        assert torch.equal(got, count_visible(*alone, between(50)))


@pytest.mark.parametrize("backend, device", backend_params("count_visible"))
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("which", range(3), ids=["density", "t_starts", "t_ends"])
def test_a_count_that_is_not_finite_stays_in_its_ray(backend: str, device: str, value: float, which: int):
    """Samples count up to the first that light does not reach, by a loop; in other rays nothing changes."""
    counts = (3, 0, 5, 1, 0, 4)
    inputs = list(visible_inputs(counts, behind=2))
    inputs[0][:] = 4  # a thickness of 1/2 each
    for place in range(sum(counts)):
        changed = [x.clone() for x in inputs]
        changed[which][place] = value
        density, t_starts, t_ends, ray_offsets = changed
        for levels in (0, 20, 40, 1000):
            wanted = []
            for begin, end in zip(ray_offsets, ray_offsets[1:], strict=False):
                before, n = 0.0, begin
                while n < end and before < (levels + 0.5) / 32:
                    thickness = (density[n] * (t_ends[n] - t_starts[n])).item()
                    before, n = before + (50.0 if thickness > 50 else thickness), n + 1
                wanted.append(int(n - begin))
            with ops.backend(backend):
                got = count_visible(*(x.to(device) for x in changed), between(levels)).tolist()
            if device == "cuda" and (density * (t_ends - t_starts) == -math.inf).any():
                # A GPU's lanes do not see that one before them is dark: that ray may count more.
                ray = int((ray_offsets <= place).sum()) - 1
                got[ray] = wanted[ray]
            assert got == wanted


@pytest.mark.parametrize("backend, device", backend_params("compact_samples"))
@pytest.mark.parametrize("rays", [0, 1, 300])
def test_rows_that_no_ray_needs(backend: str, device: str, rays: int):
    """They are 0 whatever stands in the rows of the source that are not taken."""
    origins, directions, t_starts, t_ends, source, kept, _ = (
        x.to(device) if isinstance(x, torch.Tensor) else x for x in place_inputs([5] * rays, [3] * rays, 9, 0)
    )
    t_starts[5 * rays :], t_ends[5 * rays :] = math.nan, math.inf
    used, n_rows = 3 * rays, 3 * rays + 20000
    with ops.backend(backend):
        positions, starts, ends, ray_index = compact_samples(
            origins, directions, t_starts, t_ends, source, kept, n_rows
        )
    assert positions.shape == (n_rows, 3) and not positions[used:].any()
    assert not starts[used:].any() and not ends[used:].any()
    assert (ray_index[used:] == max(rays - 1, 0)).all()
    assert positions.isfinite().all() and (starts[:used] < ends[:used]).all()


BROKEN = {  # row pointers of three rays with 6 samples, and what the definition names
    "past_the_end": ([0, 2, 4, 9], "6 9"),
    "a_fall": ([0, 4, 2, 6], "ray 1 4 2"),
    "a_fall_past_the_end": ([0, 9, 4, 6], "ray 1 9 4"),
    "not_from_0": ([1, 2, 4, 6], "6 1"),
    "below_0": ([-1, 2, 4, 6], "6 -1"),
    "negative_all_over": ([-6, -4, -2, 0], "6 -6"),
    "huge": ([0, 2**62, 2**62, 2**62], "6"),
    "differences_overflow": ([0, 2**62, -(2**62), 6], "ray 1"),
    "least_and_most": ([0, -(2**63), 2**63 - 1, 6], "ray 0"),
    "before_the_end": ([0, 2, 4, 5], "6 5"),
    "more_than_stored": ([0, 3, 4, 6], "ray 0 2 3"),
}
TAKE_PADDING = ("count_visible", "compact_samples")  # rows behind those of the rays
THREE = (2, 2, 2)
WITH_OFFSETS = [  # a case, and the argument that is broken
    (make.composite("", THREE, True), 4, "ray_offsets"),
    (make.distortion("", THREE, 3.0), 3, "ray_offsets"),
    (make.conv1d_packed("", THREE, 3, 3), 3, "ray_offsets"),
    (make.lltm("", THREE, 3, 4), 1, "ray_offsets"),
    (make.count_visible("", THREE, 0), 3, "ray_offsets"),
    (make.compact_samples("", THREE, 0, 0, keeps=4), 4, "source_offsets"),
    (make.compact_samples("", THREE, 0, 0, keeps=4), 5, "ray_offsets"),
]


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("case, place, name", WITH_OFFSETS, ids=lambda x: getattr(x, "op", str(x)))
def test_broken_offsets_are_an_error_on_the_cpu(case: Case, place: int, name: str, kind: str, backend: str):
    """A RuntimeError of the definition too, where `torch.repeat_interleave` would write beside its result."""
    if backend not in ops.available(case.op):
        pytest.skip("needs the C++ ops")
    if kind == "before_the_end" and case.op in TAKE_PADDING or kind == "more_than_stored" and place != 5:
        return  # they fit
    arguments, (broken, numbers) = case.arguments(torch.float32), BROKEN[kind]
    arguments[place] = torch.tensor(broken)
    named = (case.op, name, *re.findall(r"ray \d|\S+", numbers)) if backend == "torch" else ()
    with ops.backend(backend), pytest.raises(RuntimeError, match="row pointers|_offsets") as caught:
        case.function(*arguments)
    assert backend == "cpp" or not not_named(str(caught.value), *named)
