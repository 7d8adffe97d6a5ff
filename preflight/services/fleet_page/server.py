"""Starts the server of the page, and stops it when it is asked to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight._util.usage_error import UsageError
from preflight.services.access import VARIABLE, Access, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config

_INSTALL = 'pip install "preflight-train[history,serve]"'
#: More connections than this are refused at once.
_MAX_CONNECTIONS = 128
_IDLE_S, _STOP_S = 15, 5


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its address for a browser."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"


def listening(text: str) -> Listening:
    """`HOST:PORT`, `[IPV6]:PORT`, or `PORT` of the loopback address.

    Raises:
        UsageError: it is something else.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host else "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise UsageError(f"--listen {text}: expected HOST:PORT, as in 127.0.0.1:8440")
    return Listening(host, int(port))


def serve(
    address: str, where: Listening, token: str, *, deadline_s: float, started: Callable[[Listening], None]
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        address: of the history.
        started: called once when requests are answered.

    Raises:
        UsageError: it would listen to others without a token; the history cannot be shown; the port cannot be used.
    """
    if not token and not is_loopback(where.host):
        raise UsageError(
            f"--listen {where.host}:{where.port}: others could read the history; give a token with --token-file or "
            f"{VARIABLE}, or listen on 127.0.0.1"
        )
    try:
        import uvicorn

        from preflight.services.fleet_page.application import FleetPage
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "h11"):
            raise
        raise UsageError(f"preflight serve needs packages that are not installed; run: {_INSTALL}") from None
    from preflight.commands.history.database import open_read_only

    database = open_read_only(address)
    try:
        # A history that cannot be shown is an error now, not on the first page.
        with database.reading(deadline_s):
            pass
        page = FleetPage(database, Access(token), deadline_s=deadline_s, strangers=bool(token))
        with _bound(where) as listener:
            started(Listening(where.host, listener.getsockname()[1]))
            uvicorn.Server(settings(page.application())).run(sockets=[listener])
    finally:
        database.close()


def settings(application: ASGIApp) -> Config:
    """How uvicorn serves an application of ours: no log of addresses, few connections, no WebSocket."""
    import uvicorn

    from preflight.services.http_protocol import ImpatientProtocol

    return uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        http=ImpatientProtocol,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
    )


def _bound(where: Listening) -> socket.socket:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(_MAX_CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(f"--listen {where.host}:{where.port}: {error.strerror or error}") from None
    return listener
