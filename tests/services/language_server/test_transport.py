"""Broken bytes, a broken connection, and a second client."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.thorough

DEADLINE_S = 60.0
START = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}, "processId": None}}


def frame(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def test_broken_bytes_do_not_end_the_server(tmp_path: Path) -> None:
    """The server answers whatever is whole, and ends when its input does."""
    said = [
        b"not a header\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        frame(b"{"),
        frame(b"[" * 5000),
        frame(b'{"jsonrpc": "2.0"}'),
        frame([1, 2]),
        frame({"jsonrpc": "2.0", "method": "textDocument/hover", "id": [], "params": 3}),
        frame({"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": {"uri": 1}}}),
        frame(START),
        frame({"jsonrpc": "2.0", "id": 2, "method": "textDocument/nothing", "params": {}}),
        frame({"jsonrpc": "2.0", "id": 3, "method": "shutdown"}),
        b"Content-Length: 500\r\n\r\nbroken off",
    ]
    command = [sys.executable, "-m", "preflight", "lsp"]
    done = subprocess.run(command, input=b"".join(said), capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in done.stdout.split(b"Content-Length: ")[1:]]
    by_id = {one["id"]: one for one in answers if isinstance(one.get("id"), int)}
    assert by_id[1]["result"]["serverInfo"]["name"] == "preflight"
    assert "error" in by_id[2] and by_id[3]["result"] is None


@pytest.mark.parametrize("end", [b"", b"Content-Length: 1000\r\n\r\nabc", b"x" * 200_000], ids=["left", "cut", "flood"])
def test_a_port_serves_one_editor_and_ends_with_it(end: bytes) -> None:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "preflight", "lsp", "--tcp", str(port)], stderr=subprocess.PIPE)
    try:
        # A port scanner, and a request of a browser, whose body the server would otherwise obey.
        connected(port).close()
        body = frame(START)
        browser = connected(port)
        browser.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        with contextlib.suppress(ConnectionResetError):
            assert browser.recv(65536) == b""
        editor = connected(port)
        editor.sendall(frame(START))
        assert b"preflight" in editor.recv(65536)
        with pytest.raises(OSError):
            stranger = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
            if not stranger.recv(1):
                raise ConnectionResetError
        editor.sendall(end)
        editor.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def connected(port: int) -> socket.socket:
    """A connection to the loopback address, as soon as something listens there."""

    def attempt() -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        return None

    found = until(attempt)
    assert found is not None
    return found
