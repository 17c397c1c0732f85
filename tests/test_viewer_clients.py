# SPDX-License-Identifier: Apache-2.0
"""Clients of the viewer that send anything, ask for what is not theirs, leave, vanish or freeze: others see on."""

import asyncio
import gc
import logging
import os
import socket
import threading
import time
import weakref
from itertools import chain, repeat
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from nerfkit.crop import Crop, read_crop
from nerfkit.errors import UserError
from nerfkit.rendering.camera_path import CameraPath, Keyframe
from nerfkit.viewer import page as page_module
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.page import Page, ViewerOptions, bound
from tests.viewing import SIZE, Browser, FakeBrowser, at, controls_of, press, send_malformed, served, vanish, wait_for

pytestmark, pytest_plugins = pytest.mark.slow, "tests.viewing"

MUCH = os.urandom(24 * 2**20)  # bytes, more than sockets hold

TOO_MUCH = [  # label of a control, value that a client sends, value that is taken; None: as before
    ("Share of training", 0.0, 0.5),
    ("Lowest corner", [float("nan"), 0, 0], (0.5, 0.5, 0.5)),  # of a handle, below
    ("Highest corner", [0, 0], None),
    ("Crop", "yes", None),
    ("Keyframe", "999", None),
    ("Kept", "/etc/passwd", None),
    ("Width", 100000, 8192),
    ("Height", 0, 16),
    ("Frames a second", None, None),
    ("Field of view", "wide", None),
    ("Upload", 1, None),
    ("Background", "pink", None),
    ("Cameras", 2, None),
    ("Largest side", 40000, 2048),
    ("Depths", [-1e9, 1.0], (0.0, 1.0)),
    ("Output", ["nothing"], None),
]


def test_no_value_of_a_client_is_trusted(viewer, browser, session, folder, capfd):
    panel, controls = viewer.panels.path, controls_of(viewer, session)
    before, nowhere = {label: controls[label].value for label, _, _ in TOO_MUCH}, [float("nan")] * 3
    sent = {"part_count": 0, "size_bytes": 0, "filename": "", "mime_type": "", "transfer_uuid": "a"}
    for label, value, _ in TOO_MUCH:
        press(browser, controls[label], value, options=["999", value], min=-1e9, removed=True)
        if label != "Upload":
            uuid = controls[label]._impl.uuid
            browser.tell({"type": "FileTransferStartUpload", "source_component_uuid": uuid, **sent})
    browser.send(nowhere, (1.0, 0.0, 0.0))
    moved = {"type": "TransformControlsUpdateMessage", "name": "/crop/low", "wxyz": [1, 0, 0, 0]}
    for position in (nowhere, [0.0, 0.0], [0.5] * 3):  # the last one is a corner
        browser.tell(moved | {"position": position})
    assert at(browser, (2.5, 0.7, 1.0)).shape == (SIZE[1], SIZE[0], 3)
    for label, _, taken in TOO_MUCH:
        assert controls[label].value == (before[label] if taken is None else taken), label
    assert panel.path.size == (8192, 16) and session.max_side == 2048 and viewer.state.sharing.training == 0.5
    assert viewer.panels.crop.crop == Crop((0.5,) * 3, (0.8,) * 3)
    read_crop(folder, None)  # which fails for one that is not finite
    told = capfd.readouterr().err
    assert "Traceback" not in told and "crop" in told and "camera" in told
    path = CameraPath([Keyframe(np.eye(3, 4), 0.5)] * 2, fps=1000, size=(60000, 4))
    viewer.later(lambda: panel.files._upload(session, path.to_json(None).encode()))
    wait_for(lambda: controls["Frames a second"].value == 120)
    assert (panel.path.size, panel.path.fps, len(panel.path.keyframes)) == ((8192, 16), 120, 2)


def test_foreign_pages_are_refused_and_nobody_is_asked_for_a_tunnel(viewer, browser, session, monkeypatch, capfd):
    import requests
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = viewer.page.address.replace("http", "ws")
    for headers in ({"origin": "http://evil.example"}, {"additional_headers": {"Host": "evil.example"}}):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, **headers)
    answer = http_get(viewer.page.port, "evil.example")
    assert b" 403 " in answer and b"evil.example" in answer
    assert capfd.readouterr().err.count("--viewer.names evil.example") == 2, "of Host and of Origin, each once"
    assert b"Content-Security-Policy" in http_get(viewer.page.port, "localhost")
    asked = []
    monkeypatch.setattr(requests, "request", lambda *a, **k: asked.append(a))
    monkeypatch.setattr(requests, "get", lambda *a, **k: asked.append(a))
    browser.tell({"type": "ShareUrlRequest"})
    time.sleep(0.2)
    assert not asked and viewer.sessions


