# SPDX-License-Identifier: Apache-2.0
"""The runs in tests/golden are of nerfkit 0.2.0: whatever is released later renders, scores and resumes them.

`run_format_1` was trained by `nerfkit train data/demo --config demo` with a smaller model and 400 steps.
`run_format_1_place` was trained by `nerfkit train data/room --data.downscale 4`, with light and poses learned, and has
a crop. Both were rendered by `nerfkit render RUN --cameras test --size W H`. If this test fails, mend what reads a
run; the files stay.
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
DEMO, ROOM = ROOT / "data" / "demo", ROOT / "data" / "room"
OBJECT, PLACE = "run_format_1", "run_format_1_place"


def unpacked(name: str, folder: Path) -> Path:
    zipfile.ZipFile(ROOT / "tests" / "golden" / f"{name}.zip").extractall(folder / "run")
    return folder / "run"


@pytest.mark.parametrize("name, size, image", [(OBJECT, (50, 50), "r_0.png"), (PLACE, (60, 40), "frame_00009.png")])
def test_they_render_the_same_picture(name: str, size: tuple[int, int], image: str, tmp_path: Path):
    run = unpacked(name, tmp_path)
    call("render.py", run, "--cameras", "test", "--size", *size, "--device", "cpu", "--out", tmp_path / "again")
    before, after = (imageio.imread(folder / image).astype(int) for folder in (run / "render/test", tmp_path / "again"))
    assert before.std() > 20 and np.abs(before - after).max() <= 2


def test_one_scores_the_same(tmp_path: Path):
    run = unpacked(OBJECT, tmp_path)
    before = json.loads((run / "metrics.json").read_text())
    call("eval.py", run, "--data", DEMO, "--device", "cpu")
    after = json.loads((run / "metrics.json").read_text())
    assert after["psnr"] == pytest.approx(before["psnr"], abs=0.01) and after["steps"] == 400


@pytest.mark.parametrize("name, data", [(OBJECT, DEMO), (PLACE, ROOM)])
def test_their_trainings_go_on(name: str, data: Path, tmp_path: Path):
    run = unpacked(name, tmp_path)
    call("train.py", "--resume", run, "--data.path", data, "--trainer.steps", 403, "--eval.after_training", "false")
    assert checkpoint.load(run)[1]["step"] == 403
