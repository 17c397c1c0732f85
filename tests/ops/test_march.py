# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.contraction import exponential_ladder
from nerfkit.ops import march
from nerfkit.ops.packed import truncate_offsets
from tests.naming import raises_naming
from tests.ops import naive
from tests.ops.cases import cases, ladder_inputs
from tests.ops.harness import backend_params, checks_of, drawn_backends, fused_params

TestMarch = checks_of("march")


@settings(max_examples=40, deadline=None)
@given(
    cells=st.tuples(*[st.integers(1, 13)] * 3), step=st.floats(0.02, 1.5), seed=st.integers(0, 999),
    filled=st.floats(0.02, 0.9), near=st.floats(0, 2), length=st.floats(0.1, 5), backend=drawn_backends("march"),
)  # fmt: skip
def test_equals_brute_force(cells, step, seed, filled, near, length, backend):
    """No occupied cell is skipped by the coarse look, whatever the shapes of box, cells and step."""
    torch.manual_seed(seed)
    box = torch.stack([-torch.rand(3), torch.rand(3) * 2]).double() + 0.01 * torch.tensor([[-1.0], [1.0]])
    directions = torch.nn.functional.normalize(torch.randn(7, 3).double(), dim=-1)
    directions[0] = torch.tensor([0.0, -1.0, 0.0])
    origins = torch.randn(7, 3).double()
    inputs = origins, directions, torch.rand(cells) < filled, box, step, near, near + length, torch.rand(7).double()
    with ops.backend(backend[0]):
        got = march(*(x.to(backend[1]) if isinstance(x, torch.Tensor) else x for x in inputs))
    wanted = naive.march(*(x.numpy() if isinstance(x, torch.Tensor) else x for x in inputs))
    assert got[2].tolist() == wanted[2].tolist()
    torch.testing.assert_close(got[0].cpu(), torch.from_numpy(wanted[0]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend, device", backend_params("march"))
@pytest.mark.parametrize("case", [c for c in cases("march") if "ladder" not in c.name], ids=lambda case: case.name)
def test_float32_differs_at_cell_borders_alone(case, backend: str, device: str):
    """In float32 a middle may fall into the next cell: few intervals differ, and all lie in the box."""
    with ops.backend(backend):
        t_starts, t_ends, ray_offsets = march(*case.arguments(torch.float32, device))
        wide = march(*case.arguments(torch.float64, device))
    assert abs(len(t_starts) - len(wide[0])) <= 0.02 * len(wide[0]) + 1
    assert ray_offsets[-1] == len(t_starts) and (ray_offsets.diff() >= 0).all()
    torch.testing.assert_close(t_ends - t_starts, torch.full_like(t_starts, case.arguments()[4]), rtol=1e-4, atol=1e-5)


def test_empty_grid_and_missed_box_give_no_samples():
    origin, direction = torch.tensor([[-3.0, 0, 0]]), torch.tensor([[1.0, 0, 0]])
    box = torch.tensor([[-1.0] * 3, [1.0] * 3])
    empty, full = torch.zeros(4, 4, 4).bool(), torch.ones(4, 4, 4).bool()
    assert march(origin, direction, empty, box, 0.1)[2].tolist() == [0, 0]
    assert march(origin, -direction, full, box, 0.1)[2].tolist() == [0, 0]
    assert march(origin + 5, direction, full, box, 0.1)[2].tolist() == [0, 0]


@pytest.mark.parametrize("backend, device", fused_params("march"))
@pytest.mark.parametrize("step", [0.2, 0.02, 0.002])
@pytest.mark.parametrize("cells, filled", [((8, 8, 8), 0.5), ((40, 33, 64), 0.002)])
def test_rays_of_few_and_of_many_samples(backend: str, device: str, step: float, cells: tuple, filled: float):
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(50, 3).double(), dim=-1)
    inputs = -2 * directions, directions, torch.rand(cells) < filled, torch.tensor([[-1.0] * 3, [1.0] * 3]).double()
    with ops.backend("torch"):
        wanted = march(*inputs, step)
    with ops.backend(backend):
        got = march(*(x.to(device) for x in inputs), step)
    assert got[2].tolist() == wanted[2].tolist()
    torch.testing.assert_close(got[0].cpu(), wanted[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend, device", fused_params("march"))
@pytest.mark.parametrize("cells_a_step", [0.05, 0.12, 0.3, 0.6, 1.1, 3.0])
@pytest.mark.parametrize("away", [2.0, 3e5])
def test_no_cell_is_missed_by_larger_steps_or_from_far_away(
    backend: str, device: str, cells_a_step: float, away: float
):
    """The less a look at the coarse grid tells of an interval, the more looks there are."""
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(150, 3).double(), dim=-1)
    origins = 0.5 * torch.randn(150, 3).double() - away * directions
    box = torch.tensor([[-1.0] * 3, [1.0] * 3]).double()
    inputs = origins, directions, torch.rand(45, 64, 37) < 0.01, box, cells_a_step * 2 / 64
    with ops.backend("torch"):
        wanted = march(*inputs)
    with ops.backend(backend):
        got = march(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs))
    assert got[2].tolist() == wanted[2].tolist()
    torch.testing.assert_close(got[0].cpu(), wanted[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend, device", backend_params("march"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.02, 0.001])
def test_rows_of_a_capacity_are_whole_rays_then_zeros(backend: str, device: str, dtype: torch.dtype, step: float):
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(200, 3, dtype=dtype), dim=-1).to(device)
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], dtype=dtype, device=device)
    inputs = -2 * directions, directions, torch.rand(16, 16, 15, device=device) < 0.3, box, step
    with ops.backend(backend):
        t_starts, t_ends, ray_offsets = march(*inputs)
        n = len(t_starts)
        for capacity in (0, 1, n // 2, n // 2 + 1, n - 1, n, n + 1, n + 5000):
            got = march(*inputs, capacity=capacity)
            used = truncate_offsets(ray_offsets, capacity)[0][-1].item()
            assert torch.equal(got[2], ray_offsets)
            for rows, all_rows in zip(got[:2], (t_starts, t_ends), strict=True):
                assert len(rows) == capacity
                assert torch.equal(rows[:used], all_rows[:used])
                assert not rows[used:].any()


def assert_same_on_all_backends(inputs: tuple, capacity: int | None, ladder: torch.Tensor) -> torch.Tensor:
    """Require the definition's bits of every backend that runs here, and return its ray_offsets."""
    with ops.backend("torch"):
        wanted = march(*inputs, capacity, ladder)
    for backend, device in [p.values for p in fused_params("march")]:
        if device == "cpu" or torch.cuda.is_available():
            moved = (x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs)
            with ops.backend(backend):
                got = march(*moved, capacity, ladder.to(device))
            assert all(torch.equal(a.cpu(), b) for a, b in zip(got, wanted, strict=True)), backend
    return wanted[2]


@settings(max_examples=60, deadline=None)
@given(
    cells=st.tuples(*[st.sampled_from((1, 3, 8, 31, 64, 100))] * 3), filled=st.floats(0, 0.1), seed=st.integers(0, 999),
    distance=st.sampled_from((0.0, 0.3, 1.0, 1.5, 8.0, 3e4)), cone=st.sampled_from((0.0, 1 / 256, 1 / 64, 0.7)),
    step=st.floats(0.005, 0.5), far=st.floats(2, 3000), dtype=st.sampled_from((torch.float32, torch.float64)),
    jitter=st.booleans(), capacity=st.sampled_from((None, 300)),
)  # fmt: skip
def test_a_ladder_gives_the_same_bits_everywhere(
    cells, filled, seed, distance, cone, step, far, dtype, jitter, capacity
):
    """No occupied cell is skipped, whatever rays, cells and intervals are."""
    torch.manual_seed(seed)
    far = min(far, 2000 * step) if cone < 1e-3 else far
    *inputs, _, _ = ladder_inputs(40, cells, filled, distance, jitter=jitter)
    inputs = [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    assert_same_on_all_backends(tuple(inputs), capacity, exponential_ladder(0.02, far, step, cone).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ladder_of_many_intervals_and_single_cells(dtype: torch.dtype):
    """Rays of more chunks with samples than are stored, and cells that one interval alone meets."""
    torch.manual_seed(0)
    box = torch.tensor([[-1.0, -2, -1], [1, 2, 3]], dtype=dtype)
    directions = torch.nn.functional.normalize(torch.randn(300, 3, dtype=dtype), dim=-1)
    origins, jitter = torch.randn(300, 3, dtype=dtype), torch.rand(300, dtype=dtype)
    ladder = exponential_ladder(0.0, 400.0, 0.004, 1 / 256).to(dtype)
    few, many = torch.rand(128, 120, 130) < 1e-3, torch.rand(16, 16, 16) < 0.6
    for occupancy in (few, many):
        inputs = origins, directions, occupancy, box, None, 0.0, math.inf, jitter
        assert assert_same_on_all_backends(inputs, None, ladder)[-1] > 300


@pytest.mark.parametrize("backend, device", backend_params("march"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rays_that_a_ladder_leaves_without_samples(backend: str, device: str, dtype: torch.dtype):
    """Only the first has samples: no direction, numbers that are not finite, too far away."""
    bad = [[0.0, 0, 0], [math.nan, 0, 1], [0, math.inf, 0]]
    far = [[1e37 if dtype == torch.float32 else 1e300, 0, 0]]
    directions = torch.tensor([[0.0, 0, 1], *bad, *[[0.0, 0, 1]] * 4], dtype=dtype, device=device)
    origins = torch.tensor([[0.0, 0, 0]] * 4 + bad[1:] + [[0, -math.inf, 1]] + far, dtype=dtype, device=device)
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], dtype=dtype, device=device)
    ladder = exponential_ladder(0.0, 50.0, 0.5, 0.1).to(device, dtype)
    with ops.backend(backend):
        got = march(origins, directions, torch.ones(4, 4, 4, device=device).bool(), box, None, ladder=ladder)
        inner = torch.zeros(4, 4, 4, device=device).bool()
        inner[1:3, 1:3, 1:3] = True
        within = march(origins, directions, inner, box, None, ladder=ladder)
    assert got[2].diff().tolist() == [len(ladder) - 2, *[0] * 7]
    assert torch.equal(got[0], ladder[:-2]) and torch.equal(got[1], ladder[1:-1])
    assert within[0].tolist() == [0.0, 0.5] and within[1].tolist() == [0.5, 1.0]  # the box, in cells of the middle


@pytest.mark.parametrize("backend, device", fused_params("march"))
def test_a_ladder_far_beyond_all_cells(backend: str, device: str):
    """Distances up to where float32 ends, at which contracted positions no longer move."""
    ladder = torch.tensor([0.0, 1e3, 1e10, 1e20, 1e29, 1e31, 1e38, 3e38], device=device)
    directions = torch.nn.functional.normalize(torch.randn(9, 3, device=device), dim=-1)
    inputs = directions * 0.1, directions, torch.ones(8, 8, 8, device=device).bool()
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], device=device)
    found = []
    for name in ("torch", backend):
        with ops.backend(name):
            found.append(march(*inputs, box, None, ladder=ladder))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert (found[0][2].diff() >= 4).all()  # up to 2^100 half sides


@pytest.mark.parametrize("backend, device", backend_params("march"))
@pytest.mark.parametrize("n_rays, cells", [(0, (4, 4, 4)), (70, (4, 0, 4)), (0, (0, 4, 4))])
@pytest.mark.parametrize("capacity", [None, 0, 9])
@pytest.mark.parametrize("step", [0.1, None])
def test_no_rays_or_no_cells(
    backend: str, device: str, n_rays: int, cells: tuple, capacity: int | None, step: float | None
):
    rays, box = torch.rand(n_rays, 3, device=device), torch.tensor([[0.0] * 3, [1.0] * 3], device=device)
    occupancy, ladder = (
        torch.ones(cells, device=device).bool(),
        torch.arange(5.0, device=device) if step is None else None,
    )
    with ops.backend(backend):
        t_starts, t_ends, ray_offsets = march(rays, rays, occupancy, box, step, capacity=capacity, ladder=ladder)
    assert t_starts.tolist() == t_ends.tolist() == [0.0] * (capacity or 0)
    assert ray_offsets.tolist() == [0] * (n_rays + 1)


@pytest.mark.parametrize("backend, device", fused_params("march"))
def test_many_tiles_of_rays_and_cells_that_are_not_aligned(backend: str, device: str):
    """Rays of very different length, and a grid that neither begins nor ends with a word."""
    torch.manual_seed(0)
    n = 70001  # more tiles than a block of the kernel adds up at once
    directions = torch.nn.functional.normalize(torch.randn(n, 3).double(), dim=-1).to(device)
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], device=device).double()
    occupancy = (torch.rand(9 * 10 * 12 + 1, device=device) < 0.1)[1:].view(9, 10, 12)
    inputs = -2 * directions, directions, occupancy, box, 0.05
    with ops.backend("torch"):
        wanted = march(*inputs)
    with ops.backend(backend):
        got = march(*inputs)
    assert torch.equal(got[2], wanted[2])
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-12, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("step", [0.01, None])
def test_a_graph_with_a_capacity(step: float | None):
    """A replay gives what a call with its inputs gives, whatever the one before has left in memory."""
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(3000, 3, device="cuda"), dim=-1)
    occupancy = torch.ones(20, 20, 20, device="cuda").bool()
    inputs = -2 * directions, directions, occupancy, torch.tensor([[-1.0] * 3, [1.0] * 3], device="cuda"), step
    ladder = exponential_ladder(0.0, 9.0, 0.01, 0.01).float().cuda() if step is None else None
    with ops.backend("cuda"):
        march(*inputs, capacity=20000, ladder=ladder)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = march(*inputs, capacity=20000, ladder=ladder)
        for filled in (0.3, 0.0, 0.01):
            occupancy.copy_(torch.rand(20, 20, 20, device="cuda") < filled)
            graph.replay()
            wanted = march(*inputs, capacity=20000, ladder=ladder)
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("backend, device", backend_params("march"))
def test_a_step_far_too_small_is_an_error(backend: str, device: str):
    origin, direction = torch.tensor([[-3.0, 0, 0]], device=device), torch.tensor([[1.0, 0, 0]], device=device)
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], device=device)
    with ops.backend(backend), raises_naming(ValueError, "step", "1e-07", "1048576"):
        march(origin, direction, torch.ones(4, 4, 4, device=device).bool(), box, 1e-7)


