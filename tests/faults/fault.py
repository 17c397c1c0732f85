# SPDX-License-Identifier: Apache-2.0
"""What a fault is."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One way to be wrong."""

    name: str
    file: str  # of nerfkit; of scripts: ../scripts/...
    old: str  # occurs once
    new: str
    tests: str  # modules that should notice, without test_ and .py
