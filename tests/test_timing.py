# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks call, and how often."""

import pytest
import torch

from scripts.bench_ops import difference, in_turns_with_limit
from scripts.timing import LONGEST_AHEAD, Timer, turns_of
from scripts.work import Side, Work
from tests.naming import raises_naming

TURNS = [  # calls, seconds, seconds to queue them, turns
    (7, 0.2, 1e-5, 5), (7, 0.9, 1e-5, 3), (7, 2.5, 1e-5, 1), (64, 0.2, 1e-5, 1),
    (7, 0.2, LONGEST_AHEAD / 28, 2), (7, 0.2, LONGEST_AHEAD, 1), (1, 0.1, 1e-5, 1),
]  # fmt: skip


@pytest.mark.parametrize("calls, elapsed, queued, turns", TURNS)
def test_short_rows_repeat(calls: int, elapsed: float, queued: float, turns: int):
    assert turns_of(calls, elapsed, queued) == turns


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


@pytest.mark.parametrize("n_bytes, products, limited", [(2**16, 0, True), (0, 2**20, True), (0, 0, False)])
def test_a_limit_on_a_cpu_is_a_copy_or_a_product(n_bytes: int, products: int, limited: bool):
    x = {"x": torch.ones(4)}
    work = Work("op", "case", x, lambda x: x["x"], lambda x: x["x"], "same", n_bytes, 2 * n_bytes, products=products)
    assert work.least("both") == (3 * n_bytes, 3 * products) and work.least("inference") == (0, 0)
    fused, baseline, limit = in_turns_with_limit(work, "forward", Timer("cpu", repeats=2, warmup=0))
    assert fused > 0 and baseline > 0 and (limit > 0) == limited
