# SPDX-License-Identifier: Apache-2.0
"""Browsers that leave, vanish or freeze: nothing of them stays, and others see on."""

import asyncio
import os
import threading
import time
import weakref

import pytest

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from nerfkit.viewer import page as page_module
from nerfkit.viewer import viewer as viewer_module
from tests.viewing import Browser, served, small_run, tiny_config, vanish, wait_for

MUCH = os.urandom(24 * 2**20)  # bytes, more than sockets hold


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_scene):
    return small_run(tiny_config(toy_scene), tmp_path_factory.mktemp("viewer") / "run", steps=20)


@pytest.fixture
def viewer(folder):
    with served(folder) as viewer:
        yield viewer


def come(viewer) -> Browser:
    """A browser that sees the scene."""
    browser = Browser(viewer)
    browser.drag(0.1)
    browser.pictures.get(timeout=20)
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


def test_a_browser_that_has_left_is_not_drawn_for_and_is_no_error(viewer, capfd):
    browser = come(viewer)
    (session,) = viewer.sessions.values()
    vanish(browser)
    wait_for(lambda: not viewer.sessions and not viewer.engine.clients)
    session.change(output="depth")
    assert not viewer.engine.clients
    viewer.sessions[session.client.client_id] = session  # as before viser has told that it left
    session._status_at = 0.0
    session.ask()
    wait_for(lambda: not viewer.engine.next() and viewer.engine.is_between_frames)
    assert viewer.engine.clients and "viewer:" not in capfd.readouterr().err


def test_a_frozen_browser_is_hung_up_on_and_another_sees_on(viewer, monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.3)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 1.5)
    still = come(viewer)
    (session,) = viewer.sessions.values()
    other = come(viewer)
    still.freeze()
    session.client.send_file_download("much", MUCH)  # there is no room to send a ping
    seen = other.pictures.qsize()
    other.drag(1.0)
    assert len(viewer.sessions) == 2 and other.pictures.qsize() >= seen + 5
    wait_for(lambda: list(viewer.sessions.values()) not in ([], [session]) and len(viewer.sessions) == 1)
    assert still.is_hung_up()
    seen = other.pictures.qsize()
    other.drag(0.5)
    assert other.pictures.qsize() > seen
    other.close()


def test_an_end_does_not_wait_for_a_frozen_browser(viewer):
    browser = come(viewer)
    browser.freeze()
    (session,) = viewer.sessions.values()
    session.client.send_file_download("much", MUCH)
    time.sleep(0.5)
    began = time.monotonic()
    viewer.page.stop()
    assert time.monotonic() - began < 3 and not viewer.page.server._websock_server._server_thread.is_alive()
    assert browser.is_hung_up()


class FakeConnection:
    """Never answers; `read` bytes of what was sent are read each time that somebody looks."""

    def __init__(self, read: int):
        self.transport, self.read, self.unread, self.aborted = self, read, 10, False

    async def ping(self):
        return asyncio.get_running_loop().create_future()

    def get_write_buffer_size(self) -> int:
        self.unread = max(self.unread - self.read, 0)
        return self.unread

    def abort(self) -> None:
        self.aborted = True


def test_a_slow_browser_that_reads_is_waited_for(monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.0)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 0.05)

    async def seconds(read: int) -> float:
        connection, began = FakeConnection(read), time.monotonic()
        await page_module.hang_up_when_frozen(connection)
        assert connection.aborted
        return time.monotonic() - began

    assert asyncio.run(seconds(0)) < 0.2 < asyncio.run(seconds(1))
