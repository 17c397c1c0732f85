# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.tiers import TIERS


@pytest.mark.parametrize("name", [name for names in TIERS.values() for name in names])
def test_every_name_is_that_of_a_test(name: str):
    """One that is no more would leave a tier without it."""
    root = Path(__file__).resolve().parent
    if name.startswith("tests/"):
        assert (root.parent / name).exists()
    else:
        text = "".join(file.read_text() for file in root.rglob("test_*.py"))
        text += (root / "ops" / "harness.py").read_text()
        assert f"def {name.removeprefix('::')}" in text
