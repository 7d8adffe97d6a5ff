"""Unknown clients at a server's port, however many and slow, do not keep a worker out."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reference_trainer.common import rendezvous
from reference_trainer.ps import frames
from reference_trainer.ps import frames as handshake
from reference_trainer.ps import server as admission
from reference_trainer.ps import settings as told_settings
from reference_trainer.ps.frames import Channel, Header, PeerError
from reference_trainer.ps.server import ConnectionAcceptor
from reference_trainer.ps.server_state import ServerState
from reference_trainer.ps.settings import ProcessFault
from tests.ports import free_ports
from tests.waiting import LIMIT_S

MODEL = {"dense": [["a", [64]]], "tables": [["t", 10, 4]]}


class Server:
    """A server that accepts connections, and one worker's settings."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        where = f"127.0.0.1:{self.port}"
        self.params: dict[str, Any] = {
            "rank": 0,
            "index": 0,
            "servers": 1,
            "workers": 1,
            "server_endpoints": [where],
            "endpoint": where,
            "mode": "async",
            "model": MODEL,
            "secret": secrets.token_hex(32),
            "timeout_s": 30,
        }
        self.told = told_settings.read(self.params, "server")
        self.host = ServerState(self.told, ProcessFault({}, role="server", index=0))
        self.reception = ConnectionAcceptor(self.host, rendezvous.listen(self.port, "127.0.0.1"), lambda *_: None)

    def greet(self) -> None:
        """Connect as a worker of the run does, with retries. Raises PeerError or OSError if that does not succeed."""
        worker = told_settings.read({**self.params, "rank": 1}, "worker")
        shared_values = {
            **worker.shared_values(),
            "role": "worker",
            "index": 0,
            "server": 0,
            "spare": False,
            "host": "here",
            "pid": 1,
        }
        shared_values["run_id"] = worker.run_id
        ends = time.monotonic() + LIMIT_S
        while True:
            channel = None
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
                channel = Channel(connection, peer="server 0", limit_s=LIMIT_S)
                handshake.introduce(channel, worker.secret, shared_values, LIMIT_S)
                return
            except (PeerError, OSError):
                if time.monotonic() > ends:
                    raise
                time.sleep(0.05)
            finally:
                if channel is not None:
                    channel.close()

    def close(self) -> None:
        """Accept no more."""
        self.host.over.set()
        self.reception.close()


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("torch")
    found = Server()
    yield found
    found.close()


@contextlib.contextmanager
def strangers(server: Server, count: int, act: Callable[[socket.socket, threading.Event], None]) -> Iterator[None]:
    """Open this many connections, each of which reconnects when it is closed."""
    over, there = threading.Event(), threading.Semaphore(0)

    def one() -> None:
        first = True
        while not over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", server.port), timeout=2.0) as connection:
                    if first:
                        there.release()
                    first = False
                    act(connection, over)
            except OSError:
                over.wait(0.01)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(count):
            there.acquire(timeout=2.0)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(5)


def dribbles(connection: socket.socket, over: threading.Event) -> None:
    """One byte of a valid header each 100 ms."""
    for byte in frames.encode(Header(frames.HELLO, bytes=60_000)) + bytes(60_000):
        if over.wait(0.1):
            return
        connection.sendall(bytes([byte]))


def is_silent(connection: socket.socket, over: threading.Event) -> None:
    """Send nothing until the connection is closed."""
    connection.settimeout(0.2)
    while not over.is_set():
        try:
            if not connection.recv(4096):
                return
        except TimeoutError:
            continue


def storms(connection: socket.socket, over: threading.Event) -> None:
    """Disconnect at once."""


@pytest.mark.thorough
@pytest.mark.parametrize("count", [64, 66, 200])
@pytest.mark.parametrize("act", [dribbles, is_silent, storms])
def test_worker_with_the_secret_connects_despite_strangers(
    server: Server, count: int, act: Callable[[socket.socket, threading.Event], None]
) -> None:
    if act is storms and count > 64:
        pytest.skip("they come as fast as one processor can make them already")
    with strangers(server, count, act):
        time.sleep(0.3)
        server.greet()


@pytest.mark.thorough
def test_handshake_has_one_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_HANDSHAKE_S", 0.8)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as connection:
        connection.settimeout(0.05)
        began, closed = time.monotonic(), False
        for byte in frames.encode(Header(frames.HELLO, bytes=60_000)) + bytes(60_000):
            try:
                connection.sendall(bytes([byte]))
                while connection.recv(4096):
                    pass
                closed = True
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed or time.monotonic() - began > LIMIT_S:
                break
        # If each byte began a deadline anew, the server would wait for all of them, for almost an hour.
        assert closed


@pytest.mark.thorough
def test_slow_server_handshake_times_out() -> None:
    (port,) = free_ports(1)
    with rendezvous.listen(port, "127.0.0.1") as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                for byte in frames.encode(Header(frames.CHALLENGE, bytes=32)) + bytes(32):
                    connection.sendall(bytes([byte]))
                    time.sleep(0.1)

        threading.Thread(target=answer, daemon=True).start()
        channel = Channel(socket.create_connection(("127.0.0.1", port)), peer="server 0", limit_s=0.5)
        with pytest.raises(PeerError, match=r"in time|sent nothing"):
            handshake.introduce(channel, b"x", {}, 0.5)
        channel.close()