@pytest.mark.parametrize("device", [pytest.param(*p.values[1:], marks=p.marks, id=p.id) for p in fused_params("march")])
@pytest.mark.parametrize("n_rays", [1, 1000])
def test_counts_of_rays_too_long_add_up_without_wrapping_around(device: str, n_rays: int):
    origins, box = torch.zeros(n_rays, 3, device=device), torch.tensor([[-1.0] * 3, [1.0] * 3], device=device)
    occupancy = torch.ones(4, 4, 4, device=device).bool()
    inputs = origins, torch.ones_like(origins), occupancy, box, 1e-7, 0.0, 1e9, None, None
    counts = torch.ops.nerfkit._march_count(*inputs)[0].tolist()
    assert min(counts) > 2**40 and sum(counts) <= 2**62


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"origins": torch.rand(2, 2)}, ValueError, ("origins", "[R, 3]", "[2, 2]")),
        ({"directions": torch.rand(3, 3)}, ValueError, ("directions", "[2, 3]", "[3, 3]")),
        ({"directions": torch.rand(2, 3).double()}, TypeError, ("origins", "directions", "float32", "float64")),
        ({"origins": torch.rand(2, 3).half()}, TypeError, ("origins", "float32", "float64", "float16")),
        ({"occupancy": torch.ones(4, 4, 4)}, TypeError, ("occupancy", "bool", "float32")),
        ({"occupancy": torch.ones(4, 4).bool()}, ValueError, ("occupancy", "[X, Y, Z]", "[4, 4]")),
        ({"box": torch.ones(6)}, ValueError, ("box", "[2, 3]", "[6]")),
        ({"step": 0.0}, ValueError, ("step", "0.0")),
        ({"step": None}, ValueError, ("step", "ladder")),
        ({"jitter": torch.rand(3)}, ValueError, ("jitter", "[2]", "[3]")),
        ({"ladder": torch.rand(4)}, ValueError, ("ladder", "step", "0.1")),
        ({"step": None, "ladder": torch.arange(4.0), "near": 0.5}, ValueError, ("ladder", "near", "0.5")),
        ({"step": None, "ladder": torch.arange(4.0), "far": 9.0}, ValueError, ("ladder", "far", "9.0")),
        ({"step": None, "ladder": torch.arange(2.0)}, ValueError, ("ladder", "3", "65536", "2")),
        ({"step": None, "ladder": torch.arange(2.0**16 + 1)}, ValueError, ("ladder", "65536", "65537")),
        ({"step": None, "ladder": torch.zeros(4)}, ValueError, ("ladder", "increasing")),
        ({"step": None, "ladder": torch.tensor([0, 1, math.inf])}, ValueError, ("ladder", "finite")),
        ({"step": None, "ladder": torch.zeros(2, 4)}, ValueError, ("ladder", "[L]", "[2, 4]")),
        ({"step": None, "ladder": torch.arange(4.0).double()}, TypeError, ("ladder", "float32", "float64")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "origins": torch.rand(2, 3), "directions": torch.rand(2, 3), "occupancy": torch.ones(4, 4, 4).bool(),
        "box": torch.rand(2, 3), "step": 0.1,
    }  # fmt: skip
    with raises_naming(error, *named):
        march(**(good | change))
