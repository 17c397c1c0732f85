# SPDX-License-Identifier: Apache-2.0
"""A tour of panoramas through the commands: whatever shows, exports or compares its cameras knows that they see all
around."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit import load_run
from nerfkit.commands import export, inspect, render, train
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.load import load_capture, load_scene
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.frames import NO_PHOTO, Look, ModelFrame, Viewpoint
from nerfkit.viewer.scene import ViewerScene
from tests.naming import assert_names
from tests.posed_captures import BOX, SMALL, call, colmap_in
from tests.processes import run_main

pytestmark = pytest.mark.slow
PANORAMA = Lens("EQUIRECTANGULAR", (64.0, 32.0), 64, 32)


@pytest.fixture(scope="module")
def tour(tmp_path_factory) -> Path:
    """A folder with a scene and a run of it."""
    folder = tmp_path_factory.mktemp("tour")
    colmap_in(folder / "scene", [PANORAMA] * 16, distance=1.2)
    for file in (folder / "scene" / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    call(train, folder / "scene", *SMALL, "--out", folder / "run")
    return folder


def test_it_is_inspected_and_drawn(tour, tmp_path, capsys):
    run_main(inspect, tour / "scene", "--out", tmp_path / "page", "-v")
    assert_names(capsys.readouterr().out, "16 panoramas of 64x32", "about 360 x 180 degrees", "kind walk-through")
    assert Image.open(tmp_path / "page" / "inspect.png").width == 1500


def test_exported_cameras_are_read_back(tour, tmp_path):
    call(export, tour / "run", "cameras", "--out", tmp_path / "cameras")
    given = {Path(image.name).name: image for image in load_capture(str(tour / "scene")).images}
    for place in (tmp_path / "cameras", tmp_path / "cameras" / "colmap"):
        again = load_capture(str(place)).images
        assert len(again) == 16
        for image in again:
            true = given[Path(image.name).name]
            assert image.lens == true.lens
            np.testing.assert_allclose(image.camera_to_world, true.camera_to_world, atol=1e-5)


def test_the_balls_are_learned_where_they_are(tmp_path, small_config):
    colmap_in(tmp_path, [PANORAMA] * 40, distance=1.0)
    scene, small_config.trainer.steps = load_scene(str(tmp_path), box=BOX), 300
    trainer = Trainer(small_config, scene=scene)
    trainer.train()
    test = scene.split("test")
    learned = ImageRenderer(trainer.model.eval(), torch.ones(3))(test.cameras, 0, ("opacity",))["opacity"]
    both = torch.stack([learned, test.load().image(0)[..., 3] / 255]).flatten(1)
    assert torch.corrcoef(both)[0, 1] > 0.5


@pytest.mark.parametrize("cameras", ["auto", "orbit", "train"])
def test_paths_take_views_of_90_degrees_or_panoramas(tour, tmp_path, cameras):
    for lens, size in (("pinhole", ()), ("equirectangular", (40, 20))):
        frames = [] if cameras == "train" else ["--frames", 2]
        size_given = ["--size", *size] if size else []
        call(render, tour / "run", "--cameras", cameras, *frames, *size_given, "--lens", lens, "--out", tmp_path / lens)
        assert Image.open(next((tmp_path / lens).glob("*.png"))).size == (size or (64, 32))


def test_the_viewer_knows_what_they_saw(tour, tmp_path):
    """With the scene at hand, and without: nothing fades out where a view of 90 degrees would end."""
    shutil.copytree(tour / "run", tmp_path / "run")
    alone = load_run(tmp_path / "run", "cpu")
    alone.config.data.path = str(tmp_path / "gone")
    for scene in (ViewerScene.from_run(load_run(tour / "run", "cpu")), ViewerScene.from_run(alone)):
        assert not scene.has_edge and scene.cameras.lenses[0] == PANORAMA


def test_the_image_behind_a_camera_is_compared_with_too(tour):
    scene = ViewerScene.from_run(load_run(tour / "run", "cpu"))
    behind = scene.cameras.camera_to_world[3].numpy() * [-1, 1, -1, 1]
    frame = ModelFrame(scene, Viewpoint.of(behind, 1.5), 24, 24, Look(view=3, split=0.0))
    frame.render(0, 24 * 24)
    shown = torch.from_numpy(frame.finish()).float() / 255
    assert ((shown - NO_PHOTO).abs().amax(-1) > 0.01).float().mean() > 0.9
