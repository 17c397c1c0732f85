# SPDX-License-Identifier: Apache-2.0
"""Pages with code run as they stand, and their tables are those of the measurements beside them."""

import json
import re
from pathlib import Path

import pytest

from scripts import bench_train
from scripts.bench_ops import markdown, summary


def test_the_modules_page_runs():
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", Path("docs/nn.md").read_text(), re.S):
        exec(code, names)
    assert names["features"].shape == (1000, 16)


@pytest.mark.parametrize("name", ["h200", "h200_tutorials", "cpu", "cpu_avx2", "cpu_zen5", "cpu_xeon"])
def test_the_benchmark_page_shows_what_was_measured(name: str):
    page = Path("docs/benchmarks.md").read_text()
    assert markdown(json.loads(Path(f"docs/benchmarks/{name}.json").read_text())).strip() in page


def test_the_benchmark_page_shows_how_other_sizes_compare():
    measured = json.loads(Path("docs/benchmarks/h200_sizes.json").read_text())
    assert summary(measured) in Path("docs/benchmarks.md").read_text()


def test_a_summary_compares_with_the_better_layout():
    rows = [
        {"case": "a NCHW", "ms": 2.0, "baseline_ms": 4.0},
        {"case": "a NHWC", "ms": 1.0, "baseline_ms": 1.5},
        {"case": "b", "ms": 1.0, "baseline_ms": 3.0},
    ]
    rows = [{"op": "depthwise_conv2d", "part": "forward", "device": "cuda"} | row for row in rows]
    lines = summary({"results": rows}).splitlines()
    assert lines[2] == "| `depthwise_conv2d` | 3 | 1 | 1.5x | 0.75x |"
    assert lines[-1] == "| `depthwise_conv2d` a NCHW | forward | 2.000 | 0.75x |"


def test_the_benchmark_page_shows_how_it_trained():
    runs = json.loads(Path("docs/benchmarks/train_h200.json").read_text())["runs"]
    assert bench_train.markdown(runs) in Path("docs/benchmarks.md").read_text()
