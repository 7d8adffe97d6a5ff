"""A running server of the page for tests, and a client that follows nothing by itself."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from preflight.commands.history.database import open_read_only
from preflight.services.access import Access
from preflight.services.fleet_page.application import FleetPage, uvicorn_config
from tests.services.fleet_page.big_fleet import build
from tests.waiting import until

#: Time limit of a request, also on a busy machine.
LIMIT_S = 60.0
TOKEN = "a-token-of-tests-0123456789"


@dataclass(frozen=True)
class Answer:
    """An answer: its status, its headers by lower-case name, and its text."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A server on the loopback address."""

    port: int

    @property
    def url(self) -> str:
        """Its address, without the last slash."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> Answer:
        """Send a request. Underscores of header names become dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if body:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
        finally:
            connection.close()


@contextmanager
def serving(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`preflight serve` as a process of its own on a free port: the address that it says, and the process."""
    program = str(Path(sys.executable).with_name("preflight"))
    with subprocess.Popen(
        [program, "serve", "--listen", "127.0.0.1:0", *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found is not None, line
            yield found[0], process
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def fetched(url: str, token: str = "") -> str:
    """The text of a page."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


@contextmanager
def served(address: str, *, token: str = "", deadline_s: float = LIMIT_S) -> Iterator[Served]:
    """A server of this history."""
    database = open_read_only(address)
    page = FleetPage(database, Access(token), deadline_s=deadline_s, strangers=bool(token))
    server = uvicorn.Server(uvicorn_config(page.application()))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the server did not start"
        yield Served(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        listener.close()
        database.close()


def small_history(folder: Path, *, size: int = 24, nights: int = 12) -> str:
    """The address of a new history of a small fleet."""
    address = f"sqlite:///{folder}/history.db"
    build(address, size, nights)
    return address
