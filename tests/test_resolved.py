# SPDX-License-Identifier: Apache-2.0
"""What scene, device and model decide of options left as auto, and what is left as a user gave it."""

from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch

from nerfkit.commands import train
from nerfkit.commands.options import train_options
from nerfkit.config import BASE, FIELD, Config, ResolvedConfig, flat, preset_values, to_dict
from nerfkit.config.recipe import rule
from nerfkit.data.load import scene_of
from nerfkit.data.scene import Scene
from nerfkit.device import pick_device
from nerfkit.errors import ConfigError
from nerfkit.model.registry import model_class
from nerfkit.option_types import Auto
from nerfkit.parallel import ALONE
from nerfkit.training.run.load import load_run
from tests.naming import raises_naming
from tests.odd_captures import SMALL, write_capture
from tests.processes import run_main
from tests.rigs import grid, ring
from tests.toy_scene import write_scene

BOX = "--data.box -4 -4 -4 4 4 4".split()
UNBOUNDED = ["--sampling.kind", "contracted"]


def place(folder: Path) -> Path:
    points = np.array([0, 0, 0.5]) + 0.5 * np.random.default_rng(0).normal(size=(300, 3))
    return write_capture(folder, ring(20), points=points)


def options_of(folder: Path, *arguments: str) -> tuple[ResolvedConfig, Scene]:
    """The options that run, at the sizes for a GPU unless `arguments` ask for others, and the scene."""
    size = () if "--config" in arguments or "--size" in arguments else ("--size", "large")
    options = train_options(["--device", "cpu", "--data.path", str(folder), *size, *arguments])
    scene = scene_of(options)
    return options.resolved(scene, "cpu", model_class(options), preset_values(options.config)), scene


def test_a_box_in_unbounded_space_is_what_is_not_contracted(tmp_path: Path):
    """Near, far and background are those without the box, in the files' units, which then are the model's."""
    folder = place(tmp_path / "place")
    without, scene = options_of(folder)
    boxed, in_files = options_of(folder, *BOX, *UNBOUNDED)
    unit = 1 / scene.frame.scale
    assert without.sampling.kind == "contracted" and without.sampling.near > 0.1
    assert boxed.data.box == (-4.0, -4, -4, 4, 4, 4) and in_files.frame.scale == 1
    assert boxed.sampling.near == pytest.approx(without.sampling.near * unit)
    assert boxed.sampling.far == pytest.approx(without.sampling.far * unit)
    assert boxed.data.background == without.data.background == "random"
    assert boxed.model.max_resolution == without.model.max_resolution == 8192
    positions = scene.frame.to_input(scene.split("train").cameras.positions.numpy())
    np.testing.assert_allclose(in_files.split("train").cameras.positions, positions, atol=1e-5)


def test_rate_and_decay_are_those_of_a_field(tmp_path: Path):
    """Unless they are given, be it as the default; what a model of one's own decays is its own business."""
    folder = place(tmp_path / "place")

    def recipe(*arguments: str) -> tuple[float, float]:
        settings = options_of(folder, *arguments)[0].trainer
        return settings.learning_rate, settings.table_decay

    for where in ((), BOX, ("--sampling.kind", "box")):
        assert recipe(*where) == (0.02, 0.1)
        assert recipe(*where, "--trainer.learning_rate", "0.01") == (0.01, 0.0)
        assert recipe(*where, "--trainer.table_decay", "0.2") == (0.02, 0.2)
        assert recipe(*where, "--config", "cpu") == (0.02, 0.1)
        assert recipe(*where, "--config", "orrery_cpu") == (0.03, 0.0)
    assert recipe(*BOX, "--config", "lego") == (0.02, 0.1)

    def distortion(*arguments: str) -> float:
        return options_of(folder, *arguments)[0].trainer.distortion

    assert distortion() == 0.003 and distortion(*BOX) == distortion("--sampling.kind", "box") == 0.0003
    assert distortion(*BOX, "--trainer.distortion", "0") == 0


