# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_put_in(fault):
    """Its old text stands exactly once, so that code which moves takes its faults with it."""
    assert (ROOT / "nerfkit" / fault.file).read_text().count(fault.old) == 1
