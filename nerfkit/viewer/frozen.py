# SPDX-License-Identifier: Apache-2.0
"""Connections of browsers that read nothing any more, such as a tab that is suspended, are ended.

websockets has pings of its own, but waits without end for room to send one where the browser has let what was sent
before pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

PING_SECONDS = 10.0  # between two pings
FROZEN_SECONDS = 20.0  # without an answer to a ping, and with nothing read


def watched(handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """A handler of a connection that is ended when its browser is frozen."""

    async def handle(connection: Any) -> None:
        watch = asyncio.create_task(hang_up_when_frozen(connection))
        try:
            await handler(connection)
        finally:
            watch.cancel()
            connection.transport.abort()  # a close that is polite waits for what is not read

    return handle


async def hang_up_when_frozen(connection: Any) -> None:
    """Return when the connection has ended, by itself or because its browser is frozen."""
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            await asyncio.sleep(PING_SECONDS)
            while True:
                unread = connection.transport.get_write_buffer_size()
                try:
                    await asyncio.wait_for(_answer(connection), FROZEN_SECONDS)
                    break
                except asyncio.TimeoutError:
                    if connection.transport.get_write_buffer_size() >= unread:  # else it reads, over a slow line
                        return connection.transport.abort()
    except ConnectionClosed:
        return


async def _answer(connection: Any) -> None:
    """Wait for room to send a ping, and for its answer."""
    await (await connection.ping())
