# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import compact_samples
from nerfkit.ops.packed import ray_indices
from tests.naming import not_named, raises_naming
from tests.ops.cases import offsets, place_inputs
from tests.ops.harness import backend_params, checks_of

TestCompactSamples = checks_of("compact_samples")


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_all_samples_of_all_rays_stay_where_they_are(counts, seed):
    torch.manual_seed(seed)
    inputs = place_inputs(counts, counts, source_behind=0, behind=0)
    origins, directions, t_starts, t_ends, ray_offsets, *_ = inputs
    positions, starts, ends, ray_index = compact_samples(*inputs)
    assert torch.equal(starts, t_starts) and torch.equal(ends, t_ends)
    assert torch.equal(ray_index, ray_indices(ray_offsets, sum(counts)))
    along = positions - origins[ray_index]  # a multiple of the direction
    torch.testing.assert_close(along, directions[ray_index] * ((t_starts + t_ends) / 2)[:, None])


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


@pytest.mark.parametrize("backend, device", backend_params("compact_samples"))
def test_no_rows_at_all(backend: str, device: str):
    inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in place_inputs([3, 4], [0, 0], 0, 0)]
    with ops.backend(backend):
        positions, *others = compact_samples(*inputs)
    assert positions.shape == (0, 3) and [x.shape for x in others] == [(0,)] * 3


WRONG = [  # source_offsets, ray_offsets of two rays; 6 rows in the source, 5 in the result
    ([0, 3, 7], [0, 2, 4]), ([1, 3, 6], [0, 2, 4]), ([0, 3, 6], [0, 3, 6]), ([0, 3, 6], [0, 4, 2]),
    ([0, 3, 6], [1, 2, 4]), ([0, 3, 6], [0, 4, 5]), ([0, 5, 4], [0, 1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("source, kept", WRONG)
def test_wrong_offsets_are_an_error_on_the_cpu(source: list, kept: list, backend: str):
    if backend not in ops.available("compact_samples"):
        pytest.skip("needs the C++ ops")
    rays = torch.rand(2, 3), torch.rand(2, 3)
    with ops.backend(backend), pytest.raises(RuntimeError) as caught:
        compact_samples(*rays, *torch.rand(2, 6), torch.tensor(source), torch.tensor(kept), 5)
    assert any(not not_named(str(caught.value), part) for part in ("row pointers", "ray_offsets", "source_offsets"))


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"origins": torch.rand(2, 2)}, ValueError, ("origins", "[R, 3]", "[2, 2]")),
        ({"origins": torch.rand(2, 3).half()}, TypeError, ("origins", "float32", "float64", "float16")),
        ({"directions": torch.rand(3, 3)}, ValueError, ("directions", "[2, 3]", "[3, 3]")),
        ({"directions": torch.rand(2, 3).double()}, TypeError, ("origins", "directions", "float32", "float64")),
        ({"t_ends": torch.rand(5)}, ValueError, ("t_ends", "[4]", "[5]")),
        ({"source_offsets": offsets(4)}, ValueError, ("source_offsets", "[3]", "[2]")),
        ({"source_offsets": [0, 2, 4]}, TypeError, ("source_offsets", "int64", "[3]", "list")),
        ({"ray_offsets": offsets(1, 1).int()}, TypeError, ("ray_offsets", "int64", "int32")),
        ({"n_rows": -1}, ValueError, ("n_rows", "-1")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "origins": torch.rand(2, 3), "directions": torch.rand(2, 3), "t_starts": torch.rand(4), "t_ends": torch.rand(4),
        "source_offsets": offsets(2, 2), "ray_offsets": offsets(1, 1), "n_rows": 3,
    }  # fmt: skip
    with raises_naming(error, *named):
        compact_samples(**(good | change))
