# SPDX-License-Identifier: Apache-2.0
"""The crop: its file, and that nothing outside is rendered."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nerfkit.crop import CROP, Crop, active_crop, read_crop
from nerfkit.data.load import load_scene
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import RunError, UserError
from nerfkit.model.base import Model
from nerfkit.model.cropping import cropped
from nerfkit.model.renderer import Renderer
from tests.naming import raises_mentioning

ROTATION = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
FRAME = SceneTransform(
    ROTATION, np.array([1.0, 2, 3]), 0.5, "inward", 0.1, 9.0, np.array([[-1.0] * 3, [1.0] * 3]), ROTATION[2]
)
UTM = np.array([583960.0, 4512345.6, 212.0])  # easting, northing and height [m]: float32 has steps of 0.5 there


@pytest.fixture
def scene(small_config, toy_scene):
    """A random field and the cameras of the toy scene; every sample counts."""
    field = Renderer(small_config)
    field.sampler.early_stop_transmittance = 0.0
    return field, load_scene(str(toy_scene)).split("test").cameras


def test_a_file_is_read_as_it_was_written(tmp_path):
    crop = Crop((-0.5, -1.0, 0.0), (0.5, 1.0, 2.0))
    (tmp_path / CROP).write_text(crop.to_json())
    assert json.loads((tmp_path / CROP).read_text())["min"] == [-0.5, -1.0, 0.0]
    assert read_crop(tmp_path, None) == (crop, True) and active_crop(tmp_path, None) == crop
    (tmp_path / CROP).write_text(crop.to_json(on=False))
    assert read_crop(tmp_path, None) == (crop, False) and active_crop(tmp_path, None) is None
    (tmp_path / CROP).unlink()
    assert read_crop(tmp_path, None) is None and active_crop(tmp_path, None) is None


def test_a_broken_file_is_named(tmp_path):
    good = {"min": [-1, -1, -1], "max": [1, 1, 1], "frame": "model"}
    for name, value in (
        ("min", [0, 0]), ("max", [0, 0, float("nan")]), ("max", [-2, 1, 1]), ("frame", "world"), ("center", [0, 0, 0]),
    ):  # fmt: skip
        (tmp_path / CROP).write_text(json.dumps(good | {name: value}))
        with raises_mentioning(RunError, CROP, name):
            read_crop(tmp_path, None)


@pytest.mark.parametrize("origin", [np.zeros(3), UTM])
def test_a_crop_in_the_frame_of_the_files(origin: np.ndarray):
    frame = replace(FRAME, center=FRAME.center + origin)
    crop = Crop(tuple(origin + [1.0, 2, 3]), tuple(origin + [2.0, 4, 5]), "files").placed(frame)
    corners = frame.to_model(origin + [[1.0, 2, 3], [2, 4, 5], [1.5, 3, 4], [0.9, 3, 4], [1.5, 4.1, 4]])
    towards_middle = corners[:2] + 1e-4 * np.sign(corners[2] - corners[:2])
    points = torch.tensor(np.concatenate([towards_middle, corners[2:]]), dtype=torch.float32)
    assert crop.inside(points).tolist() == [True, True, True, False, False]
    assert np.allclose(crop.bounds(), [corners[:2].min(0), corners[:2].max(0)])


def test_nothing_outside_is_rendered_and_what_is_behind_it_is_seen(scene):
    model, cameras = scene
    crop = Crop((-0.2, -0.8, -0.3), (0.5, 0.1, 0.8))
    rays = cameras.image_rays(0)
    with torch.no_grad():
        whole = model(rays, torch.ones(3))
        samples = whole.samples
        with cropped(model, crop):
            part = model(rays, torch.ones(3))
        density = model.density(samples.positions)
    low, high = torch.tensor(crop.low), torch.tensor(crop.high)
    inside = ((samples.positions >= low) & (samples.positions <= high)).all(-1)
    assert 0 < inside.sum() < len(inside)
    thickness = density * (samples.t_ends - samples.t_starts) * inside
    total = torch.zeros(len(rays.origins)).index_add(0, samples.ray_index, thickness)
    torch.testing.assert_close(part.opacity, 1 - torch.exp(-total), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(part.samples.positions, samples.positions[inside])


def test_what_is_cut_away_hides_nothing(small_config, toy_scene):
    """Also where a ray ends once it sees no farther."""
    model, cameras = Renderer(small_config), load_scene(str(toy_scene)).split("test").cameras
    crop = Crop((-0.3, -0.3, -0.3), (0.3, 0.3, 0.3))  # in the middle of fog that is denser than a ray gets through

    def fog(positions):
        return torch.full(positions.shape[:1], 300.0)

    rays = cameras.image_rays(0)
    assert not crop.inside(model.sampler(rays, fog).positions).any()
    with cropped(model, crop):
        samples = model.sampler(rays, fog)
    assert len(samples.positions) and crop.inside(samples.positions).all()


def test_a_crop_ends_with_its_block_also_by_an_error(scene):
    sampler = scene[0].sampler
    with pytest.raises(ValueError, match="none"), cropped(scene[0], Crop((0.0, 0, 0), (1.0, 1, 1))):
        raise ValueError("none")
    assert scene[0].sampler is sampler


def test_a_model_without_a_sampler_is_named(small_config):
    class Flat(Model):
        def forward(self, rays, background, jitter=None, capacity=None):
            return None

    with raises_mentioning(UserError, "Flat"), cropped(Flat(small_config), Crop((0.0, 0, 0), (1.0, 1, 1))):
        pass
    with raises_mentioning(UserError, "Flat", "density"):  # for a mesh, say: a line, and no traceback
        Flat(small_config).density(torch.zeros(1, 3))
