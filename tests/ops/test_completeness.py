# SPDX-License-Identifier: Apache-2.0
"""No op lacks a layer: its file, contract, definition, cases and tests."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from nerfkit import ops
from nerfkit.ops.dispatch import OPS
from tests.ops import naive
from tests.ops.cases import cases

CONTRACT = ("Args:", "Returns:", "dtype:", "Raises", "Source:", ">>>")


@pytest.mark.parametrize("op", OPS)
def test_op_is_complete(op: str):
    module = importlib.import_module(f"nerfkit.ops.{op}")
    assert getattr(ops, op) is getattr(module, op) and op in ops.__all__
    assert "torch" in ops.available(op)
    contract = inspect.getdoc(getattr(ops, op))
    assert not [part for part in CONTRACT if part not in contract]
    assert re.search("[Dd]ifferentiable", contract)
    assert hasattr(naive, op)
    assert len(cases(op)) >= 3
    assert any(0 in [len(a) for a in case.arguments() if hasattr(a, "shape") and a.dim()] for case in cases(op))


@pytest.mark.parametrize("op", OPS)
def test_op_has_all_tests(op: str):
    text = (Path(__file__).parent / f"test_{op}.py").read_text()
    assert f'checks_of("{op}")' in text
    assert "def test_bad_input" in text
    assert len(re.findall(r"^def test_", text, re.M)) >= 3, "property tests beside the shared ones"
