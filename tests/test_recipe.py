# SPDX-License-Identifier: Apache-2.0
"""What scene, device and model decide of options that are left as auto, and what stays as a user gave it."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch

from nerfkit.commands import train
from nerfkit.commands.options import train_options
from nerfkit.config import BASE, FIELD, Config, ResolvedConfig, SamplingConfig, flat, to_dict
from nerfkit.config.recipe import UNLIMITED
from nerfkit.data.load import scene_of
from nerfkit.data.scene import Scene
from nerfkit.errors import ConfigError
from nerfkit.model.registry import model_class
from nerfkit.model.renderer import Renderer
from nerfkit.training.run.load import load_run
from tests.camera_layouts import grid, ring
from tests.naming import raises_mentioning
from tests.posed_captures import SMALL, write_capture
from tests.processes import run_main
from tests.test_quality import needs_images_of

BOX = "--data.box -4 -4 -4 4 4 4"
UNBOUNDED = "--sampling.kind contracted"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A capture of a place, whose cameras see all sides."""
    points = np.array([0, 0, 0.5]) + 0.5 * np.random.default_rng(0).normal(size=(300, 3))
    return write_capture(tmp_path_factory.mktemp("place") / "place", ring(20), points=points)


def options_of(folder: Path, arguments: str = "") -> tuple[ResolvedConfig, Scene]:
    """The options that run, at the sizes for a GPU unless `arguments` ask for others, and the scene."""
    size = "" if "--config" in arguments or "--size" in arguments else "--size large"
    options = train_options(f"--device cpu --data.path {folder} {size} {arguments}".split())
    scene = scene_of(options)
    return options.resolved(scene, "cpu", model_class(options)), scene


def values_of(options: ResolvedConfig, names: str) -> list:
    return [attrgetter(name)(options) for name in names.split()]


RATE = "trainer.learning_rate"
STAGES = "model.encoder model.aggregator"
STEPS = "sampling.step_size sampling.cone_angle sampling.alpha_threshold"


@pytest.mark.parametrize(
    "arguments, names, wanted",
    [
        ("", RATE, [0.02]),
        ("--trainer.learning_rate 0.01", RATE, [0.01]),
        ("--config cpu", RATE, [0.02]),
        ("--config orrery_cpu", RATE, [0.03]),
        ("", STAGES, [True, False]),
        (BOX, STAGES, [True, True]),
        ("--model.aggregator true", STAGES, [True, True]),
        ("--config cpu", STAGES, [True, True]),
        ("", STEPS, [0.0025, 1 / 256, 0.001]),
        (f"{BOX} {UNBOUNDED}", STEPS, [0.01, 1 / 256, 0.001]),  # the box is the unit
        ("--sampling.step_size 0.005", STEPS, [0.005, 1 / 256, 0.001]),
        ("", "trainer.distortion model.max_resolution sampling.occupancy_resolution", [0.003, 4096, 256]),
        ("--sampling.kind box", "trainer.distortion", [0.0003]),
        (f"{BOX} --trainer.distortion 0", "trainer.distortion", [0]),
        (BOX, "sampling.kind sampling.near sampling.far data.background", ["box", 0, 1e10, "white"]),
    ],
)
def test_of_a_place(folder: Path, arguments: str, names: str, wanted: list):
    """Captures lose by the LLTM, objects gain; what is given stays, be it the default."""
    assert values_of(options_of(folder, arguments)[0], names) == wanted


def test_intervals_are_longer_where_all_cameras_face_a_scene(tmp_path: Path):
    points = np.array([0, 6, 0.5]) + np.random.default_rng(0).normal(size=(300, 3))
    options, scene = options_of(write_capture(tmp_path / "row", grid(), points=points))
    assert scene.transform.kind == "forward" and values_of(options, STEPS) == [0.005, 1 / 128, 0.003]


