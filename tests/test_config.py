# SPDX-License-Identifier: Apache-2.0
import math
import re
from operator import attrgetter
from pathlib import Path

import pytest

from nerfkit import config
from nerfkit.commands import options as cli
from nerfkit.errors import ConfigError
from tests.naming import raises_naming
from tests.processes import call


def write(folder, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text)
    return str(path)


def test_command_line_beats_file_beats_default(tmp_path):
    """And a later file an earlier one."""
    first = write(tmp_path, "seed = 1\n[model]\nlevels = 3\n[trainer]\nsteps = 7\nsamples = 99\n")
    second = tmp_path / "second.toml"
    second.write_text("[model]\nencoder = false\n[trainer]\nsamples = 98\n")
    for files in (["--config", first, str(second)], ["--config", first, "--config", str(second)]):
        options = cli.train_options([*files, "--trainer.steps", "8", "--data.path", "x"])
        assert (options.seed, options.model.levels, options.model.encoder) == (1, 3, False)
        assert (options.trainer.steps, options.trainer.samples, options.eval.comparisons) == (8, 98, 8)


def test_what_is_written_is_read_back(tmp_path):
    options = config.Config(seed=5)
    options.ops.overrides = {"lltm": "torch"}
    options.data.box = (-1.0, -2.0, -3.0, 1.0, 2.0, 3.0)
    config.dump(options, tmp_path / "config.toml")
    assert config.load([tmp_path / "config.toml"]) == options
    assert options.ops.choices() == {"lltm": "torch"}


@pytest.mark.parametrize("file", sorted(Path("configs").glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_files_are_small_differences(file: Path):
    assert config.load([str(file)]) != config.Config()
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
        ("[model]\nmax_resolution = 4\n", ("model.max_resolution", "4", "model.base_resolution")),
        ("[ops]\nbackend = 'cudnn'\n", ("ops.backend", "'cudnn'")),
        ("[trainer\n", ("options.toml", "TOML")),
        ("[sampling]\nnear = nan\n", ("sampling.near", "0", "1e+10", "nan")),
        (f"[model]\nlevels = 0x{16**5000:x}\n", ("model.levels", "1", "64", "2^20000")),
        ("[model]\nlog2_table = 28\n", ("model.log2_table", "28", "16")),
        ("[sampling]\nstep = 1e-6\n", ("sampling.step", "1e-06", "data.box", "5.19615", "1048575")),
        ("[sampling]\nstep = 6.0\n", ("sampling.step", "6", "data.box", "5.19615")),
        ("[sampling]\nnear = 2.0\nfar = 1.0\n", ("sampling.near", "2", "sampling.far", "1")),
        ('out = "a\\u0000b"\n', ("out", "UTF-8", "4096", "NUL")),
        ("[model.options]\nwidth = [1]\n", ("model.options", "bool | int | float | str", "array")),
        ('"a\\nb" = 1\n', (r"a\nb",)),
    ],
)
def test_bad_value_is_one_line_with_name_and_range(tmp_path, text: str, named: tuple):
    with raises_naming(ConfigError, *named) as error:
        config.load([write(tmp_path, text)]).resolved(device="cuda")
    assert "\n" not in str(error.value)


def test_values_that_work_together_may_come_from_several_places(tmp_path):
    """Only what comes out in the end is asked whether it works."""
    large = write(tmp_path, "[data]\nbox = [-9000, -9000, -9000, 9000, 9000, 9000]\n")
    assert cli.train_options(["--config", large, "--sampling.step", "1"]).resolved().sampling.step == 1
    with raises_naming(ConfigError, "sampling.step", "data.box"):
        cli.train_options(["--config", large, "--size", "large"]).resolved()


OPTIONS = [*config.flat(config.to_dict(config.Config())), "model.options", "ops.overrides"]
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
            assert config.from_dict(config.to_dict(read), "again") == read


@pytest.mark.parametrize("name", ["seed", "data.masks", "data.box", "model.options", "model.levels", "sampling.step"])
@pytest.mark.slow
def test_no_value_on_the_command_line_ends_in_a_traceback(name: str, capsys):
    n_words = 6 if name == "data.box" else 1
    for value in ("nan", "-inf", str(10**30), ""):
        try:
            cli.train_options([f"--{name}", *[value] * n_words])
        except ConfigError as error:
            assert name in str(error) and "\n" not in str(error)
        except SystemExit as end:
            assert end.code == 2 and f"--{name}" in capsys.readouterr().err


def test_text_that_no_file_of_options_holds():
    too_long, not_unicode = "a" * 5000, "a\udc80b"
    for arguments in (["--out", too_long], ["--model.options", "name", not_unicode]):
        with raises_naming(ConfigError, "UTF-8", "4096", arguments[0].removeprefix("--")):
            cli.train_options(arguments)


def test_the_help_has_every_option_with_its_range_and_default(capsys):
    with pytest.raises(SystemExit):
        cli.train_options(["--help"])
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert re.search(r"--model.levels .auto.INT. [^-]*auto: 6 with size small, else 16; 1 to 64", text)
    assert "--trainer.deterministic {true,false}" in text and "--overwrite [{true,false}]" in text
    assert all(f"--{name} " in text for name in OPTIONS) and "no_" not in text


