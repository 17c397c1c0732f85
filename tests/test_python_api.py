# SPDX-License-Identifier: Apache-2.0
"""What a user builds on: names and signatures, seams, the page of examples."""

import inspect
import json
import re
import sys
import threading
from dataclasses import make_dataclass
from pathlib import Path

import pytest
import torch

import nerfkit
from nerfkit.errors import ConfigError
from nerfkit.model.registry import MODELS
from tests.naming import raises_mentioning
from tests.processes import call_process
from tests.trainers import make_trainer

SNAPSHOT = Path(__file__).parent / "api.json"


def signature_of(thing) -> str:
    """Arguments, those with a default by a "=", and the public names of a class."""
    if inspect.ismodule(thing) or not callable(thing):
        return type(thing).__name__
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    parameters = {} if is_error else inspect.signature(thing).parameters
    arguments = ", ".join(name + "=" * (p.default is not p.empty) for name, p in parameters.items())
    names = [name for name in vars(thing) if not name.startswith("_")] if inspect.isclass(thing) else []
    return f"({arguments}) {' '.join(sorted(names))}".strip()


def test_names_and_signatures_are_those_of_the_snapshot():
    """Changed on purpose? Write tests/api.json anew, and say so in the changelog."""
    found = {name: signature_of(getattr(nerfkit, name)) for name in nerfkit.__all__}
    assert found == json.loads(SNAPSHOT.read_text()), json.dumps(found, indent=1)


def test_a_type_checker_sees_what_is_exported():
    text = Path(nerfkit.__file__).read_text()
    for name in nerfkit.__all__:
        assert name == "__version__" or re.search(rf"import {name} as {name}\b", text), name
    assert (Path(nerfkit.__file__).parent / "py.typed").exists()


def test_modules_are_imported_when_they_are_needed():
    """One module costs no more than itself, options are read before what is slow, and matplotlib's backend stays."""
    code = """if True:
        import sys
        slow = lambda: {"matplotlib", "imageio", "torchmetrics", "torch._dynamo", "viser"} & set(sys.modules)
        import nerfkit.nn
        assert not slow(), slow()
        import nerfkit.commands.train, nerfkit.commands.view
        assert not slow() - {"imageio"}, slow()
        import matplotlib
        before = matplotlib.rcParams._get_backend_or_none()
        import nerfkit.commands.render, nerfkit.training.watching
        assert matplotlib.rcParams._get_backend_or_none() == before
    """
    call_process("-c", code)


@pytest.mark.slow
def test_the_python_page_runs(tmp_path, monkeypatch):
    page = Path("docs/python.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(code, names)
    assert names["image"].shape == (24, 32, 3)
    ball, behind = names["image"][12, 16], names["image"][0, 0]
    assert (ball - torch.tensor([0.90, 0.47, 0.16])).abs().max() < 0.15 and behind.min() > 0.9, "it has learned"
    assert names["maps"]["depth_ray"].shape == (12, 16) and names["run"].state["step"] == 300
    assert names["pose"].grad[0].abs().sum() > 0
    MODELS.pop("blobs")


def test_terms_of_a_loss_are_added_and_logged_by_name(small_config):
    seen = {}

    def loss_fn(rendering, batch):
        seen.update(view=batch.view, weight=batch.weight, samples=rendering.samples)
        mse = nerfkit.squared_error(rendering, batch)["mse"]
        return {"mse": mse, "opacity": 0.1 * nerfkit.weighted_mean(rendering.opacity, batch.weight)}

    trainer = make_trainer(small_config, loss_fn=loss_fn)
    for _ in range(7):
        trainer.train_step()
    stats = trainer.pop_stats()
    assert stats["loss"] == pytest.approx(stats["loss.mse"] + stats["loss.opacity"], rel=1e-5)
    assert stats["psnr"] == pytest.approx(-10 * torch.tensor(stats["loss.mse"]).log10().item(), abs=1e-4)
    assert seen["view"].unique().numel() > 5 and set(seen["weight"].tolist()) <= {0.0, 1.0}
    assert trainer.pop_stats()["loss"] == 0


def test_a_loss_that_gives_no_terms_or_other_ones_each_step_is_named(small_config):
    for loss in (lambda r, b: r.color.mean(), lambda r, b: {}, lambda r, b: {"x": r.color}):
        with raises_mentioning(TypeError, "loss_fn", "dict"):
            make_trainer(small_config, loss_fn=loss).train_step()
    names = iter(["a", "b"])
    trainer = make_trainer(small_config, loss_fn=lambda r, b: {next(names): r.color.mean()})
    trainer.train_step()
    with raises_mentioning(TypeError, "loss_fn", "a", "b"):
        trainer.train_step()


class Constant(nerfkit.Model):
    """One color everywhere: as little as a model can be."""

    def __init__(self, config):
        super().__init__(config)
        self.color = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, rays, background, jitter=None, capacity=None):
        ones = torch.ones(rays.origins.shape[0])
        return nerfkit.Rendering(self.color.expand(len(ones), 3), ones, ones)


