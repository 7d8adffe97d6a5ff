"""Connections that send no request, or only half of one, leave room for others."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from preflight.services import access
from preflight.services.fleet_page.application import uvicorn_config
from tests.services.connections import ends

pytestmark = pytest.mark.thorough

_LIMIT_S = 60.0
_HEAD_S = 0.5


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers after more time than the head of a request has."""
    import anyio

    await anyio.sleep(2 * _HEAD_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(access, "HEAD_S", _HEAD_S)
    server = uvicorn.Server(uvicorn_config(slow))
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(_LIMIT_S)


def status(port: int, connection: http.client.HTTPConnection | None = None) -> int:
    """The status of an answer, on a new connection if there is none."""
    used = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
    used.request("GET", "/")
    answer = used.getresponse()
    answer.read()
    if connection is None:
        used.close()
    return answer.status


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"], ids=["silent", "half a head"])
def test_silent_connections_do_not_shut_others_out(port: int, sent: bytes) -> None:
    with ExitStack() as held:
        for _ in range(150):
            silent = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S))
            silent.sendall(sent)
        assert ends(silent)
        assert status(port) == 200


def test_a_head_that_arrives_byte_by_byte_has_one_deadline(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as dripping:
        until = time.monotonic() + _LIMIT_S
        with pytest.raises(ConnectionError):
            while time.monotonic() < until:
                dripping.sendall(b"G")
                time.sleep(_HEAD_S / 5)


def test_slow_answers_and_kept_connections_are_left_alone(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
    try:
        assert status(port, connection) == 200
        first = connection.sock
        time.sleep(1.5 * _HEAD_S)
        assert status(port, connection) == 200
        assert connection.sock is first
    finally:
        connection.close()
