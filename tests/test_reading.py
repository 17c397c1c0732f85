# SPDX-License-Identifier: Apache-2.0
import os
import socket
from pathlib import Path

import pytest

from nerfkit.errors import RunError, SceneError
from nerfkit.reading import native_name, read_json, read_regular, shown
from tests.naming import raises_naming


def test_reads_what_is_there(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"\xc3\xbc": [1, 2.5, NaN, "\xe2\x82\xac"]}')
    content = read_json(file, RunError)
    assert content["ü"][:2] == [1, 2.5] and content["ü"][3] == "€"
    (tmp_path / "link.json").symlink_to(file)
    assert read_json(tmp_path / "link.json", RunError).keys() == {"ü"}


CONTENTS = {
    "cut_short": (b'{"a": [1, 2', "JSON"),
    "empty": (b"", "JSON"),
    "latin_1": ('{"ü": 1}'.encode("latin-1"), "UTF-8", "0xfc", "2"),
    "nested": (b"[" * 50_000 + b"]" * 50_000, "nested"),
    "above_an_int": (b"[-1" + b"0" * 5000 + b"]", "5002"),
    "large": (b"[" + b"1," * 600 + b"1]", "1203", "1000"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_bad_content(tmp_path, name: str):
    content, *named = CONTENTS[name]
    file = tmp_path / "a.json"
    file.write_bytes(content)
    limit = 1000 if name == "large" else 10**6
    with raises_naming(SceneError, "camera path", file, *named) as caught:
        read_json(file, SceneError, "camera path", limit)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path, named",
    [
        ("nowhere", ("nowhere", "No such file")),
        ("", ("folder",)),
        ("a\0b", (r"a\x00b",)),
        ("\ud800", (r"\ud800",)),
    ],
)
def test_bad_paths(tmp_path, path: str, named: tuple):
    (tmp_path / "a.json").write_text("{}")
    with raises_naming(RunError, *named) as caught:
        read_json(tmp_path / path, RunError)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        kinds = {"pipe": tmp_path / "pipe", "socket": tmp_path / "socket", "folder": tmp_path, "device": "/dev/zero"}
        for kind, path in kinds.items():
            with raises_naming(SceneError, path, kind):
                read_regular(Path(path), 1000, "image", SceneError)
    with raises_naming(RunError, "/proc/self/maps"):
        read_regular(Path("/proc/self/maps"), 10**6, "file", RunError)


def test_names_of_files_are_utf_8():
    assert os.fsencode(native_name("Bäume/ü.png")) == "Bäume/ü.png".encode()
    from_the_shell = os.fsdecode(b"\xff.png")
    assert os.fsencode(native_name(from_the_shell)) == b"\xff.png"
    with pytest.raises(ValueError):
        native_name("\ud800")


def test_shown_is_one_short_line():
    assert shown(Path("a/b.png")) == "a/b.png" and shown("ü") == "ü"
    assert shown("a\nb\x1b[31m\udcff") == r"a\nb\x1b[31m\udcff"
    assert len(shown("x" * 10**5)) < 250 and "(100000 characters)" in shown("x" * 10**5)
