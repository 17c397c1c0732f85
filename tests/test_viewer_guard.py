# SPDX-License-Identifier: Apache-2.0
"""Whose requests the viewer answers."""

import pytest

from nerfkit.viewer.page import own_names, policy, refusal

LOCAL = own_names("127.0.0.1")


@pytest.mark.parametrize(
    "host, origin",
    [
        ("localhost:8080", None),
        ("localhost:8080", "http://localhost:8080"),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("localhost:9000", "http://localhost:9000"),  # through ssh -L 9000:localhost:8080
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
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
        (["evil.example:8080"], []),  # its name leads here: DNS rebinding
        (["evil.example:8080"], ["http://evil.example:8080"]),
        (["localhost.evil.example:8080"], []),
        (["localhost:8080"], ["http://evil.example"]),  # a page of a foreign site
        (["localhost:8080"], ["http://localhost:8081"]),  # of another server on this computer
        (["localhost:8080"], ["null"]),
        (["localhost:8080"], ["http://localhost:8080", "http://evil.example"]),
        (["127.0.0.1.evil.example"], []),
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
