# SPDX-License-Identifier: Apache-2.0
import os
import socket
from pathlib import Path

import pytest

from nerfkit.errors import RunError, SceneError
from nerfkit.reading import native_name, read_json, read_regular, read_text_utf8, shown


def test_reads_what_is_there(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"\xc3\xbc": [1, 2.5, NaN, "\xe2\x82\xac"]}')
    assert read_regular(file, 100, "file").startswith(b"\xef\xbb\xbf{")
    assert read_text_utf8(file, RunError).startswith("{")
    content = read_json(file, RunError)
    assert content["ü"][:2] == [1, 2.5] and content["ü"][3] == "€"
    (tmp_path / "link.json").symlink_to(file)
    assert read_json(tmp_path / "link.json", RunError).keys() == {"ü"}


CONTENTS = {
    "cut_short": (b'{"a": [1, 2', "is not valid JSON"),
    "empty": (b"", "is not valid JSON"),
    "latin_1": ('{"ü": 1}'.encode("latin-1"), r"is not UTF-8 text \(byte 0xfc at position 2\); save it as UTF-8"),
    "utf_16": ('{"a": 1}'.encode("utf-16"), "is not UTF-8 text"),
    "binary": (bytes(range(256)), "is not UTF-8 text"),
    "nested": (b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
    "nested_objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
    "above_a_float": (b"[1" + b"0" * 400 + b"]", "an integer of 401 digits is too large"),
    "above_an_int": (b"[-1" + b"0" * 5000 + b"]", "an integer of 5002 digits is too large"),
    "large": (b"[" + b"1," * 600 + b"1]", "has 1203 bytes, more than the limit of 1000"),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("error", [SceneError, RunError])
def test_bad_content(tmp_path, name: str, error: type):
    content, message = CONTENTS[name]
    file = tmp_path / "a.json"
    file.write_bytes(content)
    limit = 1000 if name == "large" else 10**6
    with pytest.raises(error, match=f"^camera path .*a.json.*{message}") as caught:
        read_json(file, error, "camera path", limit)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path, message",
    [
        ("nowhere", "No such file"),
        ("", "is a folder, not a regular file"),
        ("n" * 5000, r"File name too long"),
        ("a\0b", "null"),
        ("a.json/b", "Not a directory"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_bad_paths(tmp_path, path: str, message: str):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(RunError, match=message) as caught:
        read_json(tmp_path / path, RunError)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "pipe", "a pipe"),
            (tmp_path / "socket", "a socket"),
            (tmp_path, "a folder"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(SceneError, match=f"{path} is {kind}, not a regular file"):
                read_regular(path, 1000, "image", SceneError)


def test_a_file_whose_size_is_not_told():
    with pytest.raises(RunError, match="changes while it is read"):
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
