# SPDX-License-Identifier: Apache-2.0
"""A run folder that nerfkit 0.1.0 wrote loads and renders as it did then, for ever after."""

from pathlib import Path

import numpy as np
import torch

from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training import run

FOLDER = Path(__file__).parent / "run_0_1_0"  # 40 steps on tests/toy_scene.py, a table of 2^10 rows a level


def test_a_run_of_0_1_0_renders_what_it_rendered():
    device = torch.device("cpu")
    renderer, config, state = run.load_renderer(FOLDER, device)
    cameras = run.read_cameras(FOLDER, "test").resized(15, 11)
    got = ImageRenderer(renderer, run.background_color(config, device))(cameras, 1, ("rgb", "depth"))
    wanted = np.load(FOLDER / "view_1.npz")
    assert state["step"] == 40 and got["rgb"].std() > 0.05, "there is something to see"
    for name in wanted.files:
        np.testing.assert_allclose(got[name].numpy(), wanted[name], rtol=0, atol=2e-4, err_msg=name)
