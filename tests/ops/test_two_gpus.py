# SPDX-License-Identifier: Apache-2.0
"""Tensors on the second GPU while the first is the current one."""

import pytest
import torch
from hypothesis import given, settings

from nerfkit import ops
from tests.ops.cases import CASES, Case
from tests.ops.harness import forward_and_backward, usable
from tests.ops.test_shapes import DRAWN, SHARE, check
from tests.ops.tolerances import assert_close


def check_on(device: str, case: Case, backend: str, dtype: torch.dtype) -> None:
    """Forward and backward on `device` equal the definition in float64, and nothing comes back on another device."""
    arguments = case.arguments(dtype, device)
    wide = case.widened(arguments)
    for tensor in (*case.tensors(arguments), *case.tensors(wide)):
        tensor.requires_grad_()
    with ops.backend("torch"):
        wanted = forward_and_backward(case, wide)
    with ops.backend(usable(case, backend, device, dtype)):
        got = forward_and_backward(case, arguments)
    for index, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.device == torch.device(device), f"result {index} is on {g.device}"
        if g.is_floating_point():
            assert_close(g, w, f"{case.op} result {index}")
        else:
            assert g.tolist() == w.tolist()


@pytest.mark.two_gpus
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_cases_on_the_second(case: Case, dtype: torch.dtype):
    assert torch.cuda.current_device() == 0
    # A float32 middle of march may fall into the next cell.
    check_on("cuda:1", case, "cuda", torch.float64 if case.op == "march" else dtype)
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
@pytest.mark.parametrize("op", DRAWN)
@pytest.mark.parametrize("dtype", SHARE, ids=lambda d: str(d).removeprefix("torch."))
def test_drawn_sizes_on_one_after_the_other(op: str, dtype: torch.dtype):
    """What a kernel needs to be told once a GPU, such as its shared memory, is told to each."""

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(DRAWN[op])
    def holds(drawn: tuple[Case, dict[int, str]]):
        for device in ("cuda:0", "cuda:1"):
            check(*drawn, "cuda", device, dtype)

    holds()
