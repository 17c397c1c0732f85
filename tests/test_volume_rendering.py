# SPDX-License-Identifier: Apache-2.0
"""What is true of every volume that is rendered, whatever its density and color."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nerfkit import ops
from nerfkit.ops import composite
from nerfkit.ops.packed import offsets_from_counts, ray_indices
from tests.ops.harness import backend_params, drawn_backends

CPU_BACKENDS = [pytest.param(p.values[0], id=p.values[0]) for p in backend_params("composite") if p.values[1] == "cpu"]
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # of float64


def volume(counts: list[int], seed: int, log_density: float = 0.0) -> dict[str, Tensor]:
    """Rays of random samples, with gaps between their intervals, a background each; float64."""
    generator = torch.Generator().manual_seed(seed)
    n_samples, n_rays = sum(counts), len(counts)

    def rand(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    ray_offsets = offsets_from_counts(torch.tensor(counts, dtype=torch.int64))
    edges = (0.01 + rand(2 * n_samples)).cumsum(0)  # of all rays, one behind another
    first = edges[(2 * ray_offsets[:-1]).clamp(max=max(len(edges) - 1, 0))] if n_samples else edges.new_zeros(n_rays)
    t = edges.view(-1, 2) - first[ray_indices(ray_offsets, n_samples)][:, None] + 0.5  # [N, 2]
    return {
        "density": 10 ** (log_density + 2 * rand(n_samples) - 1), "rgb": rand(n_samples, 3),
        "t_starts": t[:, 0].contiguous(), "t_ends": t[:, 1].contiguous(),
        "ray_offsets": ray_offsets, "background": rand(n_rays, 3),
    }  # fmt: skip


def rendered(values: dict[str, Tensor], pair: tuple[str, str], **changes: Tensor) -> dict[str, Tensor]:
    """Color, opacity, depth and weights on a (backend, device), on the CPU."""
    backend, device = pair
    with ops.backend(backend):
        out = composite(**{name: value.to(device) for name, value in (values | changes).items()})
    return dict(zip(("color", "opacity", "depth", "weights"), (x.cpu() for x in out), strict=True))


def volumes(test):
    """A test of a backend and a volume: few rays or none, some empty, thin as air or opaque as a wall."""
    counts = st.lists(st.integers(0, 7), max_size=5)
    drawn = given(pair=drawn_backends("composite"), counts=counts, seed=st.integers(0, 99), log=st.floats(-3, 4))
    return settings(max_examples=30, deadline=None)(drawn(test))


@volumes
def test_transmittance_only_falls_and_the_rest_is_the_opacity(pair, counts, seed, log):
    """What passes a sample is what passed the one before, less its weight; a density brings an opacity of its own."""
    values = volume(counts, seed, log)
    out, starts = rendered(values, pair), values["ray_offsets"].tolist()
    thickness = values["density"] * (values["t_ends"] - values["t_starts"])
    for ray, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        passed = 1 - torch.cat([thickness.new_zeros(1), out["weights"][start:end].cumsum(0)])  # transmittance, n + 1
        assert (passed.diff() <= 0).all() and (passed > -1e-12).all()
        torch.testing.assert_close(passed[1:], torch.exp(-thickness[start:end].cumsum(0)), rtol=0, atol=1e-12)
        torch.testing.assert_close(out["opacity"][ray], 1 - passed[-1], **EXACT)


@volumes
def test_an_interval_cut_in_two_changes_nothing(pair, counts, seed, log):
    values = volume(counts, seed, log)
    share = torch.rand(sum(counts), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 100))
    cut = values["t_starts"] + share * (values["t_ends"] - values["t_starts"])
    twice = {name: values[name].repeat_interleave(2, 0) for name in ("density", "rgb")}
    t_starts = torch.stack([values["t_starts"], cut], 1).flatten()
    t_ends = torch.stack([cut, values["t_ends"]], 1).flatten()
    whole = rendered(values, pair)
    halves = rendered(values, pair, **twice, t_starts=t_starts, t_ends=t_ends, ray_offsets=2 * values["ray_offsets"])
    for name in ("color", "opacity"):
        torch.testing.assert_close(halves[name], whole[name], **EXACT, msg=name)
    torch.testing.assert_close(halves["weights"].view(-1, 2).sum(1), whole["weights"], **EXACT)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("density", [0.0, None])
def test_where_nothing_is_the_background_is_seen_at_depth_0(backend: str, density: float | None):
    """Without samples, and with samples of no density."""
    values = volume([0, 0] if density is None else [3, 2], seed=0)
    out = rendered(values, (backend, "cpu"), density=torch.zeros_like(values["density"]))
    assert torch.equal(out["color"], values["background"])
    assert not out["opacity"].any() and not out["depth"].any()


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_what_is_opaque_hides_what_is_behind_it(backend: str):
    """The samples behind count for nothing and learn nothing, and neither does the background count."""
    values = volume([5], seed=1)
    density = values["density"].index_fill(0, torch.tensor([2]), 1e6).requires_grad_()
    rgb = values["rgb"].clone().requires_grad_()
    behind = {"density": torch.cat([density[:3], 7 * density[3:]]), "rgb": torch.cat([rgb[:3], 1 - rgb[3:]])}
    out = rendered(values, (backend, "cpu"), density=density, rgb=rgb)
    changed = rendered(values, (backend, "cpu"), **behind, background=1 - values["background"])
    assert out["weights"][3:].max() < 1e-20 and out["opacity"].item() == pytest.approx(1, abs=1e-12)
    for name in ("color", "opacity", "depth"):
        torch.testing.assert_close(changed[name], out[name], rtol=0, atol=1e-12)
    out["color"].sum().backward()
    assert density.grad[2:].abs().max() < 1e-15 and rgb.grad[3:].abs().max() < 1e-15
    assert (density.grad[:2].abs() > 1e-6).all() and (rgb.grad[:3] > 1e-6).all()
