# SPDX-License-Identifier: Apache-2.0
"""Tensors on the second GPU while the first is the current one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from tests.ops.cases import CASES, Case
from tests.ops.harness import LAYOUTS, assert_close, dtype_name, forward_and_backward, usable
from tests.ops.test_shapes import DRAWN, SHARE, check


@pytest.mark.two_gpus
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_cases_on_the_second(case: Case, dtype: torch.dtype):
    """Forward and backward equal the definition in float64, and nothing comes back on another device."""
    dtype = torch.float64 if case.op == "march" else dtype  # a float32 middle may fall into the next cell
    arguments = case.arguments(dtype, "cuda:1")
    wide = case.widened(arguments)
    for tensor in (*case.tensors(arguments), *case.tensors(wide)):
        tensor.requires_grad_()
    with ops.backend("torch"):
        wanted = forward_and_backward(case, wide)
    with ops.backend(usable(case, "cuda", "cuda:1", dtype)):
        got = forward_and_backward(case, arguments)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.device == torch.device("cuda:1"), f"result {index} is on {g.device}"
        if g.is_floating_point():
            assert_close(g, w, f"{case.op} result {index}")
        else:
            assert g.tolist() == w.tolist()
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
def test_drawn_sizes_on_one_after_the_other(name: str, dtype: torch.dtype):
    """What a kernel needs to be told once a GPU, such as its shared memory, is told to each."""

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(DRAWN[name], st.sampled_from(LAYOUTS))
    def holds(case: Case, layout):
        for device in ("cuda:0", "cuda:1"):
            check(case, layout, "cuda", device, dtype)

    holds()
