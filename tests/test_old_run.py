# SPDX-License-Identifier: Apache-2.0
"""A run folder that nerfkit 0.1.0 wrote loads, renders and goes on as it did then, for ever after; and one misspelt."""

from pathlib import Path

import numpy as np

from nerfkit import load_run
from nerfkit.commands import render
from nerfkit.errors import RunError, UserError
from tests.naming import raises_naming
from tests.processes import run_main

FOLDER = Path(__file__).parent / "run_0_1_0"  # 40 steps on tests/toy_scene.py, a table of 2^10 rows a level


def test_a_run_of_0_1_0_renders_what_it_rendered():
    run = load_run(FOLDER, "cpu")
    got = run.render(run.cameras("test").resized(15, 11), 1, ("rgb", "depth"))
    wanted = np.load(FOLDER / "view_1.npz")
    assert run.config.eval.comparisons == 1, "an option under its name of then"
    assert run.config.trainer.schedule == "exponential", "as it was, which the file does not say"
    assert run.state["step"] == 40 and got["rgb"].std() > 0.05, "there is something to see"
    for name in wanted.files:
        np.testing.assert_allclose(got[name].numpy(), wanted[name], rtol=0, atol=2e-4, err_msg=name)


def test_a_run_of_before_goes_on_with_all_its_samples():
    """What is thin was trained, and stays."""
    model = load_run(FOLDER, "cpu").model
    model.update(10 * model.config.sampling.occupancy_warmup)
    assert model.sampler.threshold < 0 and model.sampler.occupancy.any()


def test_a_run_or_path_that_is_misspelt_is_told_with_a_near_one():
    with raises_naming(RunError, "run_0_1_1", "does not exist", "did you mean", FOLDER):
        load_run(FOLDER.parent / "run_0_1_1", "cpu")
    with raises_naming(UserError, "orbitt", "did you mean orbit?", "auto", "spiral", "test"):
        run_main(render, str(FOLDER), "--path", "orbitt", "--device", "cpu")
