# SPDX-License-Identifier: Apache-2.0
"""Exposure and white balance that change from image to image are noticed, and learned unless that is not wanted."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nerfkit
from nerfkit.data.load import load_scene
from tests.processes import ROOT
from tests.test_quality import needs_images_of

GAMMA = 2.2


def room(folder: Path, stops: float = 0.0, colors: float = 0.0) -> nerfkit.Scene:
    """The shipped room with half of its images brighter or darker by `stops`, and all between warmer and colder."""
    needs_images_of(ROOT / "data" / "room" / "images")
    (folder / "images").mkdir()
    shutil.copy(ROOT / "data" / "room" / "transforms.json", folder)
    draw = np.random.default_rng(0)
    for file in sorted((ROOT / "data" / "room" / "images").iterdir()):
        gains = stops * draw.choice([-1, 0, 0, 1]) + colors * draw.choice([-1, 1]) * np.array([1, 0, -1])
        levels = 255 * ((np.asarray(Image.open(file)) / 255) ** GAMMA * 2**gains).clip(0, 1) ** (1 / GAMMA)
        Image.fromarray(levels.round().astype(np.uint8)).save(folder / "images" / file.name, quality=95)
    return load_scene(str(folder))


@pytest.mark.parametrize("how", [{"stops": 0.7}, {"colors": 0.35}])
def test_changing_light_is_noticed(tmp_path, how):
    """An option that is given stays as it is."""
    scene = room(tmp_path, **how)
    config = nerfkit.Config().resolved(scene)
    assert config.data.appearance == "affine" and "from image to image" in config.decisions["data.appearance"].why
    assert nerfkit.Config(data=nerfkit.config.DataConfig(appearance="none")).resolved(scene).data.appearance == "none"


@pytest.mark.parametrize("name", ["room", "orrery"])
def test_steady_light_costs_nothing(name):
    """Though metal shines elsewhere in each view, and the room has windows."""
    needs_images_of(ROOT / "data" / name / ("images" if name == "room" else "train"))
    config = nerfkit.Config().resolved(load_scene(str(ROOT / "data" / name)))
    assert config.data.appearance == "none"
