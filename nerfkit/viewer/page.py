# SPDX-License-Identifier: Apache-2.0
"""The web page: viser's server on one port, listening where it was told to, for its own page alone."""

from __future__ import annotations

import asyncio
import http
import io
import json
import logging
import re
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nerfkit.errors import UserError
from nerfkit.option_types import Switch, Texts, integer
from nerfkit.safe_io import printable

if TYPE_CHECKING:
    import viser

AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]{1,253})(?::(\d{1,5}))?", re.I)  # host, port
ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|\d{1,3}(\.\d{1,3}){3}", re.I)  # an address, which no name server can point here
LOCAL = ("localhost", "127.0.0.1", "::1")  # hosts that nobody else reaches
PING_SECONDS = 10.0  # between two pings
FROZEN_SECONDS = 20.0  # without an answer to a ping, and with nothing read
INSTALL = 'pip install "nerfkit[viewer]"'
BACKLOG = 100  # connections that wait
MOST_TOLD = 20  # refusals that are printed: whoever asks could make up names without end


@dataclass
class ViewerOptions:
    """A viewer in the browser."""

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: reachable from the whole network
    port: integer(0, 65535) = 8080  # port to listen on; 0: any free one
    names: Texts = ()  # more host names under which the viewer answers, e.g. that of a proxy or tunnel


@dataclass
class TrainingViewerOptions(ViewerOptions):
    """The training, watched in a browser."""

    on: Annotated[Switch, tyro.conf.arg(name="viewer", prefix_name=False)] = False  # watch the training in a browser


def own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Names, in lower case, by which a browser may call a server that listens on `host`."""
    names = {"localhost", host, *more}
    if host not in LOCAL:  # it is open to the network, under the names of this computer
        names |= {socket.gethostname(), socket.getfqdn()}
    return frozenset(name.lower() for name in names if name)


def refusal(
    hosts: Sequence[str], origins: Sequence[str], names: frozenset[str], public: frozenset[str] = frozenset()
) -> str | None:
    """Why a request with these values of its headers Host and Origin is refused; None if it is not.

    A page of a foreign site can make a browser send requests to this computer, and can give its own name the address
    of this computer (DNS rebinding). The first shows in Origin, the second in Host, which is no name of this computer.
    A proxy may replace Host, but not Origin, which then is one of the `public` names.
    """
    found = AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        return "there must be one Host header with a name or an address"
    if not ADDRESS.fullmatch(found[1]) and found[1].lower() not in names:
        return f"{found[1]} is not a name of this server; allow it with --viewer.names {found[1]}"
    for origin in origins:
        scheme, _, authority = origin.partition("://")
        page = AUTHORITY.fullmatch(authority) if scheme in ("http", "https") else None
        if page is None:
            return "another page holds the viewer; open its address in a window of its own"
        if authority.lower() != hosts[0].lower() and page[1].lower() not in public:
            return f"a page of {page[1]} asks; if a proxy has that name, allow it with --viewer.names {page[1]}"
    return None


def policy(host: str, public: Iterable[str] = ()) -> str:
    """Content-Security-Policy: all that the page loads is of `host`, the value of Host, or of a `public` name."""
    sockets = " ".join(f"ws://{name} wss://{name}" for name in (host, *(f"{name}:*" for name in sorted(public))))
    return (
        "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; "
        f"connect-src 'self' data: blob: {sockets}; frame-ancestors 'self'"
    )


async def hang_up_when_frozen(connection: Any) -> None:
    """Return when the connection has ended, by itself or because its browser is frozen, such as a suspended tab.

    websockets has pings of its own, but waits without end for room to send one where the browser has let what was sent
    before pile up.
    """
    from websockets.exceptions import ConnectionClosed

    async def answer() -> None:
        """Wait for room to send a ping, and for its answer."""
        await (await connection.ping())

    with suppress(ConnectionClosed):
        while True:
            unread = connection.transport.get_write_buffer_size()
            try:
                await asyncio.wait_for(answer(), FROZEN_SECONDS)
                await asyncio.sleep(PING_SECONDS)
            except asyncio.TimeoutError:
                if connection.transport.get_write_buffer_size() >= unread:  # else it reads, over a slow line
                    return connection.transport.abort()


class Page:
    """viser's server, its port taken or an error raised, until `stop`."""

    def __init__(self, options: ViewerOptions, title: str):
        self.options = options
        viser = import_viser()
        self._socket = bound(options.host, options.port)
        self.port: int = self._socket.getsockname()[1]
        with redirect_stdout(io.StringIO()), _guarded(self._socket, options) as served:
            self.server: viser.ViserServer = viser.ViserServer(options.host, self.port, verbose=False)
        if served != [True]:  # viser has changed: nothing would be checked
            self.server.stop()
            raise UserError(f"viser {viser.__version__} does not work with this viewer; {INSTALL}")
        from viser import _messages

        for message in (_messages.ShareUrlRequest, _messages.ShareUrlDisconnect):  # of a tunnel by a foreign host
            self.server._websock_server.unregister_handler(message)
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()
        self.entitle(title)

    def entitle(self, title: str) -> None:
        from viser import _messages

        self.server.gui.set_panel_label(title)
        self.server._connection.queue_message(_messages.RunJavascriptMessage(f"document.title = {json.dumps(title)}"))

    @property
    def address(self) -> str:
        host = self.options.host
        return f"http://{'localhost' if host in (*LOCAL, '0.0.0.0', '::') else host}:{self.port}"

    def how_to_reach(self) -> str:
        """Lines for a terminal: the address, and how to reach it from another computer."""
        lines = [f"viewer    {self.address}"]
        if self.options.host in LOCAL:
            tunnel = f"ssh -L {self.port}:localhost:{self.port} {socket.gethostname()}"
            lines.append(f"          from another computer: {tunnel}, then the same")
        else:
            lines.append("warning: everyone who reaches this port can look and change settings; there is no password")
        if names := ", ".join(self.options.names):
            lines.append(f"          behind a proxy, {names}: it must pass on the headers Host, Upgrade, Connection")
        return "\n".join(lines)

    def stop(self) -> None:
        loop = self.server.get_event_loop()
        with suppress(RuntimeError):  # it has been stopped before
            for connection in list(self.server._websock_server._live_connections.values()):
                loop.call_soon_threadsafe(connection.transport.abort)  # a frozen browser would be waited for
        with redirect_stdout(io.StringIO()):
            self.server.stop()
            self.server._websock_server._server_thread.join(timeout=5)
        self.server._thread_executor.shutdown(wait=True, cancel_futures=True)
        self._socket.close()


