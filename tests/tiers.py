# SPDX-License-Identifier: Apache-2.0
"""Which tests wait: `make test-fast` runs what is neither slow nor long, `make test` what is not long, `make test-all`
everything. A test belongs to a tier if a name below is part of its own."""

from __future__ import annotations

import pytest

TIERS = {
    "slow": (  # they start processes, compile, or train
        "tests/package/",
        "tests/test_add_an_op.py",
        "tests/test_checkpoint.py",
        "tests/test_commands.py",
        "tests/test_docs_site.py",
        "tests/test_scripts.py",
        "tests/test_training.py",
        "tests/ops/test_forward_mode.py",
        "tests/ops/test_instruction_sets.py",
        "tests/ops/test_large.py",
        "tests/ops/test_native.py",
        "tests/ops/test_shapes.py",
        "test_no_value_on_the_command_line_ends_in_a_traceback",
        "test_the_python_page_runs",
        "::test_compiles",
        "::test_gradient[",
        "test_sizes_that_kernels_branch_on",
        "test_pictures_that_no_cache_keeps",
        "test_lines_that_no_cache_keeps",
        "test_threads_with_channels_in_common",
    ),
    "long": (  # minutes: architectures, instruction sets, empty environments
        "test_kernels_for_other_cpus",
    ),
}


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests of each tier."""
    for tier, names in TIERS.items():
        for item in items:
            if any(name in item.nodeid for name in names):
                item.add_marker(tier)
