# SPDX-License-Identifier: Apache-2.0
"""Options of the viewer, what is said where its package is missing, and whose requests it answers."""

import importlib
import sys

import pytest

from nerfkit import config
from nerfkit.commands import train, view
from nerfkit.commands.options import train_options
from nerfkit.errors import ConfigError, UserError
from nerfkit.viewer.page import import_viser, own_names, policy, refusal
from tests.processes import run_main

LOCAL = own_names("127.0.0.1")


def test_a_flag_alone_turns_it_on_and_it_is_not_kept_with_the_run():
    assert not train_options([]).viewer.on
    options = train_options(["--viewer", "--viewer.port", "0", "--viewer.host", "0.0.0.0"])
    assert options.viewer.on and options.viewer.port == 0 and options.viewer.host == "0.0.0.0"
    assert "viewer" not in config.to_dict(options)


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


def test_the_package_is_not_imported_without_a_viewer(monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    for name in [name for name in sys.modules if name.startswith(("nerfkit.commands", "nerfkit.viewer"))]:
        monkeypatch.delitem(sys.modules, name)
    assert importlib.import_module("nerfkit.commands.train") is not train
    assert importlib.import_module("nerfkit.commands.view") is not view


@pytest.mark.parametrize(
    "host, origin",
    [
        ("localhost:8080", None),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("localhost:9000", "http://localhost:9000"),  # through ssh -L 9000:localhost:8080
        ("[::1]:8080", "http://[::1]:8080"),
        ("192.168.1.5:8080", "http://192.168.1.5:8080"),
        ("localhost", "https://localhost"),  # behind a proxy
    ],
)
def test_its_own_page_is_answered(host, origin):
    assert refusal([host], [origin] if origin else [], LOCAL) is None


@pytest.mark.parametrize(
    "hosts, origins",
    [
        (["evil.example:8080"], ["http://evil.example:8080"]),  # its name leads here: DNS rebinding
        (["localhost.evil.example:8080"], []),
        (["127.0.0.1.evil.example"], []),
        (["localhost:8080"], ["http://evil.example"]),  # a page of a foreign site
        (["localhost:8080"], ["http://localhost:8081"]),  # of another server on this computer
        (["localhost:8080"], ["null"]),
        (["localhost:8080"], ["http://localhost:8080", "http://evil.example"]),
        (["user@localhost:8080"], []),
        (["localhost:8080", "evil.example"], []),
        ([], []),
        ([""], []),
    ],
)
def test_others_are_refused(hosts, origins):
    assert refusal(hosts, origins, LOCAL)


def test_a_name_is_allowed_by_an_option():
    assert "gpu7" in refusal(["gpu7:8080"], [], LOCAL)
    assert refusal(["gpu7:8080"], [], own_names("127.0.0.1", ("GPU7",))) is None


def test_the_page_loads_nothing_from_elsewhere():
    text = policy("localhost:8080")
    assert "default-src 'self'" in text and "ws://localhost:8080" in text and "http:" not in text and "*" not in text
