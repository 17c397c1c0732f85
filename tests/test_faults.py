# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.faults import FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_put_in(fault):
    """Its old text stands exactly once, so that code which moves takes its faults with it."""
    assert (Path("nerfkit") / fault.file).read_text().count(fault.old) == 1


def test_each_fault_has_a_name_of_its_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
