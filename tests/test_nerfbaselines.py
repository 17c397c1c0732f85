# SPDX-License-Identifier: Apache-2.0
"""The adapter for nerfbaselines, by its interface; that project itself is not needed."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nerfkit.errors import ConfigError, SceneError, TrainingError
from nerfkit.integrations.nerfbaselines import NerfKit, configured, lens_of
from nerfkit.training.run import load_run
from tests.naming import raises_naming
from tests.toy_scene import ANGLE_X, look_at, trace

OVERRIDES = {
    "trainer.steps": "80", "trainer.samples": 4096, "trainer.learning_rate": 0.03, "trainer.warmup": 5,
    "trainer.schedule": "exponential", "trainer.table_decay": 0.0,
    "model.levels": 2, "model.log2_table": 10, "model.hidden": 16, "model.max_resolution": 40,
    "sampling.step": 0.05, "sampling.occupancy_resolution": 16, "sampling.occupancy_threshold": 0.03,
}  # fmt: skip
SCALE, SHIFT = 4.0, np.array([30.0, -7, 2])  # of the files, beside the toy scene


@dataclass
class Cameras:
    """As nerfbaselines has them; one of them has arrays without the first axis."""

    poses: np.ndarray
    intrinsics: np.ndarray
    camera_models: np.ndarray
    distortion_parameters: np.ndarray
    image_sizes: np.ndarray

    def __len__(self):
        return len(self.poses)

    def __getitem__(self, index):
        return Cameras(*(value[index] for value in vars(self).values()))


def dataset(n: int = 16, size: tuple[int, int] = (26, 22)) -> dict:
    generator = np.random.default_rng(0)
    width, height = size
    focal = 0.5 * width / np.tan(0.5 * ANGLE_X)
    directions = generator.normal(size=(n, 3))
    poses = np.stack([look_at(3 * d / np.linalg.norm(d)) for d in directions])
    images = [trace(pose, width, height) for pose in poses]
    shifted = poses[:, :3].copy()
    shifted[:, :, 3] = shifted[:, :, 3] * SCALE + SHIFT
    shifted[:, :, 1:3] *= -1  # to OpenCV's axes
    cameras = Cameras(
        shifted, np.tile([focal, focal, width / 2, height / 2], (n, 1)), np.zeros(n, int), np.zeros((n, 6)),
        np.tile(size, (n, 1)),
    )  # fmt: skip
    return {
        "cameras": cameras,
        "images": images,
        "image_paths": [f"{index}.png" for index in range(n)],
        "metadata": {"background_color": np.array([255, 255, 255], np.uint8)},
    }


def test_it_trains_renders_saves_and_goes_on(tmp_path):
    data = dataset()
    method = NerfKit(train_dataset=data, config_overrides=OVERRIDES)
    assert method.get_info()["num_iterations"] == 80 and method.get_info()["loaded_step"] is None
    losses = [method.train_iteration(step)["loss"] for step in range(80)]
    assert np.isfinite(losses).all()
    image = method.render(data["cameras"][3])
    truth = data["images"][3] / 255
    truth = truth[..., :3] * truth[..., 3:] + 1 - truth[..., 3:]
    assert image["color"].shape == (22, 26, 3) and image["color"].dtype == np.float32
    assert np.square(image["color"] - truth).mean() < 0.02, "axes, frame and background are right"
    seen = (image["accumulation"] > 0.9) & (data["images"][3][..., 3] == 255)
    assert np.median(image["depth"][seen]) == pytest.approx(2.6 * SCALE, rel=0.1), "in the units of the data"
    method.save(str(tmp_path / "checkpoint"))
    again = NerfKit(checkpoint=str(tmp_path / "checkpoint"))
    assert again.get_info()["loaded_step"] == 80
    assert np.allclose(again.render(data["cameras"][3])["color"], image["color"], atol=1e-5)
    again.save(str(tmp_path / "copy"))
    again.save(str(tmp_path / "checkpoint"))  # where it came from: it stays
    assert load_run(tmp_path / "checkpoint", "cpu").state["step"] == 80
    assert load_run(tmp_path / "copy", "cpu").state["step"] == 80
    more = NerfKit(checkpoint=str(tmp_path / "copy"), train_dataset=data)
    more.train_iteration(80)
    assert more.trainer.step == 81
    with raises_naming(SceneError, "train_dataset"):
        again.train_iteration(80)
    assert NerfKit(checkpoint=str(tmp_path / "copy"), config_overrides=OVERRIDES).loaded_step == 80
    with raises_naming(ConfigError, "trainer.steps", "80"):
        NerfKit(checkpoint=str(tmp_path / "copy"), config_overrides={"trainer.steps": 7})


def test_a_run_of_images_is_saved_with_them(tmp_path):
    data, options = dataset(), OVERRIDES | {"model.kind": "images", "trainer.steps": 3}
    method = NerfKit(train_dataset=data, config_overrides=options)
    method.save(str(tmp_path / "run"))
    again = NerfKit(checkpoint=str(tmp_path / "run"))
    again.save(str(tmp_path / "copy"))
    assert load_run(tmp_path / "copy", "cpu").model.sources is not None
    with torch.no_grad():
        next(method.model.parameters()).fill_(float("nan"))
    with raises_naming(TrainingError, "not finite"):
        method.save(str(tmp_path / "copy"))
    assert load_run(tmp_path / "copy", "cpu").state["step"] == 0, "what was there is there"


def test_overrides_are_options():
    assert configured({"trainer.steps": "7", "data.background": "black"}).trainer.steps == 7
    with raises_naming(ValueError, "trainr.steps"):
        configured({"trainr.steps": 7})
    with raises_naming(ValueError, "trainer.step"):
        configured({"trainer.step": 7})


def test_lenses_keep_their_coefficients():
    terms = np.arange(1, 9) / 100  # k1 k2 p1 p2 k3 k4 k5 k6
    one = Cameras(np.eye(4)[:3], np.array([50.0, 51, 20, 15]), 2, terms[:6], np.array([40, 30]))
    lens = lens_of(one)
    assert (lens.model, lens.params) == ("OPENCV_FISHEYE", (50, 51, 20, 15, 0.01, 0.02, 0.05, 0.06))
    one.camera_models, one.distortion_parameters = 3, terms
    assert lens_of(one).params[4:] == tuple(terms)
    one.camera_models = 9
    with raises_naming(SceneError, "9"):
        lens_of(one)


def test_nerfbaselines_knows_it(monkeypatch):
    nerfbaselines = pytest.importorskip("nerfbaselines")
    import nerfkit.integrations.nerfbaselines_spec  # noqa: F401, which registers it

    assert isinstance(NerfKit, type) and issubclass(NerfKit, nerfbaselines.Method)
    assert nerfbaselines.get_method_spec("nerfkit")["method_class"].endswith(":NerfKit")
