# SPDX-License-Identifier: Apache-2.0
"""Ops on packed samples of rays: huge numbers, numbers that are not finite, rows that are of no ray."""

import math
import re

import pytest
import torch

from nerfkit import ops
from nerfkit.ops import compact_samples, composite, count_visible, distortion
from tests.naming import not_named
from tests.ops import cases as make
from tests.ops.cases import Case, between, offsets, place_inputs, visible_inputs
from tests.ops.harness import as_tuple, backend_params


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


@pytest.mark.parametrize("backend, device", backend_params("composite"))
def test_many_dense_rays_before_change_nothing(backend: str, device: str):
    """The running sum over all rays keeps its precision: the last of 10000 opaque rays is as it is alone."""
    density = torch.tensor([0.3, 2.0, 7.0])
    alone, many = one_ray(density, 1 / 8), one_ray(torch.cat([torch.full((10000,), 400.0), density]), 1 / 8)
    many["rgb"][-3:] = alone["rgb"]
    many["ray_offsets"] = torch.cat([torch.arange(10001), torch.tensor([10003])])
    with ops.backend(backend):
        wanted, got = (composite(**{name: x.to(device) for name, x in ray.items()})[:2] for ray in (alone, many))
    torch.testing.assert_close([x[-1] for x in got], [x[0] for x in wanted], rtol=1e-6, atol=1e-6)


COUNTS = (3, 0, 5, 1, 0, 0, 4, 2, 0)  # samples of nine rays; those of ray 2 are 3 to 7
POISONED = [  # a case, and an argument that gets a number that is not finite; or None for the gradient of the outputs
    *((make.composite("rays", COUNTS, True), place) for place in (0, 1, 2, 3, 5, None)),
    *((make.distortion("rays", COUNTS, 3.0), place) for place in (0, 1, 2, None)),
    *((make.count_visible("rays", COUNTS, 0), place) for place in (0, 1, 2)),
]


def results(case: Case, backend: str, device: str, place: int | None, row: int, value: float | None) -> list:
    """Outputs and gradients on the CPU; with a `value`, that stands in the row of the argument, or of ray 2."""
    arguments = case.arguments(torch.float32, device)
    if value is not None and place is not None:
        arguments[place].view(-1)[row] = value
    inputs = [x.requires_grad_() for x in case.tensors(arguments)]
    with ops.backend(backend):
        outputs = as_tuple(case.function(*arguments))
        grads = [torch.linspace(-1, 1, x.numel(), device=device).view(x.shape) for x in outputs]
        if value is not None and place is None:
            grads[-1 if case.op == "distortion" else 1][2] = value
        gradients = torch.autograd.grad(outputs, inputs, grads) if inputs else ()
    return [x.detach().cpu() for x in (*outputs, *gradients)]


@pytest.mark.parametrize(
    "case, place, backend, device",
    [
        pytest.param(case, place, *p.values, id=f"{case.op}-{place}-{p.id}", marks=p.marks)
        for case, place in POISONED
        for p in backend_params(case.op)
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_ray(case, place, backend, device, value: float):
    """All that is of another ray is what it is without; in its own, the same is finite as of the definition."""
    row = {("composite", 1): 15, ("composite", 5): 6}.get((case.op, place), 5)  # of rgb [N, 3], of background [R, 3]
    clean, got = (results(case, backend, device, place, row, number) for number in (None, value))
    defined = results(case, "torch", "cpu", place, row, value)
    others = {len(COUNTS): torch.arange(len(COUNTS)) != 2, sum(COUNTS): torch.ones(sum(COUNTS), dtype=torch.bool)}
    others[sum(COUNTS)][3:8] = False
    for g, c, d in zip(got, clean, defined, strict=True):
        of_others = others[len(c)]
        assert c.isfinite().all() and g[of_others].isfinite().all()
        torch.testing.assert_close(g[of_others], c[of_others], rtol=1e-6, atol=1e-6)
        if case.op == "count_visible" and value == -math.inf:
            continue  # a GPU's lanes do not see that one before them is dark: that ray may count more
        assert torch.equal(g.isfinite(), d.isfinite())
        torch.testing.assert_close(g[g.isfinite()], d[d.isfinite()], rtol=1e-4, atol=1e-4)


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
    "not_from_0": ([1, 2, 4, 6], "6 1"),
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
