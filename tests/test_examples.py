# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ run as they say, on a small capture."""

import subprocess
import sys
from pathlib import Path

import pytest

import nerfkit
from tests.odd_captures import write_capture
from tests.rigs import ring

EXAMPLES = Path("examples").resolve()
SMALL = "--device cpu --trainer.steps 3 --trainer.samples 256 --sampling.occupancy_resolution 8".split()


def run(*words: object) -> str:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    return write_capture(tmp_path_factory.mktemp("examples") / "scene", ring(20)).resolve()


@pytest.mark.slow
def test_own_loss(capture):
    assert "loss.l1" in (out := run("own_loss.py", capture, 2)) and "loss.distortion" in out and "psnr" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--trainer.loss", "own_loss:robust"),
        ("--model.kind", "difference", "--model.module", "own_encoder"),
        ("--model.kind", "blobs", "--model.module", "own_model"),
    ],
    ids=["loss", "encoder", "model"],
)
def test_by_command(capture, words, tmp_path):
    """And the run goes on with its own code only if that is named again."""
    out = tmp_path / "run"
    run("-m", "nerfkit", "train", capture, *SMALL, *words, "--out", out)
    module = ("--module", words[3]) if len(words) == 4 else ()
    run("-m", "nerfkit", "eval", out, "--device", "cpu", *module)
    again = ["-m", "nerfkit", "train", "--resume", out, "--trainer.steps", "5"]
    refused = subprocess.run([sys.executable, *map(str, again)], capture_output=True, text=True, cwd=EXAMPLES)
    assert refused.returncode == 1 and words[1] in refused.stderr
    assert "5" in run(*again, *words[len(words) - 2 :])


@pytest.mark.slow
def test_grid_only():
    assert float(run("grid_only.py").split()[2]) < 0.02


def test_an_own_stage_takes_the_recipe_of_the_scene(capture, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_encoder import OwnEncoder

    scene = nerfkit.load_scene(str(capture))
    plain, own = (nerfkit.Config().resolved(scene, "cpu", kind) for kind in (nerfkit.Renderer, OwnEncoder))
    assert plain == own
    model = OwnEncoder(own)
    assert "depthwise_conv1d" not in model.used_ops and {"lltm", "grid_encode"} < set(model.used_ops)
    assert model.silent_modules == ()