def test_the_fewer_pixels_a_place_has_the_stronger_is_the_weight_decay(folder: Path, monkeypatch):
    pixels = sum(width * height for width, height in options_of(folder)[1].split("train").cameras.sizes())
    for decay, wanted in ((8, 3.0), (0.4e-6 * pixels, 0.4), (1e-9, 0.03)):
        monkeypatch.setattr("nerfkit.config.recipe.DECAY", decay)
        for arguments, value in (("", wanted), ("--size small", 0.1), ("--sampling.kind box", 0.1)):
            assert values_of(options_of(folder, arguments)[0], "trainer.weight_decay") == [pytest.approx(value)]
    without = train_options(f"--device cpu --data.path x --size large {UNBOUNDED}".split()).resolved(device="cpu")
    assert without.trainer.weight_decay == 0.1, "nothing is known of the images"


def test_a_box_in_unbounded_space_is_what_is_not_contracted(folder: Path):
    """Near, far and background are those without the box, in the files' units, which then are the model's."""
    without, scene = options_of(folder)
    boxed, in_files = options_of(folder, f"{BOX} {UNBOUNDED}")
    unit = 1 / scene.transform.scale
    assert without.sampling.kind == "contracted" and without.sampling.near > 0.1
    assert boxed.data.box == (-4.0, -4, -4, 4, 4, 4) and in_files.transform.scale == 1
    assert boxed.sampling.near == pytest.approx(without.sampling.near * unit)
    assert boxed.sampling.far == pytest.approx(without.sampling.far * unit)
    assert boxed.data.background == without.data.background == "random"
    alone = train_options(f"--device cpu --data.path x {BOX} {UNBOUNDED}".split()).resolved(device="cpu")
    assert alone.sampling.far == 256 * 4, "in halves of the box's side, where there is no scene to tell"
    positions = scene.transform.to_input(scene.split("train").cameras.positions.numpy())
    np.testing.assert_allclose(in_files.split("train").cameras.positions, positions, atol=1e-5)


def test_the_finest_cells_of_an_object_follow_from_its_pixels():
    """Of the shipped scene, 1.25 of them a pixel, as large as the images are trained."""
    needs_images_of(Path("data/orrery/train"))

    def finest(arguments: str = "") -> int:
        return options_of(Path("data/orrery"), f"--config orrery {arguments}")[0].model.max_resolution

    scene = options_of(Path("data/orrery"), "--config orrery")[1]
    cameras = scene.split("train").cameras
    middle = torch.tensor([0, 0, 0.05])
    across = 2.65 * (cameras.focal[:, 0] / (cameras.positions - middle).norm(dim=-1)).median().item()  # pixels
    assert finest() == pytest.approx(1.25 * across, abs=1)
    assert finest("--data.downscale 2") == pytest.approx(1.25 * across / 2, abs=1)
    assert finest("--data.downscale 0.1") == 2048, "at most"
    assert finest("--data.downscale 40 --model.base_resolution 32") == 32, "at least"
    assert replace(scene, views={"test": scene.split("test")}).pixels_across((0, 0, 0, 1, 1, 1)) is None


def test_equal_steps_wait_for_the_scene_to_say_how_far(folder: Path, tmp_path: Path):
    equal = f"{UNBOUNDED} --sampling.cone_angle 0 --sampling.step_size"
    options, _ = options_of(folder, f"{equal} 0.1")
    assert options.sampling.cone_angle == 0 and options.sampling.far == 256
    with raises_mentioning(ConfigError, "step_size", "cone_angle", "256"):
        options_of(folder, f"{equal} 0.001")
    run = ("--data.path", folder, "--out", tmp_path / "run")
    assert run_main(train, *SMALL, *equal.split(), "0.3", *run) == 0


def test_the_device_decides_sizes_unless_they_are_asked_for():
    options = train_options(["--data.path", "x", "--trainer.steps", "7"])
    small = options.resolved(device="cpu")
    large = small.resolved(device="cuda")  # decided anew
    sizes = "size model.levels trainer.samples_per_step trainer.steps trainer.optimizer"
    assert values_of(small, sizes) == ["small", 6, 6144, 7, "adam"]
    assert values_of(large, sizes) == ["large", 16, 262144, 7, "lazy_adam"]
    assert small.resolved() == small and small.resolved() is not small
    assert train_options(["--config", "lego"]).resolved(device="cpu").model.levels == 16


