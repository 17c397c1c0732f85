# SPDX-License-Identifier: Apache-2.0
"""Whether a request of a browser is one of the viewer's own page.

A page of a foreign site can make a browser send requests to this computer, and can give its own name the address of
this computer (DNS rebinding). The first shows in the header Origin, the second in Host, which then is a name that is
not this computer's.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence

AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?", re.I)  # host, port
ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|\d{1,3}(\.\d{1,3}){3}", re.I)  # an address, which no name server can point here
LOCAL = ("localhost",)


def own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Names, in lower case, by which a browser may call a server that listens on `host`."""
    names = {*LOCAL, host, *more}
    if host not in ("127.0.0.1", "::1", *LOCAL):  # it is open to the network, under the names of this computer
        names |= {socket.gethostname(), socket.getfqdn()}
    return frozenset(name.lower() for name in names if name)


def refusal(hosts: Sequence[str], origins: Sequence[str], names: frozenset[str]) -> str | None:
    """Why a request with these values of its headers Host and Origin is refused; None if it is not."""
    found = AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        return "there must be one Host header with a name or an address"
    if not ADDRESS.fullmatch(found[1]) and found[1].lower() not in names:
        return f"{found[1]} is not a name of this server; allow it with --viewer.names {found[1]}"
    if len(origins) > 1:
        return "there must be one Origin header at most"
    for origin in origins:
        scheme, _, authority = origin.partition("://")
        if scheme not in ("http", "https") or authority.lower() != hosts[0].lower():
            return "the page that asks is not the viewer's"
    return None


def policy(host: str) -> str:
    """Content-Security-Policy of the page: all it may load is in it or comes from `host`, the value of Host."""
    return (
        "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; "
        f"connect-src 'self' data: blob: ws://{host} wss://{host}; frame-ancestors 'self'"
    )
