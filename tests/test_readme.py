# SPDX-License-Identifier: Apache-2.0
"""The README's code runs, and its figures are the measured ones."""

import json
import re
from pathlib import Path

README = Path("README.md").read_text()


def test_the_python_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict = {}
    exec(code, names)
    assert names["rendering"].color.shape == (1, 3)


def test_every_file_that_is_named_exists():
    for name in re.findall(r"(?:configs|docs|scripts|nerfkit)/[\w.]+\.(?:toml|png|py|json)", README):
        assert Path(name).exists(), name


def test_figures_are_the_measured_ones():
    for run in json.loads(Path("docs/measured.json").read_text()):
        assert f"{run['psnr']:.2f} dB" in README, run["what"]


def test_figures_of_training_on_a_gpu_are_the_measured_ones():
    page = Path("docs/benchmarks.md").read_text()
    on_a_gpu = [line for line in README.splitlines() if "| H200 |" in line]
    assert on_a_gpu and all(re.search(r"[\d.]+(?= dB)", line)[0] in page for line in on_a_gpu)
    steps = [line.split("|")[8].strip() for line in page.splitlines() if line.startswith(("| lego", "| orrery"))]
    assert "1.83" in steps and all(ms in steps for ms in re.findall(r"([\d.]+) ms", README))


def test_the_price_of_deterministic_is_the_measured_one():
    runs = json.loads(Path("docs/benchmarks/deterministic_h200.json").read_text())["runs"]
    plain, same = (
        [r["ms_per_step"] for r in runs if r["preset"]["deterministic"] is wanted] for wanted in (False, True)
    )
    assert len(plain) == len(same) == 2
    assert f"a step then takes {sum(same) / sum(plain):.2f} times as long on an H200" in README
