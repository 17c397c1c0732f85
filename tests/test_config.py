# SPDX-License-Identifier: Apache-2.0
"""Options: how they are given and what is refused; what scene, device and model decide of those left as auto, and what
is left as a user gave it."""

import math
import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch

from nerfkit import config
from nerfkit.commands import options as cli
from nerfkit.commands import train
from nerfkit.commands.options import parse, train_options
from nerfkit.config import BASE, FIELD, Config, ResolvedConfig, flat, to_dict
from nerfkit.config.recipe import UNLIMITED
from nerfkit.data.load import scene_of
from nerfkit.data.scene import Scene
from nerfkit.errors import ConfigError
from nerfkit.model.registry import model_class
from nerfkit.training.run.load import load_run
from tests.camera_layouts import grid, ring
from tests.naming import raises_mentioning
from tests.posed_captures import SMALL, write_capture
from tests.processes import call, run_main
from tests.test_quality import needs_images_of


def write(folder, text: str | bytes) -> str:
    path = folder / "options.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_command_line_beats_file_beats_default(tmp_path):
    first = write(tmp_path, "seed = 1\n[model]\nlevels = 3\n[trainer]\nsteps = 7\nsamples_per_step = 99\n")
    second = tmp_path / "second.toml"
    second.write_text("[model]\nencoder = false\n[trainer]\nsamples_per_step = 98\n")
    for files in (["--config", first, str(second)], ["--config", first, "--config", str(second)]):
        options = train_options([*files, "--trainer.steps", "8", "--data.path", "x"])
        assert (options.seed, options.model.levels, options.model.encoder) == (1, 3, False)
        assert (options.trainer.steps, options.trainer.samples_per_step, options.eval.comparison_images) == (8, 98, 8)


def test_what_is_written_is_read_back(tmp_path):
    options = Config(seed=5)
    options.ops.overrides = {"lltm": "torch"}
    options.data.box = (-1.0, -2.0, -3.0, 1.0, 2.0, 3.0)
    config.dump(options, tmp_path / "config.toml")
    assert config.load([tmp_path / "config.toml"]) == options
    assert options.ops.choices() == {"lltm": "torch"}


