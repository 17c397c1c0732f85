# SPDX-License-Identifier: Apache-2.0
"""Browsers that leave or vanish: nothing of them stays."""

import asyncio
import os
import random
import threading
import time
import weakref

import pytest

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from nerfkit.viewer import viewer as viewer_module
from scripts.soak_viewer import Browser, Circle
from tests.viewing import served, small_run, wait_for


@pytest.fixture
def viewer(small_config, tmp_path):
    with served(small_run(small_config, tmp_path / "run", steps=20)) as viewer:
        yield viewer


async def come(viewer) -> Browser:
    """A browser that sees the scene."""
    browser = Browser(viewer.page.address, Circle.around(viewer.subject), (64, 48), random.Random(0))
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
