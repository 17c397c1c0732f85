# SPDX-License-Identifier: Apache-2.0
"""Options of the viewer, and what is said where its package is missing."""

import sys

import pytest

from nerfkit.commands import train, view
from nerfkit.commands.options import train_options
from nerfkit.errors import ConfigError, UserError
from nerfkit.viewer.page import import_viser
from tests.processes import run_main


def test_a_flag_alone_turns_it_on():
    assert not train_options([]).viewer.on
    options = train_options(["--viewer", "--viewer.port", "0", "--viewer.host", "0.0.0.0"])
    assert options.viewer.on and options.viewer.port == 0 and options.viewer.host == "0.0.0.0"


def test_it_is_not_kept_with_the_run():
    from nerfkit import config

    assert "viewer" not in config.to_dict(train_options(["--viewer"]))


def test_a_port_out_of_range_is_named(tmp_path):
    with pytest.raises(ConfigError, match="viewer.port"):
        train_options(["--viewer.port", "70000"])
    with pytest.raises(ConfigError, match="viewer.port"):
        run_main(view, str(tmp_path), "--viewer.port", "70000")


def test_a_missing_package_is_named_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "viser", None)
    for command in (
        import_viser,
        lambda: run_main(view, str(tmp_path)),
        lambda: run_main(train, "--config", "cpu", "--data.path", str(tmp_path), "--viewer"),
    ):
        with pytest.raises(UserError, match=r"viser.*pip install .nerfkit\[viewer\]"):
            command()


@pytest.mark.slow
def test_the_package_is_not_imported_without_a_viewer():
    import subprocess

    code = "import sys, nerfkit.commands.train, nerfkit.commands.view; sys.exit('viser' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
