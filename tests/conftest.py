# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: one seed, one thread, devices, and skips that cannot lie."""

from __future__ import annotations

import os

import pytest
import torch

from nerfkit import ops
from nerfkit.ops import dispatch

torch.set_num_threads(1)


def pytest_report_header() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    built = {op: "+".join(ops.available(op)) for op in dispatch.OPS}
    return f"torch {torch.__version__}, GPU: {gpu}, backends: {built}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        if os.environ.get("REQUIRE_CUDA") == "1":
            pytest.fail("REQUIRE_CUDA=1, but torch sees no GPU")
        pytest.skip("needs a GPU")


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(0)
    yield
    ops.set_backend("auto")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request) -> str:
    return request.param
