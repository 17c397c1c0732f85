# SPDX-License-Identifier: Apache-2.0
"""scripts/sweep.py: what was measured is not measured again, and a verdict needs more than the spread of the seeds."""

import pytest

from nerfkit.config import FIELD
from nerfkit.config.recipe import OTHERWISE
from nerfkit.errors import UserError
from scripts import bench_train, sweep
from tests.naming import assert_names, raises_naming

BASE = {"lego": [30.0, 30.2, 30.1], "fox": [25.0, 25.3, 24.9]}
VERDICTS = {
    "better": ({"lego": [31.0, 31.1, 31.2], "fox": [25.6, 25.9, 25.7]}, "better", ""),
    "worse": ({"lego": [29.0, 29.1, 29.2], "fox": [24.1, 24.3, 24.2]}, "worse", "2 of 2"),
    "the spread": ({"lego": [30.1, 30.3, 30.0], "fox": [25.2, 24.9, 25.2]}, "no clear difference", ""),
    "one scene hurt": ({"lego": [32.0, 32.1, 32.2], "fox": [24.1, 24.0, 24.2]}, "no clear difference", "1 of 2"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_follows_from_differences_and_spreads(name: str):
    scores, wanted, count = VERDICTS[name]
    values = {(case, scene): list(v) for case, by in (("a", BASE), ("b", scores)) for scene, v in by.items()}
    assert_names(sweep.verdict(values, "a", "b", list(BASE)), wanted, count)


MEASURED = {"rays_per_step": 1, "samples_per_step": 1, "fps": 1, "peak_gb": None, "steps": 9, "ms_per_step": 1.0}


def test_a_sweep_goes_on_where_it_stopped(toy_scene, tmp_path, monkeypatch, capsys):
    asked = []

    def measure(options, case, seed, scene, train, test, device) -> dict:
        settings = bench_train.varied(options, case.changes, seed)
        asked.append((case.title, seed, settings.sampling.step, settings.model.hidden))
        budget = {"preset": {"max_seconds": settings.trainer.max_seconds}, "curve": [{"seconds": 7.0}]}
        return MEASURED | {"seed": seed, "seconds": 7.0, "psnr": 20.0 + seed} | budget

    monkeypatch.setattr(bench_train, "measure", measure)
    arguments = ["--json", str(tmp_path / "s.json"), "--scenes", f"toy={toy_scene},model.hidden=8", "--device", "cpu"]
    default = bench_train.config.Config().sampling.step
    assert sweep.main([*arguments, "--seeds", "0", "1", "--cases", "", "near:sampling.step=0.02"]) == 0
    assert asked == [("default", 0, default, 8), ("default", 1, default, 8), ("near", 0, 0.02, 8), ("near", 1, 0.02, 8)]
    assert sweep.main([*arguments, "--seeds", "0", "1", "2", "--cases", "", "model.hidden=4"]) == 0
    assert asked[4:] == [("default", 2, default, 8), *(("model.hidden=4", seed, default, 4) for seed in range(3))]
    assert sweep.main([*arguments, "--seeds", "0", "--cases", "", "--seconds", "7"]) == 0
    assert len(asked) == 9, "another budget is another run"
    monkeypatch.setitem(FIELD, "trainer.distortion", ((0.25, OTHERWISE),))
    assert sweep.main([*arguments, "--seeds", "0", "--cases", ""]) == 0
    assert len(asked) == 10, "and so is another default"
    with raises_naming(UserError, "--cases", "data.downscale", "--scenes"):
        sweep.main([*arguments, "--cases", "data.downscale=2"])
    assert_names(capsys.readouterr().out, "near", "toy", "20.50 ± 0.50")


def test_values_of_a_case_need_no_quotes():
    options = bench_train.BenchOptions()
    changed = bench_train.changed(options, 'data.masks=cutout,trainer.optimizer="lazy_adam",model.hidden=8')
    assert (changed.data.masks, changed.trainer.optimizer, changed.model.hidden) == ("cutout", "lazy_adam", 8)
    with raises_naming(UserError, "nothing.at_all=1", "GROUP.OPTION"):
        bench_train.changed(options, "nothing.at_all=1")