@pytest.fixture
def constant_config(small_config, monkeypatch):
    monkeypatch.setitem(MODELS, "constant", Constant)
    small_config.model.kind = "constant"
    return small_config


def test_a_model_without_samples_trains(constant_config, tmp_path):
    trainer = make_trainer(constant_config)
    before = trainer.training_step.n_rays.item()
    trainer.train(tmp_path / "run")
    assert trainer.step == 60 and trainer.training_step.n_rays == before == constant_config.trainer.samples_per_step
    run = nerfkit.load_run(tmp_path / "run", "cpu")
    image = run.render(run.cameras("train"), 3)["rgb"]
    assert torch.equal(image[0, 0], trainer.model.color.detach()) and image.shape == (22, 26, 3)
    with raises_mentioning(nerfkit.UserError, "Constant", "samples"):
        run.render(run.cameras("train"), 3, ("normal",))


def test_a_model_that_is_not_registered_is_said(constant_config, tmp_path, monkeypatch):
    constant_config.model.module = "somewhere.models"
    make_trainer(constant_config).save(tmp_path / "run")
    monkeypatch.delitem(MODELS, "constant")
    with raises_mentioning(ConfigError, "'constant'", "--module somewhere.models"):
        nerfkit.load_run(tmp_path / "run", "cpu")
    assert "somewhere" not in sys.modules, "a run folder imports nothing"
    with raises_mentioning(ConfigError, "'nowhere_to_be_found'"):
        nerfkit.load_run(tmp_path / "run", "cpu", module="nowhere_to_be_found")


def test_options_of_a_model_are_checked(small_config, monkeypatch):
    class WithOptions(Constant):
        Options = make_dataclass("Options", [("width", int, 3)])

    monkeypatch.setitem(MODELS, "own", WithOptions)
    small_config.model.kind, small_config.model.options = "own", {"width": "7"}
    assert nerfkit.build_model(small_config).options.width == 7
    for options, named in (({"widht": 1}, ("widht", "width")), ({"width": "wide"}, ("width",))):
        small_config.model.options = options
        with raises_mentioning(ConfigError, *named):
            nerfkit.build_model(small_config)
    small_config.model.kind, small_config.model.options = "field", {"width": 1}
    with raises_mentioning(ConfigError, "'field'", "model.options"):
        nerfkit.build_model(small_config)


def test_a_trainer_leaves_the_process_alone(small_config, tmp_path, monkeypatch):
    """In a thread, without folders, signals or output."""
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(small_config)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.step == 60 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "outputs, view, wrong", [(("depht",), 0, "depht"), ("rgb", 0, "['r', 'g', 'b']"), (("rgb",), 12, 12)]
)
def test_what_cannot_be_rendered_is_named(small_config, outputs, view: int, wrong):
    trainer = make_trainer(small_config)
    with raises_mentioning(nerfkit.UserError, wrong):
        nerfkit.ImageRenderer(trainer.model, torch.ones(3))(trainer.cameras, view, outputs)


@pytest.mark.parametrize("name, value", [("stpes", 3), ("steps", 2.5), ("steps", 0), ("optimizer", "sgd"), ("lr", 1)])
def test_options_set_in_python_are_checked(small_config, name: str, value):
    asked = nerfkit.Config(**{x: getattr(small_config, x) for x in ("data", "model", "sampling", "trainer")})
    setattr(small_config.trainer, name, value)
    for config in (small_config, asked):  # decided, and not yet
        with raises_mentioning(ConfigError, f"trainer.{name}"):
            make_trainer(config)


def test_cameras_that_are_none_and_images_that_do_not_fit_them_are_named(small_config):
    trainer = make_trainer(small_config)
    good = trainer.cameras
    for images in (torch.zeros(12, 22, 26, 3), torch.zeros(8, 22, 26, 3, dtype=torch.uint8)):
        with raises_mentioning(nerfkit.UserError, "uint8", "[12, 22, 26, 3 or 4]", str(list(images.shape))):
            nerfkit.Trainer(small_config, good, images)
    with raises_mentioning(nerfkit.UserError, "Cameras", "focal", "[12]"):
        nerfkit.Cameras(good.camera_to_world, good.focal[:, 0], good.center, 26, 22)
    with raises_mentioning(nerfkit.UserError, "26.5", "22"):
        nerfkit.Cameras(good.camera_to_world, good.focal, good.center, 26.5, 22)
    for broken in (2 * good.camera_to_world, good.camera_to_world * float("nan")):
        cameras = nerfkit.Cameras(broken, good.focal, good.center, 26, 22)
        with raises_mentioning(nerfkit.UserError, "camera_to_world"):
            nerfkit.Trainer(small_config, cameras, trainer.views.source.pool)
