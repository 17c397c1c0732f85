# SPDX-License-Identifier: Apache-2.0
"""The README's code runs, and the two commands are there; links and figures: test_pages.py."""

import re
from pathlib import Path

README = Path("README.md").read_text()


def test_the_python_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict = {}
    exec(code.replace("steps, config.ops.backend = 20", "steps, config.ops.backend = 2"), names)
    assert names["rendering"].color.shape == (2500, 3) and set(names["trainer"].backends().values()) == {"torch"}


def test_the_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", Path("Makefile").read_text(), re.M))
    named = set(re.findall(r"^    make ([\w-]+)", README, re.M))
    assert {"demo", "test"} <= named <= targets
