# SPDX-License-Identifier: Apache-2.0
"""No op lacks a layer: its file, contract, definition, cases and tests."""

import importlib
import inspect
import os
import re
from pathlib import Path

import pytest

from nerfkit import ops
from nerfkit.limits import GPU_ONLY, OPS
from tests.ops import naive
from tests.ops.cases import cases
from tests.ops.test_bad_input import GOOD, WRONG_SHAPE, WRONG_TYPE
from tests.ops.test_shapes import DRAWN

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRACT = ("Args:", "Returns:", "dtype:", "Raises", "Source:", ">>>")


@pytest.mark.parametrize("op", OPS)
def test_op_is_complete(op: str):
    module = importlib.import_module(f"nerfkit.ops.{op}")
    assert getattr(ops, op) is getattr(module, op) and op in ops.__all__
    assert "torch" in ops.available(op)
    contract = inspect.getdoc(getattr(ops, op))
    assert not [part for part in CONTRACT if part not in contract]
    assert re.search("[Dd]ifferentiable", contract)
    assert op in GOOD and op in {bad[0] for bad in (*WRONG_SHAPE, *WRONG_TYPE)}
    assert f'"{op}": {op}_work' in (ROOT / "scripts" / "op_work.py").read_text()
    assert (ROOT / "cuda" / op / "NOTES.md").exists()
    if op in GPU_ONLY:  # what draws its sizes, and holds it to the chain of the others, is a file of its own
        assert (ROOT / "tests" / "ops" / f"test_{op}.py").exists()
        return
    assert hasattr(naive, op) and len(cases(op)) >= 3
    assert op in DRAWN
    assert any(0 in [len(a) for a in case.arguments() if hasattr(a, "shape") and a.dim()] for case in cases(op))


def test_what_was_to_be_built_is_there():
    if os.environ.get("NERFKIT_NATIVE") == "1":
        assert all("cpp" in ops.available(op) for op in OPS if op not in GPU_ONLY)
    if os.environ.get("REQUIRE_CUDA") == "1":
        assert all("cuda" in ops.available(op) for op in OPS)
