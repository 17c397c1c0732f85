# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from nerfkit import ops
from nerfkit.contraction import exponential_edges
from nerfkit.ops import march
from nerfkit.ops.packed import truncate_offsets
from tests.naming import raises_mentioning
from tests.ops.cases import cases, unit_vectors
from tests.ops.harness import backend_params, dtype_name, fused_params

every_backend = pytest.mark.parametrize("backend, device", backend_params("march"))
every_fused = pytest.mark.parametrize("backend, device", fused_params("march"))
both_floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=dtype_name)
BOX = torch.tensor([[-1.0] * 3, [1.0] * 3])
FULL = torch.ones(4, 4, 4, dtype=torch.bool)


def march_on(backend: str, device: str, *inputs, **options) -> tuple[torch.Tensor, ...]:
    moved = [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with ops.backend(backend):
        return tuple(x.cpu() for x in march(*moved, **options))


@every_backend
@pytest.mark.parametrize("case", [c for c in cases("march") if "edges" not in c.name], ids=lambda case: case.name)
def test_float32_differs_at_cell_borders_alone(case, backend: str, device: str):
    """In float32 a middle may fall into the next cell: few intervals differ, and all lie in the box."""
    t_starts, t_ends, ray_offsets = march_on(backend, device, *case.arguments(torch.float32))
    wide = march_on(backend, device, *case.arguments(torch.float64))
    assert abs(len(t_starts) - len(wide[0])) <= 0.02 * len(wide[0]) + 1
    assert ray_offsets[-1] == len(t_starts) and (ray_offsets.diff() >= 0).all()
    torch.testing.assert_close(t_ends - t_starts, torch.full_like(t_starts, case.arguments()[4]), rtol=1e-4, atol=1e-5)


@every_fused
@pytest.mark.parametrize("cells_a_step", [0.05, 0.12, 0.6, 3.0])
@pytest.mark.parametrize("away", [2.0, 3e5])
def test_no_cell_is_missed_by_larger_steps_or_from_far_away(backend, device, cells_a_step: float, away: float):
    """The less a look at the coarse grid tells of an interval, the more looks there are."""
    directions = unit_vectors(150)
    origins = 0.5 * torch.randn(150, 3).double() - away * directions
    inputs = origins, directions, torch.rand(45, 64, 37) < 0.01, BOX.double(), cells_a_step * 2 / 64
    got, wanted = march_on(backend, device, *inputs), march_on("torch", "cpu", *inputs)
    assert got[2].tolist() == wanted[2].tolist()
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-12, atol=1e-12)


@every_backend
@both_floats
@pytest.mark.parametrize("step", [0.02, 0.001])
def test_rows_of_a_capacity_are_whole_rays_then_zeros(backend: str, device: str, dtype: torch.dtype, step: float):
    directions = unit_vectors(200).to(dtype)
    inputs = -2 * directions, directions, torch.rand(16, 16, 15) < 0.3, BOX.to(dtype), step
    t_starts, t_ends, ray_offsets = march_on(backend, device, *inputs)
    n = len(t_starts)
    for capacity in (0, 1, n // 2, n // 2 + 1, n - 1, n, n + 1, n + 5000):
        got = march_on(backend, device, *inputs, capacity=capacity)
        used = truncate_offsets(ray_offsets, capacity)[0][-1].item()
        assert torch.equal(got[2], ray_offsets)
        for rows, all_rows in zip(got[:2], (t_starts, t_ends), strict=True):
            assert len(rows) == capacity and torch.equal(rows[:used], all_rows[:used]) and not rows[used:].any()


@every_fused
@both_floats
def test_edges_of_many_intervals_and_single_cells(backend: str, device: str, dtype: torch.dtype):
    """The definition's bits: rays of more chunks with samples than are stored, cells that one interval alone meets."""
    box = torch.tensor([[-1.0, -2, -1], [1, 2, 3]], dtype=dtype)
    origins, jitter = torch.randn(300, 3, dtype=dtype), torch.rand(300, dtype=dtype)
    t_edges = exponential_edges(0.0, 400.0, 0.004, 1 / 256).to(dtype)
    for occupancy in (torch.rand(128, 120, 130) < 1e-3, torch.rand(16, 16, 16) < 0.6):
        inputs = origins, unit_vectors(300).to(dtype), occupancy, box, None, 0.0, math.inf, jitter, None, t_edges
        got, wanted = march_on(backend, device, *inputs), march_on("torch", "cpu", *inputs)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)) and wanted[2][-1] > 300