def test_intervals_follow_from_the_sides_that_cameras_see(tmp_path: Path):
    """Finer ones where surfaces are seen from all sides; a box that is given is the unit."""

    def intervals(*arguments: str) -> tuple[float, ...]:
        sampling = options_of(*arguments)[0].sampling
        return sampling.step, sampling.cone, sampling.occupancy_threshold

    folder, row = place(tmp_path / "place"), tmp_path / "row"
    assert intervals(folder) == (0.0025, 1 / 256, 0.001)
    assert intervals(folder, *BOX, *UNBOUNDED) == (0.01, 1 / 256, 0.001)
    assert intervals(folder, "--sampling.step", "0.005") == (0.005, 1 / 256, 0.001), "given"
    write_capture(row, grid(), points=np.array([0, 6, 0.5]) + np.random.default_rng(0).normal(size=(300, 3)))
    assert options_of(row)[1].frame.kind == "forward"
    assert intervals(row) == (0.005, 1 / 128, 0.003)


def test_the_lltm_is_for_boxes_unless_it_is_asked_for(tmp_path: Path):
    """Captures lose by it, objects gain."""
    folder = place(tmp_path / "place")

    def along_the_ray(*arguments: str) -> tuple[bool, bool]:
        model = options_of(folder, *arguments)[0].model
        return model.encoder, model.aggregator

    assert along_the_ray() == along_the_ray(*BOX, *UNBOUNDED) == (True, False)
    assert along_the_ray(*BOX) == along_the_ray("--sampling.kind", "box") == (True, True)
    assert along_the_ray("--model.aggregator", "true") == (True, True)
    assert along_the_ray("--model.encoder", "false") == (False, False), "another stage changes nothing else"
    assert along_the_ray("--config", "cpu") == (True, True), "at such sizes, too"


def test_the_finest_cells_of_an_object_follow_from_its_pixels():
    """Of the shipped scene, 1.25 of them a pixel, as large as the images are trained."""

    def finest(*arguments: str) -> int:
        return options_of(Path("data/orrery"), "--config", "orrery", *arguments)[0].model.max_resolution

    scene = options_of(Path("data/orrery"), "--config", "orrery")[1]
    cameras = scene.split("train").cameras
    middle = torch.tensor([0, 0, 0.05])
    across = 2.65 * (cameras.focal[:, 0] / (cameras.positions - middle).norm(dim=-1)).median().item()  # pixels
    assert finest() == pytest.approx(1.25 * across, abs=1)
    assert finest("--data.downscale", "2") == pytest.approx(1.25 * across / 2, abs=1)
    assert finest("--data.downscale", "0.1") == 2048, "at most"
    assert finest("--data.downscale", "40", "--model.base_resolution", "32") == 32, "at least"
    assert finest("--model.max_resolution", "2048") == 2048 and finest("--config", "orrery_cpu") == 224, "given"


def test_a_box_alone_is_an_object_as_before(tmp_path: Path):
    options, scene = options_of(place(tmp_path / "place"), *BOX)
    assert (options.sampling.kind, options.sampling.near, options.data.background) == ("box", 0.0, "white")
    assert scene.frame.kind == "object" and options.sampling.far == 1e10


def test_images_with_alpha_stay_an_object_in_unbounded_space(tmp_path: Path):
    options, scene = options_of(write_scene(tmp_path / "toy"), *BOX, *UNBOUNDED)
    assert scene.frame.kind == "object" and options.data.background == "white"


def test_what_a_file_says_is_given_be_it_the_default(tmp_path: Path):
    folder, file = place(tmp_path / "place"), tmp_path / "mine.toml"
    file.write_text("[trainer]\ndistortion = 0.0\n[sampling]\nnear = 0.0\noccupancy_resolution = 128\n")
    told, _ = options_of(folder, "--config", str(file), "--size", "large")
    assert (told.trainer.distortion, told.sampling.near, told.sampling.occupancy_resolution) == (0, 0, 128)
    assert told.model.max_resolution == 8192, "of which the file says nothing"
    silent, _ = options_of(folder)
    assert silent.trainer.distortion > 0 and silent.sampling.near > 0 and silent.sampling.occupancy_resolution == 256
    box = tmp_path / "box.toml"
    box.write_text("[data]\nbox = [-1.5, -1.5, -1.5, 1.5, 1.5, 1.5]\n")
    assert options_of(folder, "--config", str(box))[0].sampling.kind == "box"


def test_equal_steps_wait_for_the_scene_to_say_how_far(tmp_path: Path):
    arguments = [*UNBOUNDED, "--sampling.cone", "0", "--sampling.step", "0.1"]
    options, _ = options_of(place(tmp_path / "place"), *arguments)
    assert options.sampling.cone == 0 and options.sampling.far == 256
    train.check_before_reading(train_options([*arguments, "--device", "cpu"]), pick_device("cpu"), ALONE)
    with raises_naming(ConfigError, "step", "cone", "256"):
        options_of(place(tmp_path / "place"), *arguments[:-1], "0.001")