def import_viser() -> Any:
    try:
        import viser
    except ImportError:
        raise UserError(f"the viewer needs the package viser; {INSTALL}") from None
    warnings.filterwarnings("ignore", "Queued a .* on a closed connection")  # of a client that has just left
    warnings.filterwarnings("ignore", r"(?s)\[viser\] .* does not match annotation")  # of one that sends anything
    major, minor = (int(part) for part in viser.__version__.split(".")[:2])
    if not (1, 1) <= (major, minor) < (2, 0):
        raise UserError(f"the viewer needs viser >= 1.1, < 2, but {viser.__version__} is installed; {INSTALL}")
    return viser


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on a port; UserError if that is taken, instead of another port."""
    family, dual = (socket.AF_INET6, socket.has_dualstack_ipv6()) if ":" in host else (socket.AF_INET, False)
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); choose another --viewer.port, "
            "0 for any that is free, or another --viewer.host"
        ) from None


@contextmanager
def _guarded(listener: socket.socket, options: ViewerOptions) -> Iterator[list[bool]]:
    """Inside, viser's server starts on `listener` and answers only requests that are not refused.

    It hangs up on frozen browsers. viser has no parameter for any of this, so the function by which it starts
    the one server of page and websocket is replaced for that moment. Yields a list, to which the start adds an item.
    """
    from websockets.asyncio import server as module

    original, served, told = module.serve, [], set()
    names, public = own_names(options.host, options.names), frozenset(map(str.lower, options.names))
    quiet = logging.getLogger(f"{__name__}.connections")  # what is wrong is told here, in a line
    quiet.disabled = True

    def tell(why: str) -> None:
        if why not in told and len(told) < MOST_TOLD:
            told.add(why)
            print(f"viewer: {why}", file=sys.stderr, flush=True)

    def not_understood(error: Exception | None) -> None:
        if error is not None:
            tell(f"a browser sent what is not understood: {type(error).__name__} {printable(str(error))}")

    def serve(handler: Callable, host: str, port: int, *, process_request: Callable, **settings: Any) -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, of: not_understood(of.get("exception")))

        async def handle(connection: Any) -> None:
            watch = asyncio.create_task(hang_up_when_frozen(connection))
            try:
                await handler(connection)
            except Exception as error:
                not_understood(error)
            finally:
                watch.cancel()
                connection.transport.abort()  # a close that is polite waits for what is not read

        def process(connection: Any, request: Any) -> Any:
            hosts, origins = (request.headers.get_all(name) for name in ("Host", "Origin"))
            if why := refusal(hosts, origins, names, public):
                tell(f"a request was refused: {why}")
                return connection.respond(http.HTTPStatus.FORBIDDEN, f"refused: {why}\n")
            try:
                response = process_request(connection, request)
            except (OSError, ValueError):  # an address that cannot be a file's name
                response = connection.respond(http.HTTPStatus.NOT_FOUND, "not found\n")
            if response is not None:
                response.headers["Content-Security-Policy"] = policy(hosts[0], public)
                response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        served.append(True)
        return original(handle, sock=listener, process_request=process, ping_interval=None, logger=quiet, **settings)

    module.serve = serve
    try:
        yield served
    finally:
        module.serve = original
