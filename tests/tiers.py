# SPDX-License-Identifier: Apache-2.0
"""Which tests wait: `make test-fast` runs what is neither slow nor long, `make test` what is not long, `make test-all`
everything. A test belongs to a tier if its file or its function is named below, or if it is marked so itself."""

from __future__ import annotations

import pytest

TIERS = {
    "slow": (  # they start processes, compile, or train
        "tests/package/test_build.py",
        "tests/package/test_compatibility.py",
        "tests/package/test_wheel.py",
        "tests/package/test_sdist.py",
        "tests/test_add_an_op.py",
        "tests/test_command_results.py",
        "tests/test_commands.py",
        "tests/test_docs_site.py",
        "tests/test_parallel.py",
        "tests/test_parallel_gpus.py",
        "tests/test_scripts.py",
        "tests/test_training.py",
        "tests/test_viewer.py",
        "tests/test_viewer_browser.py",
        "tests/test_weak_captures.py",
        "tests/ops/test_forward_mode.py",
        "tests/ops/test_large.py",
        "tests/ops/test_native.py",
        "tests/ops/test_shapes.py",
        "test_a_signal_saves_and_says_how_to_resume",
        "test_any_type_from_any",
        "test_lines_that_no_cache_keeps",
        "test_no_backend_of_matplotlib_is_forced",
        "test_no_value_on_the_command_line_ends_in_a_traceback",
        "test_the_package_is_not_imported_without_a_viewer",
        "test_one_module_costs_no_more_than_itself",
        "test_results_that_no_cache_keeps",
        "test_sizes_that_kernels_branch_on",
        "test_names_with_umlauts_in_any_locale",
        "test_only_the_torch_of_a_base_interpreter_is_used",
        "test_the_python_page_runs",
        "test_two_processes_do_not_train_in_one_folder",
        "test_they_compile_to_one_graph_without_a_state",
        "test_threads_with_channels_in_common",
        "test_compiles",
        "test_gradient",
    ),
    "long": (  # minutes: instruction sets, what no cache keeps, builds
        "test_ahead_of_time_it_builds_with_the_package",
        "test_kernels_for_other_cpus",
        "test_images_that_no_cache_keeps",
        "test_torchrun_itself",
    ),
}


def _is_of(item: pytest.Item, name: str) -> bool:
    """Whether a test is in the file `tests/...`, or its function is called `name`."""
    if name.startswith("tests/"):
        return item.nodeid.startswith(name)
    return getattr(item, "originalname", item.name) == name


def mark(item: pytest.Item) -> None:
    """Mark a test with its tiers."""
    for tier, names in TIERS.items():
        if any(_is_of(item, name) for name in names):
            item.add_marker(tier)
