# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import grid_encode
from nerfkit.ops.grid_encode import level_entries
from tests.naming import raises_naming
from tests.ops.harness import checks_of, drawn_backends

TestGridEncode = checks_of("grid_encode")


def table_of(resolutions: list[int], max_entries: int, features: int, value: float | None = None) -> torch.Tensor:
    rows = sum(level_entries(n, max_entries) for n in resolutions)
    return torch.randn(rows, features).double() if value is None else torch.full((rows, features), value).double()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 9), resolutions=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(sorted),
    log2=st.integers(0, 8), seed=st.integers(0, 99), backend=drawn_backends("grid_encode"),
)  # fmt: skip
def test_constant_grid_gives_the_constant(n: int, resolutions: list[int], log2: int, seed: int, backend):
    points = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 - 1
    table = table_of(resolutions, 2**log2, 2, 0.7)
    with ops.backend(backend[0]):
        out = grid_encode(points.to(backend[1]), table.to(backend[1]), resolutions, 2**log2)
    torch.testing.assert_close(out.cpu(), torch.full((n, 2 * len(resolutions)), 0.7).double())


def test_gradient_at_a_cell_border_is_the_upper_cells():
    table = torch.zeros(32, 1).double()
    table[18:] = 1.0  # rises in the cell above x = 1/2 only
    points = torch.tensor([[0.5, 0.3, 0.3]]).double().requires_grad_()
    (gradient,) = torch.autograd.grad(grid_encode(points, table, [2], 32).sum(), points)
    assert gradient[0].tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_gradient_outside_is_zero():
    points = torch.tensor([[1.2, -0.5, 0.3]]).double().requires_grad_()
    (gradient,) = torch.autograd.grad(grid_encode(points, table_of([4], 256, 1), [4], 256).sum(), points)
    assert gradient[0, 0] == 0 and gradient[0, 1] == 0 and gradient[0, 2] != 0


def test_not_a_number_reads_inside_the_table():
    points = torch.tensor([[float("nan"), 0.5, float("inf")]])
    out = grid_encode(points, table_of([4, 9], 64, 1).float(), [4, 9], 64)
    assert out.shape == (1, 2) and out.isnan().all()


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"points": torch.rand(2, 4)}, ValueError, ("points", "[N, 3]", "[2, 4]")),
        ({"points": torch.rand(2, 3).half()}, TypeError, ("points", "float32", "float64", "float16")),
        ({"table": torch.rand(9, 2)}, ValueError, ("table", "32", "9")),
        ({"table": torch.rand(32, 2).long()}, TypeError, ("table", "float32", "int64")),
        ({"resolutions": [4, 2]}, ValueError, ("resolutions", "[4, 2]")),
        ({"max_entries": 48}, ValueError, ("max_entries", "48")),
    ],
)
def test_bad_input(change, error, named):
    good = {"points": torch.rand(2, 3), "table": torch.rand(32, 2), "resolutions": [2], "max_entries": 32}
    with raises_naming(error, *named):
        grid_encode(**(good | change))
