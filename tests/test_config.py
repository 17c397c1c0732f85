# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from nerfkit import config
from nerfkit.commands import options as cli
from nerfkit.errors import ConfigError


def write(folder, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text)
    return str(path)


def test_command_line_beats_file_beats_default(tmp_path):
    file = write(tmp_path, "[trainer]\nsteps = 7\nsamples = 99\n")
    options = cli.train_options(["--config", file, "--trainer.steps", "8", "--data.path", "x"])
    assert (options.trainer.steps, options.trainer.samples, options.trainer.warmup) == (8, 99, 100)


def test_a_later_file_beats_an_earlier_one(tmp_path):
    first = write(tmp_path, "seed = 1\n[model]\nlevels = 3\n")
    second = tmp_path / "second.toml"
    second.write_text("[model]\nencoder = false\n")
    for arguments in (["--config", first, str(second)], ["--config", first, "--config", str(second)]):
        options = cli.train_options(arguments)
        assert (options.seed, options.model.levels, options.model.encoder) == (1, 3, False)


def test_what_is_written_is_read_back(tmp_path):
    options = config.Config(seed=5)
    options.ops.lltm = "torch"
    options.data.box = (-1.0, -2.0, -3.0, 1.0, 2.0, 3.0)
    config.dump(options, tmp_path / "config.toml")
    assert config.load([tmp_path / "config.toml"]) == options
    assert options.ops.overrides() == {"lltm": "torch"}


@pytest.mark.parametrize("name", ["lego", "orrery", "orrery_cpu", "field"])
def test_shipped_files_are_small_differences(name: str):
    loaded = config.load([f"configs/{name}.toml"])
    assert loaded != config.Config()


@pytest.mark.parametrize(
    "text, message",
    [
        ("[trainer]\nstep = 7\n", r"unknown option trainer.step; did you mean trainer.steps\?"),
        ("[train]\nsteps = 7\n", r"unknown option train; did you mean trainer\?"),
        ("[trainer]\nsteps = 'many'\n", "trainer.steps: Expected `int`, got `str`"),
        ("[trainer]\nsteps = -1\n", "trainer.steps must be positive, got -1"),
        ("[trainer]\nfinal_learning_rate = 0.0\n", "trainer.final_learning_rate must be positive, got 0.0"),
        ("[data]\nbackground = 'pink'\n", "data.background: Invalid enum value 'pink'"),
        ("[data]\nbox = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]\n", "data.box: the lowest corner .* must be below"),
        ("[model]\nkernel = 4\n", "model.kernel must be odd, got 4"),
        ("[model]\nmax_resolution = 4\n", "must be at least model.base_resolution"),
        ("[ops]\nbackend = 'cudnn'\n", "ops.backend: Invalid enum value 'cudnn'"),
        ("[trainer\n", "is not valid TOML"),
    ],
)
def test_bad_file(tmp_path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        config.load([write(tmp_path, text)])


def test_missing_file():
    with pytest.raises(ConfigError, match="cannot read the configuration nowhere.toml: No such file"):
        config.load(["nowhere.toml"])


def test_bad_command_line_suggests(capsys):
    with pytest.raises(SystemExit):
        cli.train_options(["--trainer.setps", "5"])
    assert "--trainer.steps" in capsys.readouterr().err


def test_every_option_has_help(capsys):
    with pytest.raises(SystemExit):
        cli.train_options(["--help"])
    text = capsys.readouterr().out
    for group in dataclasses.fields(config.Config):
        if dataclasses.is_dataclass(group.default_factory):
            for option in dataclasses.fields(group.default_factory):
                assert f"--{group.name}.{option.name}" in text
    assert "[scene units]" in text and "default: 20000" in text