def test_a_proxy_is_let_through_by_its_name():
    page = Page(ViewerOptions(port=0, names=("Viewer.example.org",)), "test")
    answer = http_get(page.port, "localhost", "Origin: https://viewer.example.org\r\n")
    page.stop()
    assert b" 200 " in answer and b"wss://viewer.example.org" in answer
    assert "Viewer.example.org" in page.how_to_reach() and "Upgrade" in page.how_to_reach()


def test_what_is_not_understood_is_told_in_a_line_and_others_see_on(viewer, browser, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("websockets.client"), "disabled", True)  # of the test's own clients
    at(browser)
    send_malformed(viewer)
    for path in ("/" + "x" * 300, "/%00", "/\xff", "/?" + "y" * 5000):
        assert http_get(viewer.page.port, "localhost", path=path).startswith(b"HTTP/1.1 ")
    assert at(browser, (2.5, 0.7, 1.0)).shape == (SIZE[1], SIZE[0], 3)
    gc.collect()  # of tasks that failed
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(line.startswith("viewer: ") and len(line) < 400 and line.isprintable() for line in lines)


def http_get(port: int, host: str, more: str = "", path: str = "/") -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode())
        return connection.makefile("rb").read(4096)


def test_a_port_that_is_taken_is_named_and_not_another_one_used():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"(?s){port}.*--viewer.port"):
            Page(ViewerOptions(port=port), "test")


def test_an_end_leaves_no_thread_and_no_port(folder):
    before = set(threading.enumerate())
    with served(folder) as viewer:
        port, browser = viewer.page.port, FakeBrowser(viewer.page.address, SIZE)
        browser.send((2.5, 0.5, 1.0))
        browser.image()
    browser.close()
    assert not [thread for thread in threading.enumerate() if thread not in before and "tqdm" not in thread.name]
    bound("127.0.0.1", port).close()


def come(viewer) -> Browser:
    browser = Browser(viewer)
    browser.drag()
    browser.images.get(timeout=20)
    return browser


def test_browsers_that_vanish_leave_no_session_and_no_thread_and_are_freed_at_once(viewer, monkeypatch):
    freed, left = [], []
    give_back = viewer_module.give_back
    monkeypatch.setattr(viewer_module, "give_back", lambda: freed.append(give_back()))
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.5)
    one, two, three = (come(viewer) for _ in range(3))
    vanish(one)
    vanish(two)
    three.close()
    wait_for(lambda: not viewer.sessions and freed)
    threads = set(threading.enumerate())
    browsers = [come(viewer) for _ in range(2)]
    for session in viewer.sessions.values():
        left.extend(map(weakref.ref, (session, session.client, session.client._websock_connection._state)))
    del session
    for browser in browsers:
        vanish(browser)
    wait_for(lambda: not viewer.sessions and len(freed) > 1)
    time.sleep(0.7)
    assert len(left) == 6 and not any(thing() for thing in left) and len(freed) == 2
    assert not viewer.engine.clients and set(threading.enumerate()) <= threads


def frozen(viewer) -> Browser:
    """One that reads nothing any more, so that there is no room to send it a ping."""
    browser = come(viewer)
    (session,) = viewer.sessions.values()
    browser.freeze()
    session.client.send_file_download("much", MUCH)
    return browser


def test_a_frozen_browser_is_hung_up_on_and_another_sees_on(viewer, monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.3)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 8.0)  # others have as long to answer on a busy machine
    still, other = frozen(viewer), come(viewer)
    seen = other.images.qsize()
    wait_for(lambda: other.drag() or other.images.qsize() >= seen + 5)
    other.close()
    wait_for(lambda: not viewer.sessions, 40)
    assert still.is_hung_up()


def test_an_end_does_not_wait_for_a_frozen_browser(viewer):
    browser = frozen(viewer)
    time.sleep(0.5)
    began = time.monotonic()
    viewer.page.stop()
    assert time.monotonic() - began < 3 and not viewer.page.server._websock_server._server_thread.is_alive()
    assert browser.is_hung_up()


def test_a_slow_browser_that_reads_is_waited_for(monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.0)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 0.05)

    async def seconds(read: int) -> float:
        """Until one is hung up on that never answers, and reads so many of 10 bytes each time that somebody looks."""
        began, left = time.monotonic(), chain(range(10, 0, -read), repeat(0)) if read else repeat(10)
        transport = Mock(get_write_buffer_size=lambda: next(left))
        never = AsyncMock(side_effect=asyncio.get_running_loop().create_future)
        await page_module.hang_up_when_frozen(Mock(ping=never, transport=transport))
        transport.abort.assert_called_once()
        return time.monotonic() - began

    assert asyncio.run(seconds(0)) < 0.2 < asyncio.run(seconds(1))