@every_backend
@both_floats
def test_rays_that_edges_leave_without_samples(backend: str, device: str, dtype: torch.dtype):
    """Only the first has samples: no direction, numbers that are not finite, too far away."""
    bad = [[0.0, 0, 0], [math.nan, 0, 1], [0, math.inf, 0]]
    far = [[1e37 if dtype == torch.float32 else 1e300, 0, 0]]
    directions = torch.tensor([[0.0, 0, 1], *bad, *[[0.0, 0, 1]] * 4], dtype=dtype)
    origins = torch.tensor([[0.0, 0, 0]] * 4 + bad[1:] + [[0, -math.inf, 1]] + far, dtype=dtype)
    t_edges = exponential_edges(0.0, 50.0, 0.5, 0.1).to(dtype)
    got = march_on(backend, device, origins, directions, FULL, BOX.to(dtype), None, t_edges=t_edges)
    assert got[2].diff().tolist() == [len(t_edges) - 2, *[0] * 7]
    assert torch.equal(got[0], t_edges[:-2]) and torch.equal(got[1], t_edges[1:-1])
    inner = torch.zeros_like(FULL)
    inner[1:3, 1:3, 1:3] = True
    within = march_on(backend, device, origins, directions, inner, BOX.to(dtype), None, t_edges=t_edges)
    assert within[0].tolist() == [0.0, 0.5] and within[1].tolist() == [0.5, 1.0]  # the box, in cells of the middle


@every_backend
@pytest.mark.parametrize("n_rays, cells", [(0, (4, 4, 4)), (70, (4, 0, 4))])
@pytest.mark.parametrize("distances", [{"step": 0.1}, {"step": None, "t_edges": torch.arange(5.0)}])
def test_no_rays_or_no_cells(backend: str, device: str, n_rays: int, cells: tuple, distances: dict):
    rays = torch.rand(n_rays, 3)
    for capacity in (None, 9):
        got = march_on(backend, device, rays, rays, torch.ones(cells).bool(), BOX, capacity=capacity, **distances)
        assert got[0].tolist() == got[1].tolist() == [0.0] * (capacity or 0)
        assert got[2].tolist() == [0] * (n_rays + 1)


@every_fused
def test_many_tiles_of_rays_and_cells_that_are_not_aligned(backend: str, device: str):
    """Rays of very different length, and a grid that neither begins nor ends with a word."""
    directions = unit_vectors(70001)  # more tiles than a block of the kernel adds up at once
    occupancy = (torch.rand(9 * 10 * 12 + 1, device=device) < 0.1)[1:].view(9, 10, 12)
    inputs = -2 * directions, directions, occupancy, BOX.double(), 0.05
    got, wanted = march_on(backend, device, *inputs), march_on("torch", device, *inputs)
    assert torch.equal(got[2], wanted[2])
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-12, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("step", [0.01, None])
def test_a_graph_with_a_capacity(step: float | None):
    """A replay gives what a call with its inputs gives, whatever the one before has left in memory."""
    directions, occupancy = unit_vectors(3000).float().cuda(), torch.ones(20, 20, 20, device="cuda").bool()
    inputs = -2 * directions, directions, occupancy, BOX.cuda(), step
    options = {"capacity": 20000}
    if step is None:
        options["t_edges"] = exponential_edges(0.0, 9.0, 0.01, 0.01).float().cuda()
    with ops.backend("cuda"):
        march(*inputs, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = march(*inputs, **options)
        for filled in (0.3, 0.0, 0.01):
            occupancy.copy_(torch.rand(20, 20, 20, device="cuda") < filled)
            graph.replay()
            wanted = march(*inputs, **options)
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@every_backend
@pytest.mark.parametrize("n_rays", [1, 1000])  # whose counts must not wrap around when they are added up
def test_a_step_far_too_small_is_an_error(backend: str, device: str, n_rays: int):
    origins, directions = torch.tensor([[-3.0, 0, 0]]), torch.tensor([[1.0, 0, 0]])
    with raises_mentioning(ValueError, "step", "1e-07", "1048576"):
        march_on(backend, device, origins.repeat(n_rays, 1), directions.repeat(n_rays, 1), FULL, BOX, 1e-7)