@pytest.mark.parametrize(
    ("arguments", "on_a_gpu", "on_a_cpu"),
    [
        ([], (UNLIMITED, 120), (8000, 480)),
        (["--trainer.max_seconds", "300"], (UNLIMITED, 300), (UNLIMITED, 300)),
        (["--trainer.steps", "500"], (500, 0), (500, 480)),
        (["--trainer.deterministic", "true"], (20000, 0), (8000, 480)),
        (["--trainer.max_seconds", "0"], (20000, 0), (8000, 0)),
    ],
)
def test_a_limit_of_time_alone_ends_a_training(arguments: list, on_a_gpu: tuple, on_a_cpu: tuple):
    for device, wanted in (("cuda", on_a_gpu), ("cpu", on_a_cpu)):
        settings = train_options(arguments).resolved(device=device).trainer
        assert (settings.steps, settings.max_seconds) == wanted


def test_a_decision_says_who_made_it_and_why(folder: Path):
    decisions = options_of(folder, "--config quick --size small --trainer.samples_per_step 512")[0].decisions
    by = {name: decision.by for name, decision in decisions.items()}
    given = {"trainer.samples_per_step", "trainer.max_seconds", "size"}  # by the user, or the preset
    assert not given & by.keys()
    assert (by["data.background"], by["trainer.learning_rate"]) == ("scene", "model")
    assert "place" in decisions["sampling.kind"].why and by["model.levels"] == "size"


def test_decisions_are_kept_with_the_run_and_when_it_goes_on(folder: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert run_main(train, *SMALL, "--data.path", folder, "--out", run) == 0
    decisions = load_run(run, "cpu").config.decisions
    assert decisions["data.background"].by == "scene" and "trainer.steps" not in decisions
    for file in (run, run / "config.toml"):
        again, other = (train_options([*scene, "--config", str(file)]) for scene in ((), (str(tmp_path),)))
        assert (again.data.format, other.data.format) == (load_run(run, "cpu").config.data.format, "auto")
        assert again.out == other.out == "" and again.data.background is other.data.background is None
        assert again.trainer.steps == other.trainer.steps == load_run(run, "cpu").config.trainer.steps
    others = "--trainer.steps 9 --trainer.learning_rate 0.1 --trainer.save_every 5 --eval.every 3 --ops.backend torch"
    assert run_main(train, "--resume", run, *others.split()) == 0
    after = load_run(run, "cpu").config.decisions
    assert after["data.background"] == decisions["data.background"]
    assert "trainer.learning_rate" in decisions.keys() - after.keys()


def test_every_option_that_may_be_auto_is_decided():
    assert FIELD.keys() == BASE.keys() and None not in flat(to_dict(Config().resolved())).values()


def test_auto_is_a_value_on_the_command_line_and_in_files(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('[trainer]\nlearning_rate = "auto"\nsteps = 5\n[data]\nbox = "auto"\n')
    options = train_options(["--config", str(file), "--trainer.steps", "auto"])
    assert options.trainer.learning_rate is options.trainer.steps is options.data.box is None
    config = Config()
    config.trainer.steps = config.data.box = "auto"
    assert config.resolved(device="cpu") == Config().resolved(device="cpu")


def test_all_stages_are_on_but_the_lltm_of_large_models_of_places():
    for kind, size in (("box", "small"), ("box", "large"), ("contracted", "small"), ("contracted", "large")):
        with torch.device("meta"):
            model = Renderer(Config(size=size, sampling=SamplingConfig(kind=kind)).resolved())
        assert model.grid and model.encoder and bool(model.aggregator) == ((kind, size) != ("contracted", "large"))
