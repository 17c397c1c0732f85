# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import composite, count_visible
from tests.naming import raises_naming
from tests.ops.cases import between, offsets, visible_inputs
from tests.ops.harness import backend_params, checks_of

TestCountVisible = checks_of("count_visible")


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 60), max_size=6), levels=st.integers(0, 300), seed=st.integers(0, 99))
def test_counts_the_samples_that_composite_gives_light(counts, levels, seed):
    torch.manual_seed(seed)
    density, t_starts, t_ends, ray_offsets = visible_inputs(counts, behind=0)
    density = density + 1 / 4  # so that each weight tells the transmittance before it
    rgb, background = torch.zeros(len(density), 3).double(), torch.zeros(3).double()
    *_, weights = composite(density, rgb, t_starts, t_ends, ray_offsets, background)
    transmittance = weights / -torch.expm1(-density * (t_ends - t_starts))
    lit = (transmittance > between(levels)).split(counts) if counts else []
    got = count_visible(density, t_starts, t_ends, ray_offsets, between(levels))
    assert got.tolist() == [int(ray.sum()) for ray in lit]


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
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(3), ids=["density", "t_starts", "t_ends"])
def test_what_is_not_finite_stays_in_its_ray(backend: str, device: str, value: float, which: int):
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


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"density": torch.rand(4, 1)}, ValueError, ("density", "[N]", "[4, 1]")),
        ({"t_starts": torch.rand(5)}, ValueError, ("t_starts", "[4]", "[5]")),
        ({"t_ends": torch.rand(3)}, ValueError, ("t_ends", "[4]", "[3]")),
        ({"t_ends": torch.rand(4).double()}, TypeError, ("density", "t_ends", "float32")),
        ({"density": torch.ones(4).long()}, TypeError, ("density", "float32", "bfloat16", "int64")),
        ({"ray_offsets": torch.tensor([0, 4]).int()}, TypeError, ("ray_offsets", "int64", "int32")),
        ({"ray_offsets": torch.zeros(0).long()}, ValueError, ("ray_offsets", "0", "[0]")),
        ({"min_transmittance": -0.1}, ValueError, ("min_transmittance", "0", "1", "-0.1")),
        ({"min_transmittance": math.nan}, ValueError, ("min_transmittance", "0", "1", "nan")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "density": torch.rand(4), "t_starts": torch.rand(4), "t_ends": torch.rand(4),
        "ray_offsets": torch.tensor([0, 4]), "min_transmittance": 0.1,
    }  # fmt: skip
    with raises_naming(error, *named):
        count_visible(**(good | change))
