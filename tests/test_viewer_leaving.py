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
from tests.viewing import Browser, served, small_run, wait_for

MUCH = os.urandom(24 * 2**20)  # bytes, more than sockets hold


@pytest.fixture
def viewer(small_config, tmp_path):
    with served(small_run(small_config, tmp_path / "run", steps=20)) as viewer:
        yield viewer


async def come(viewer) -> Browser:
    """A browser that sees the scene."""
    browser = Browser(viewer)
    await browser.come()
    await browser.drag(0.2)
    while not browser.n_pictures:
        await asyncio.sleep(0.02)
    return browser


async def until(condition, seconds: float = 20.0) -> None:
    await asyncio.to_thread(wait_for, condition, seconds)


def test_browsers_that_vanish_leave_no_session_and_no_thread_and_are_freed_at_once(viewer, monkeypatch):
    freed = []
    give_back = viewer_module.give_back
    monkeypatch.setattr(viewer_module, "give_back", lambda: freed.append(give_back()))
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.5)

    async def live() -> None:
        browsers = [await come(viewer) for _ in range(3)]
        browsers[0].connection.transport.abort()
        browsers[1].connection.transport.abort()
        await browsers[2].connection.close()

    asyncio.run(live())
    wait_for(lambda: not viewer.sessions and freed)
    threads = set(threading.enumerate())
    left = []

    async def live_again() -> None:
        browsers = [await come(viewer) for _ in range(3)]
        for session in viewer.sessions.values():
            left.extend(map(weakref.ref, (session, session.client, session.client._websock_connection._state)))
        for browser in browsers:
            browser.connection.transport.abort()

    asyncio.run(live_again())
    wait_for(lambda: not viewer.sessions and len(freed) > 1)
    time.sleep(0.7)
    assert len(left) == 9 and not any(thing() for thing in left) and len(freed) == 2
    assert not viewer.engine.clients and set(threading.enumerate()) <= threads


def test_a_request_of_a_browser_that_has_left_is_not_drawn(viewer):
    async def live() -> None:
        browser = await come(viewer)
        (session,) = viewer.sessions.values()
        browser.connection.transport.abort()
        await until(lambda: not viewer.sessions and not viewer.engine.clients)
        session.change(output="depth")

    asyncio.run(live())
    assert not viewer.engine.clients


def test_a_picture_for_a_browser_that_is_leaving_is_no_error(viewer, capfd):
    async def live() -> None:
        browser = await come(viewer)
        (session,) = viewer.sessions.values()
        browser.connection.transport.abort()
        await until(lambda: not viewer.sessions)
        viewer.sessions[session.client.client_id] = session  # as before viser has told that it left
        session._status_at = 0.0
        session.ask()
        await asyncio.sleep(1.0)

    asyncio.run(live())
    assert "viewer:" not in capfd.readouterr().err


def test_a_frozen_browser_is_hung_up_on_and_another_sees_on(viewer, monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.3)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 2.0)

    async def live() -> None:
        still = await come(viewer)
        (session,) = viewer.sessions.values()
        other = await come(viewer)
        still.freeze()
        session.client.send_file_download("much", MUCH)  # there is no room to send a ping
        seen = other.n_pictures
        await other.drag(1.5)
        assert len(viewer.sessions) == 2 and other.n_pictures >= seen + 5
        await until(lambda: list(viewer.sessions.values()) not in ([], [session]) and len(viewer.sessions) == 1)
        assert await still.is_hung_up()
        seen = other.n_pictures
        await other.drag(0.5)
        assert other.n_pictures > seen
        await other.connection.close()

    asyncio.run(live())


def test_an_end_does_not_wait_for_a_frozen_browser(viewer):
    async def live() -> None:
        browser = await come(viewer)
        browser.freeze()
        (session,) = viewer.sessions.values()
        session.client.send_file_download("much", MUCH)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await asyncio.to_thread(viewer.page.stop)
        assert time.monotonic() - began < 3 and not viewer.page.server._websock_server._server_thread.is_alive()
        browser.connection.transport.abort()

    asyncio.run(live())


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
