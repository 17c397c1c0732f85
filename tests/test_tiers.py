# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from tests.tiers import TIERS


def test_every_name_is_that_of_a_test():
    """One that is no more would leave its tier without a word."""
    root = Path(__file__).resolve().parent
    text = "".join(file.read_text() for file in (*root.rglob("test_*.py"), root / "ops" / "harness.py"))
    for name in (name for names in TIERS.values() for name in names):
        assert (root.parent / name).exists() if name.startswith("tests/") else f"def {name}(" in text, name
