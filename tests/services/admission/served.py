"""A webhook of its own, started as the command that a pod runs, with a certificate made by openssl."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.waiting import until

#: Starting means importing everything twice, on a machine that other tests share.
_START_S = 90.0


def make_certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost that signs itself, and its key."""
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(chain), "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return chain, key


@dataclass
class Served:
    """A running webhook."""

    process: subprocess.Popen[str]
    port: int
    chain: Path
    path: str = "/admit"
    lines: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of an answer, over TLS that is verified with the certificate."""
        context = ssl.create_default_context(cafile=str(self.chain))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def admit(self, body: bytes, query: str = "?timeout=30s") -> dict[str, Any]:
        """The response to a review."""
        status, content = self.call("POST", f"{self.path}{query}", body)
        assert status == 200, content
        found: dict[str, Any] = json.loads(content)["response"]
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log about this event."""
        return [line for line in list(self.lines) if line.get("event") == name]


@contextmanager
def webhook(folder: Path, *options: str, cluster: bool = False, path_token: str = "") -> Iterator[Served]:
    """A webhook with these options, ready to answer."""
    chain, key = make_certificate(folder)
    if path_token:
        file = folder / "path-token"
        file.write_text(path_token)
        file.chmod(0o600)
        options = (*options, "--path-token-file", str(file))
    port = free_port()
    words = [sys.executable, "-m", "preflight", "webhook", "--listen", f"127.0.0.1:{port}"]
    words += ["--certificate", str(chain), "--key", str(key), *options, *([] if cluster else ["--no-cluster"])]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True)
    served = Served(process, port, chain, f"/admit/{path_token}" if path_token else "/admit")
    reader = threading.Thread(target=_read, args=(served,), daemon=True)
    reader.start()
    try:
        _wait_until_ready(served)
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        reader.join(10)


def _read(served: Served) -> None:
    assert served.process.stderr is not None
    for line in served.process.stderr:
        served.lines.append(json.loads(line) if line.startswith("{") else {"event": "", "text": line})


def _wait_until_ready(served: Served) -> None:
    until(lambda: served.process.poll() is not None or served.events("ready"))
    assert served.process.poll() is None, f"the webhook ended with {served.process.returncode}: {served.lines}"
