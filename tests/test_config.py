# SPDX-License-Identifier: Apache-2.0
"""Options: how they are given, read back and refused."""

import math
import re
from operator import attrgetter
from pathlib import Path

import pytest

from nerfkit import config
from nerfkit.commands import options as cli
from nerfkit.commands.options import parse, train_options
from nerfkit.config import Config, flat, to_dict
from nerfkit.errors import ConfigError
from tests.naming import raises_mentioning
from tests.processes import call


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