def test_training_with_equal_steps(tmp_path: Path):
    small = [*SMALL, "--sampling.cone", "0", "--sampling.step", "0.3", *UNBOUNDED]
    run = str(tmp_path / "run")
    assert run_main(train, *small, "--data.path", str(place(tmp_path / "place")), "--out", run) == 0


def test_the_device_decides_sizes_unless_they_are_asked_for(tmp_path: Path):
    options = train_options(["--data.path", "x", "--trainer.steps", "7"])
    small, large = options.resolved(device="cpu"), options.resolved(device="cuda")
    assert (small.size, small.model.levels, small.trainer.samples, small.trainer.steps) == ("small", 6, 6144, 7)
    assert (large.size, large.model.levels, large.trainer.samples, large.trainer.steps) == ("large", 16, 262144, 7)
    assert small.trainer.optimizer == "adam" and large.trainer.optimizer == "lazy_adam"
    assert train_options(["--config", "lego"]).resolved(device="cpu").model.levels == 16
    best = train_options(["--config", "best"]).resolved(device="cpu")
    assert (best.model.levels, best.trainer.steps, best.trainer.max_seconds) == (6, 50000, 0)


def test_a_decision_says_who_made_it_and_why(tmp_path: Path):
    folder = place(tmp_path / "place")
    arguments = ["--config", "quick", "--trainer.samples", "512"]
    decisions = options_of(folder, *arguments)[0].decisions
    by = {name: decision.by for name, decision in decisions.items()}
    assert (by["trainer.samples"], by["trainer.steps"], by["model.levels"]) == ("user", "preset", "device")
    assert (by["data.background"], by["trainer.learning_rate"]) == ("scene", "model")
    assert "quick" in decisions["trainer.steps"].why and "place" in decisions["sampling.kind"].why


def test_decisions_are_kept_with_the_run_and_when_it_goes_on(tmp_path: Path):
    run = tmp_path / "run"
    assert run_main(train, *SMALL, "--data.path", str(place(tmp_path / "place")), "--out", str(run)) == 0
    decisions = load_run(run, "cpu").config.decisions
    assert decisions["data.background"].by == "scene" and decisions["trainer.steps"].by == "user"
    assert run_main(train, "--resume", str(run), "--trainer.steps", "9", "--trainer.learning_rate", "0.1") == 0
    after = load_run(run, "cpu").config.decisions
    assert after["data.background"] == decisions["data.background"]
    assert after["trainer.learning_rate"].by == "user" and after["trainer.learning_rate"].value == 0.1


def test_every_option_that_may_be_auto_has_a_rule_under_its_name():
    """In the table of the field and in that of any model; and nothing else has."""
    found = {}
    for group, options in {"": Config(), **vars(Config())}.items():
        if hasattr(options, "__dataclass_fields__"):
            for name, kind in get_type_hints(type(options), include_extras=True).items():
                marks = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Auto)]
                found |= {mark.option: f"{group}.{name}".removeprefix(".") for mark in marks}
    assert all(option == place for option, place in found.items())
    assert found.keys() == FIELD.keys() == BASE.keys() and all(map(rule, FIELD))
    assert None not in flat(to_dict(Config().resolved())).values()


def test_auto_is_a_value_on_the_command_line_and_in_files(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('[trainer]\nlearning_rate = "auto"\nsteps = 5\n[data]\nbox = "auto"\n')
    options = train_options(["--config", str(file), "--trainer.steps", "auto"])
    assert options.trainer.learning_rate is options.trainer.steps is options.data.box is None
    with pytest.raises(SystemExit):
        train_options(["--trainer.steps", "automatic"])
    config = Config()
    config.trainer.steps = config.data.box = "auto"
    assert config.resolved(device="cpu") == Config().resolved(device="cpu")


def test_what_is_decided_is_decided_anew_for_another_device():
    config = Config()
    config.trainer.samples = 99
    small = config.resolved(device="cpu")
    large = small.resolved(device="cuda")
    assert (large.size, large.model.levels, large.trainer.samples) == ("large", 16, 99)
    assert small.size == "small" and small.resolved() == small and small.resolved() is not small
