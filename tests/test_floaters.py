# SPDX-License-Identifier: Apache-2.0
"""Density right before cameras among those of the training is counted, though training has no samples there."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nerfkit.commands import train
from nerfkit.errors import RunError
from nerfkit.model.decoder import Decoder
from tests.naming import assert_names, raises_naming
from tests.odd_captures import SMALL, write_capture
from tests.processes import run_main
from tests.rigs import ring
from tests.shipped_scene import ROOT

sys.path.insert(0, str(ROOT))

from scripts import measure_floaters  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A place and two runs of it, one in a box from distance 0 on."""
    folder = tmp_path_factory.mktemp("floaters")
    points = np.array([0, 0, 0.5]) + 0.5 * np.random.default_rng(0).normal(size=(300, 3))
    data = ["--data.path", str(write_capture(folder / "place", ring(20), points=points))]
    assert run_main(train, *SMALL, *data, "--out", str(folder / "run")) == 0
    in_box = ("--sampling.kind", "box", "--sampling.near", "0")
    assert run_main(train, *SMALL, *data, *in_box, "--out", folder / "box") == 0
    return folder


def measured(run: Path, *arguments: str) -> dict:
    out = run.parent / "floaters.json"
    out.unlink(missing_ok=True)
    assert measure_floaters.main([str(run), "--frames", "2", "--device", "cpu", "--out", str(out), *arguments]) == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("density, least, most", [(0.0, 0, 0), (1e4, 1, 1)], ids=["air", "fog"])
def test_what_is_before_near_is_counted(folder, monkeypatch, capsys, density: float, least: float, most: float):
    real, load_run = Decoder.density, measure_floaters.load_run

    def occupied(*arguments):
        run = load_run(*arguments)
        run.model.sampler.occupancy.fill_(True)
        return run

    monkeypatch.setattr(Decoder, "density", lambda self, x: (real(self, x)[0] * 0 + density, real(self, x)[1]))
    monkeypatch.setattr(measure_floaters, "load_run", occupied)
    found = measured(folder / "run")
    assert found["path"] == "orbit" and found["near"] > 0.1 and found["steps"] == 2
    assert found["pixels"] == 2 * 24 * 16 and least <= found["share"] <= most
    assert found["share"] == pytest.approx(np.mean(found["frames"]), abs=1e-5)
    line = capsys.readouterr().out.splitlines()[-1]
    assert_names(line, f"{found['share']:.2%}", "768", "0.5%", "within" if density == 0 else "more than")
    farther = measured(folder / "run", "--near", str(3 * found["near"]), "--path", "test")
    assert farther["path"] == "test" and farther["pixels"] == 3 * 24 * 16
    assert least <= farther["share"] <= most


def test_without_a_near_it_has_to_be_given(folder):
    with raises_naming(RunError, "sampling.near", "--near"):
        measured(folder / "box")
    assert 0 <= measured(folder / "box", "--near", "0.5", "--size", "10", "6")["share"] <= 1
    with raises_naming(RunError, "--out", "exists"):
        measure_floaters.main([str(folder / "run"), "--out", str(folder / "run")])
