# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks call, and how often."""

import pytest
import torch

from scripts.bench_ops import difference
from scripts.work import Side
from tests.naming import raises_naming


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1.5])
def test_what_is_timed_gives_the_same(wrong: float):
    wanted = torch.tensor([0.0, 1.0])
    assert difference(lambda: wanted, lambda: wanted, 1e-3) == 0
    with raises_naming(AssertionError, "5.0e-01" if wrong == 1.5 else wrong):
        difference(lambda: torch.tensor([0.0, wrong]), lambda: wanted, 1e-3)


def test_copies_are_equal_and_lie_elsewhere():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.nn.Parameter(torch.randn(3))
    sides = Side(lambda x: x["x"], {"x": x, "y": torch.ones(2), "weight": weight}, ("x",)).copies(3)
    assert len({side.inputs["x"].data_ptr() for side in sides}) == 3
    assert all(side.inputs["weight"] is weight for side in sides)
    for side in sides:
        copy = side.inputs["x"]
        assert torch.equal(copy, x) and copy.stride() == x.stride() and copy.is_leaf and copy.requires_grad
        assert not side.inputs["y"].requires_grad
