# SPDX-License-Identifier: Apache-2.0
"""`make demo` trains with ops of our own: feature grid, convolution and recurrence along the rays, among others."""

from collections import Counter

import pytest

import nerfkit
from nerfkit import ops
from nerfkit.config import load, preset_path
from nerfkit.ops import dispatch

OPS = {"grid_encode", "depthwise_conv1d", "lltm"}


@pytest.fixture
def called(monkeypatch) -> Counter:
    """How often each op is called from now on, on which backend."""
    counts = Counter()
    for (op, backend), function in list(dispatch._implementations.items()):

        def counted(*arguments, which=(op, backend), function=function):
            counts[which] += 1
            return function(*arguments)

        monkeypatch.setitem(dispatch._implementations, (op, backend), counted)
    return counts


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_step_of_the_demo_runs_its_ops(backend: str, called: Counter):
    config = load([preset_path("orrery_cpu")])
    config.data.downscale, config.trainer.samples, config.device, config.ops.backend = 20, 256, "cpu", backend
    trainer = nerfkit.Trainer(config)
    assert set(trainer.model.used_ops) >= OPS
    called.clear()
    for _ in range(2):
        trainer.train_step()
    wanted = "cpp" if backend == "auto" and "cpp" in ops.available("lltm") else "torch"
    assert all(called[op, wanted] >= 2 for op in OPS), called
    assert {on for _, on in called} == {wanted}, "no other backend runs"
