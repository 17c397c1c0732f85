# SPDX-License-Identifier: Apache-2.0
"""tests/golden/run_format_1.zip is a run of nerfkit 0.2.0: whatever is released later renders, scores and resumes it.

It was trained by `nerfkit train data/demo --config demo` with a smaller model and 400 steps, and rendered by `nerfkit
render RUN --cameras test --size 50 50`. If this test fails, mend what reads a run; the file stays.
"""

import json
import zipfile
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest

from nerfkit.training.run import checkpoint
from tests.processes import ROOT, call

pytestmark = pytest.mark.slow
DEMO = ROOT / "data" / "demo"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    zipfile.ZipFile(ROOT / "tests" / "golden" / "run_format_1.zip").extractall(tmp_path / "run")
    return tmp_path / "run"


def test_it_renders_the_same_picture(run: Path, tmp_path: Path):
    call("render.py", run, "--cameras", "test", "--size", 50, 50, "--device", "cpu", "--out", tmp_path / "again")
    before, after = (
        imageio.imread(folder / "r_0.png").astype(int) for folder in (run / "render/test", tmp_path / "again")
    )
    assert before.std() > 20 and np.abs(before - after).max() <= 2


def test_it_scores_the_same(run: Path):
    before = json.loads((run / "metrics.json").read_text())
    call("eval.py", run, "--data", DEMO, "--device", "cpu")
    after = json.loads((run / "metrics.json").read_text())
    assert after["psnr"] == pytest.approx(before["psnr"], abs=0.01) and after["steps"] == 400


def test_its_training_goes_on(run: Path):
    call("train.py", "--resume", run, "--data.path", DEMO, "--trainer.steps", 403, "--eval.after_training", "false")
    assert checkpoint.load(run)[1]["step"] == 403