@pytest.mark.parametrize("file", sorted(Path("configs").glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_files_are_small_differences(file: Path):
    assert config.load([str(file)]) != Config()
    assert config.load([file.stem]) == config.load([str(file)]), "by its name, too"


@pytest.mark.parametrize(
    "text, named",
    [
        ("[trainer]\nstep = 7\n", ("trainer.step", "trainer.steps")),
        ("[train]\nsteps = 7\n", ("train", "trainer")),
        ("[trainer]\nsteps = 'many'\n", ("trainer.steps", "int", "str")),
        ("[trainer]\nsteps = -1\n", ("trainer.steps", "1", "1000000000", "-1")),
        ("[data]\nbackground = 'pink'\n", ("data.background", "'pink'")),
        ("[data]\nbox = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]\n", ("data.box", "1.0", "0.0")),
        ("[data]\nbox = [5e5, 4512345.6, 0.0, 500004.0, 4512349.6, 4.0]\n", ("data.box", "4512345.6", "subtract")),
        ("[model]\nmax_resolution = 4\n", ("model.max_resolution", "4", "model.base_resolution")),
        ("[ops]\nbackend = 'cudnn'\n", ("ops.backend", "'cudnn'")),
        ("[trainer\n", ("options.toml", "TOML")),
        ("[sampling]\nnear = nan\n", ("sampling.near", "0", "1e+10", "nan")),
        (f"[model]\nlevels = 0x{16**5000:x}\n", ("model.levels", "1", "64", "2^20000")),
        ("[model]\nlog2_hashmap_size = 28\n", ("model.log2_hashmap_size", "28", "16")),
        ("[sampling]\nstep_size = 1e-6\n", ("sampling.step_size", "1e-06", "data.box", "5.19615", "1048575")),
        ("[sampling]\nstep_size = 6.0\n", ("sampling.step_size", "6", "data.box", "5.19615")),
        ("[sampling]\nnear = 2.0\nfar = 1.0\n", ("sampling.near", "2", "sampling.far", "1")),
        ('out = "a\\u0000b"\n', ("out", "UTF-8", "4096", "NUL")),
        (f"out = '{'a' * 5000}'\n", ("out", "UTF-8", "4096")),
        ("[model.options]\nwidth = [1]\n", ("model.options", "bool | int | float | str", "array")),
        ('"a\\nb" = 1\n', (r"a\nb",)),
        ("name = 'Käfer'".encode("latin-1"), ("options.toml", "UTF-8")),
        ("seed = " + "[" * 30_000, ("options.toml", "nested")),
        (".".join(["a"] * 50_000) + " = 1", ("options.toml", "32768")),
        ("seed = " + "1" * 5000, ("options.toml", "TOML")),
    ],
)
def test_bad_value_is_one_line_with_name_and_range(tmp_path, text: str | bytes, named: tuple):
    with raises_mentioning(ConfigError, *named) as error:
        config.load([write(tmp_path, text)]).resolved(device="cuda")
    assert "\n" not in str(error.value)


def test_values_that_work_together_may_come_from_several_places(tmp_path):
    """Only what comes out in the end is asked whether it works."""
    large = write(tmp_path, "[data]\nbox = [-9000, -9000, -9000, 9000, 9000, 9000]\n")
    assert train_options(["--config", large, "--sampling.step_size", "1"]).resolved().sampling.step_size == 1
    with raises_mentioning(ConfigError, "sampling.step_size", "data.box"):
        train_options(["--config", large, "--size", "large"]).resolved()


OPTIONS = [*flat(to_dict(Config())), "model.options", "ops.overrides"]
NASTY = [math.nan, math.inf, -math.inf, 0, -1, 1e30, 10**30, 2**31, 2**63, 10**4000, "", "x", "true", True, {}]


@pytest.mark.parametrize("name", OPTIONS)
def test_no_value_from_a_file_ends_in_a_traceback(name: str):
    group, _, key = name.rpartition(".")
    for value in [*NASTY, [math.nan] * 6, [10**400] * 6, None]:
        values = {key: value}
        try:
            read = config.from_dict({group: values} if group else values, "file")
        except ConfigError as error:
            assert name in str(error) and "\n" not in str(error)
        else:
            assert config.from_dict(to_dict(read), "again") == read


def test_the_help_has_every_option_with_its_range_and_default(capsys):
    with pytest.raises(SystemExit):
        train_options(["--help"])
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert re.search(r"--model.levels .auto.INT. [^-]*auto, which is 6 if size is small, else 16; range 1 to 64", text)
    assert "--trainer.deterministic {true,false}" in text and "--overwrite [{true,false}]" in text
    assert all(f"--{name} " in text for name in OPTIONS) and "no_" not in text
    assert not re.search(r"--[\w.]+ [A-Z{]\S* \(default", text), "each is explained"


def test_booleans_are_true_or_false_and_a_switch_alone_is_true():
    names = [name for name in OPTIONS if isinstance(attrgetter(name)(Config()), bool)]
    for word, value in (("false", False), ("True", True)):
        options = train_options([text for name in names for text in (f"--{name}", word)])
        assert {attrgetter(name)(options) for name in names} == {value}
    for arguments, value in (([], False), (["--overwrite"], True), (["--overwrite", "false"], False)):
        assert train_options(arguments).overwrite is value
    for arguments in (["--overwrite", "maybe"], ["--overwrite="], ["--trainer.deterministic"]):
        with pytest.raises(SystemExit):
            train_options(arguments)


def test_options_of_a_model_of_your_own(tmp_path):
    file = write(tmp_path, "[model.options]\nwidth = 3\nname = 'x'\nsoft = true\n")
    options = train_options(["--config", file, "--model.options", "width", "4", "rate", "1e-3", "hard", "false"])
    expected = {"width": 4, "name": "x", "soft": True, "rate": 0.001, "hard": False}
    assert options.model.options == expected
    config.dump(options, tmp_path / "config.toml")
    assert config.load([tmp_path / "config.toml"]).model.options == expected
    assert train_options(["--model.options", "a", "nan", "b", "9" * 400]).model.options["b"] == "9" * 400
    changed = config.fixed_differences(config.load([file]), options)
    assert ("model.options.width", 3, 4) in changed and ("model.options.rate", None, 0.001) in changed


def test_preset_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_options(["--config", "lego", "field"]).data.path == "scenes/lego"
    (tmp_path / "lego").mkdir()  # a folder is no file of options
    assert config.preset_path("lego").name == "lego.toml"
    (tmp_path / "orrery").write_text("seed = 3\n")  # a file is, and comes first
    assert config.load(["orrery"]).seed == 3
    for name in ("nowhere.toml", "../lego", "", "x" * 5000, "a\0b"):
        with raises_mentioning(ConfigError, "field", "lego", "orrery", "orrery_cpu"):
            config.load([name])
    with raises_mentioning(ConfigError, "did you mean quick?"):
        config.load(["qick"])
    with raises_mentioning(ConfigError, tmp_path / "config.toml"):
        config.load([tmp_path])  # a folder is that of a run


def test_resume_ignores_nothing(tmp_path):
    run = tmp_path / "run"
    old = Config(out="elsewhere", model=config.ModelConfig(module="from.far.away", levels=3))
    old.data.path = "scenes/mine"
    run.mkdir()
    config.dump(old, run / "config.toml")
    (run / "scene.json").write_text('{"format": 1}')
    options = train_options(["--resume", str(run), "--out", f"{run}/"])
    assert (options.out, options.model.levels, options.model.module) == (f"{run}/", 3, "")
    assert options.data.path == "scenes/mine"
    assert train_options(["scenes/moved", "--resume", str(run)]).data.path == "scenes/moved"
    assert train_options(["--resume", str(run), "--model.module", "mine"]).model.module == "mine"
    file = write(tmp_path, "[model]\nmodule = 'mine'\n")
    assert train_options(["--resume", str(run), "--config", file]).model.module == "mine"
    with raises_mentioning(ConfigError, "--resume", "--out"):
        train_options(["--resume", str(run), "--out", "elsewhere"])
    with raises_mentioning(ConfigError, "--resume", "--overwrite"):
        train_options(["--resume", str(run), "--overwrite"])


@pytest.mark.parametrize(
    "command, arguments, named",
    [
        ("train", "--trainer.setps 5", "--trainer.steps"),
        ("train", "--trainer.device cpu", "did you mean --device?"),
        ("train", "scene --output run", "no option --output; did you mean --out?"),
        ("train", "scene --steps=3", "did you mean --trainer.steps?"),
        ("train", "scene --trainer.stepz 3", "did you mean --trainer.steps?"),
        ("train", "--data scene", "did you mean --data.path or "),
        ("train", "scene --viewr", "did you mean --viewer?"),
        ("train", "scene --banana 3", "no option --banana\n"),
        ("render", "run --cam orbit", "did you mean --cameras?"),
        ("export", "run mesh --resolutoin 3", "did you mean --resolution?"),
        ("doctor", "x", "'x'"),
        ("render", "run --outputs rgb depth --fps 3", "--outputs rgb,depth"),
        ("render", "run --size 640x360", "--size 640 360"),
    ],
)
def test_arguments_that_are_refused_get_a_hint(command: str, arguments: str, named: str):
    assert named in call(f"scripts/{command}.py", *arguments.split(), status=2)
    assert cli.hints("render", ["run", "--size", "640", "360", "--outputs", "rgb,depth"]) == []


def test_options_that_could_not_be_read_again_are_refused():
    options = Config()
    options.model.options = {f"name{i}": "x" * 4000 for i in range(9)}
    with raises_mentioning(ConfigError, "model.options"):
        config.dumps(options)
    with raises_mentioning(ConfigError, "model.options", "UTF-8"):
        train_options(["--model.options", "name", "a\udc80b"])


def test_the_folder_of_the_scene_comes_first(tmp_path):
    scene, file = str(tmp_path), ["--config", "lego"]
    for arguments in ([scene], [scene, *file], [scene, *file, "--data.path", f"{scene}/."], ["--data.path", scene]):
        assert Path(train_options(arguments).data.path) == tmp_path
    assert train_options(file).data.path == "scenes/lego"
    assert Path(parse("train", [scene, "--device", "cpu", "--trainer.steps", "3"]).data.path) == tmp_path
    for other in (["--data.path", "elsewhere"], ["--data.path=elsewhere"]):
        for command, files in (("train", file), ("inspect", [])):
            with raises_mentioning(ConfigError, scene, "elsewhere", "--data.path"):
                parse(command, [scene, *files, *other])
    assert parse("inspect", [scene]).data.path == parse("inspect", ["--data.path", scene]).data.path == scene


# What is decided

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