def test_booleans_are_true_or_false_and_a_switch_alone_is_true():
    names = [name for name in OPTIONS if isinstance(attrgetter(name)(config.Config()), bool)]
    for word, value in (("false", False), ("True", True)):
        options = cli.train_options([text for name in names for text in (f"--{name}", word)])
        assert {attrgetter(name)(options) for name in names} == {value}
    for arguments, value in (([], False), (["--overwrite"], True), (["--overwrite", "false"], False)):
        assert cli.train_options(arguments).overwrite is value
    for arguments in (["--overwrite", "maybe"], ["--overwrite="], ["--trainer.deterministic"]):
        with pytest.raises(SystemExit):
            cli.train_options(arguments)


def test_options_of_a_model_of_your_own(tmp_path):
    file = write(tmp_path, "[model.options]\nwidth = 3\nname = 'x'\nsoft = true\n")
    options = cli.train_options(["--config", file, "--model.options", "width", "4", "rate", "1e-3", "hard", "false"])
    expected = {"width": 4, "name": "x", "soft": True, "rate": 0.001, "hard": False}
    assert options.model.options == expected
    config.dump(options, tmp_path / "config.toml")
    assert config.load([tmp_path / "config.toml"]).model.options == expected
    assert cli.train_options(["--model.options", "a", "nan", "b", "9" * 400]).model.options["b"] == "9" * 400
    changed = config.fixed_differences(config.load([file]), options)
    assert ("model.options.width", 3, 4) in changed and ("model.options.rate", None, 0.001) in changed


def test_preset_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.train_options(["--config", "lego", "field"]).data.path == "scenes/lego"
    (tmp_path / "lego").mkdir()  # a folder is no file of options
    assert config.preset_path("lego").name == "lego.toml"
    (tmp_path / "orrery").write_text("seed = 3\n")  # a file is, and comes first
    assert config.load(["orrery"]).seed == 3
    for name in ("nowhere.toml", "../lego", "", "x" * 5000, "a\0b"):
        with raises_naming(ConfigError, "field", "lego", "orrery", "orrery_cpu"):
            config.load([name])
    with raises_naming(ConfigError, "did you mean quick?"):
        config.load(["qick"])
    with raises_naming(ConfigError, tmp_path, "folder"):
        config.load([tmp_path])


@pytest.mark.parametrize(
    "content, named",
    [
        ("name = 'Käfer'".encode("latin-1"), "UTF-8"),
        (b"seed = " + b"[" * 30_000, "nested"),
        (b".".join([b"a"] * 50_000) + b" = 1", "32768"),
        (b"seed = " + b"1" * 5000, "TOML"),
    ],
)
def test_no_file_of_options(tmp_path, content: bytes, named: str):
    file = tmp_path / "options.toml"
    file.write_bytes(content)
    with raises_naming(ConfigError, file, named) as error:
        config.load([file])
    assert "\n" not in str(error.value)


def test_resume_ignores_nothing(tmp_path):
    run = tmp_path / "run"
    old = config.Config(out="elsewhere", model=config.ModelConfig(module="from.far.away", levels=3))
    run.mkdir()
    config.dump(old, run / "config.toml")
    (run / "scene.json").write_text('{"format": 1}')
    options = cli.train_options(["--resume", str(run), "--out", f"{run}/"])
    assert (options.out, options.model.levels, options.model.module) == (f"{run}/", 3, "")
    assert cli.train_options(["--resume", str(run), "--model.module", "mine"]).model.module == "mine"
    file = write(tmp_path, "[model]\nmodule = 'mine'\n")
    assert cli.train_options(["--resume", str(run), "--config", file]).model.module == "mine"
    with raises_naming(ConfigError, "--resume", "--out"):
        cli.train_options(["--resume", str(run), "--out", "elsewhere"])
    with raises_naming(ConfigError, "--resume", "--overwrite"):
        cli.train_options(["--resume", str(run), "--overwrite"])


@pytest.mark.parametrize(
    "command, arguments, named",
    [
        ("train", "--trainer.setps 5", "--trainer.steps"),
        ("train", "--trainer.device cpu", "did you mean --device?"),
        ("render", "run --outputs rgb depth --fps 3", "--outputs rgb,depth"),
        ("render", "run --size 640x360", "--size 640 360"),
    ],
)
def test_arguments_that_are_refused_get_a_hint(command: str, arguments: str, named: str):
    assert named in call(f"scripts/{command}.py", *arguments.split(), status=2)
    assert cli.hints("render", ["run", "--size", "640", "360", "--outputs", "rgb,depth"]) == []


def test_options_that_could_not_be_read_again_are_refused():
    options = config.Config()
    options.model.options = {f"name{i}": "x" * 4000 for i in range(9)}
    with raises_naming(ConfigError, "model.options"):
        config.dumps(options)
