"""Connects a worker to all servers in parallel; each side proves that it knows the secret of this run.

The secret is never sent. Each side sends a random challenge and answers the other's with an HMAC of both challenges and
its own hello, so that an old answer is useless and no hello can be changed in transit. An accepted worker is not
challenged again: an attacker who can write into an established connection could also write the data.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import rank_events, wire
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import rendezvous
from reference_trainer.common.progress import Progress
from reference_trainer.common.rendezvous import DialResult
from reference_trainer.ps import frames, settings
from reference_trainer.ps.frames import Channel, Header, PeerError
from reference_trainer.ps.settings import Settings

_NONCE_BYTES = 32
_PROOF_BYTES = 32


def challenge(channel: Channel, secret: bytes, deadline: float) -> tuple[dict[str, Any], bytes]:
    """The server's side: read the worker's hello, and return what its answer must prove.

    Raises PeerError of kind `protocol_error` for a stranger, which sends invalid data, nothing, or a wrong secret.
    """
    own = os.urandom(_NONCE_BYTES)
    channel.send(Header(frames.CHALLENGE, bytes=len(own)), memoryview(own))
    try:
        header = channel.receive(deadline)
    except PeerError as error:
        if error.kind == "silent":
            raise PeerError(
                "protocol_error", error.peer, f"{error.peer} connected and did not identify itself"
            ) from error
        raise
    if header.op != frames.HELLO or not _NONCE_BYTES + _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} began with {header.name}")
    data = bytearray(header.bytes)
    channel.read_payload(memoryview(data), deadline)
    theirs, proof = bytes(data[:_NONCE_BYTES]), bytes(data[_NONCE_BYTES : _NONCE_BYTES + _PROOF_BYTES])
    peer_values = bytes(data[_NONCE_BYTES + _PROOF_BYTES :])
    if not hmac.compare_digest(proof, _proof(secret, b"worker", own, theirs, peer_values)):
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} does not know the secret of this run")
    return _parsed(channel, peer_values), own + theirs


def welcome(channel: Channel, secret: bytes, challenges: bytes, own_values: dict[str, Any]) -> None:
    """The server's answer, once it accepts the worker."""
    peer_values = json.dumps(own_values).encode("utf-8")
    proof = _proof(secret, b"server", challenges[:_NONCE_BYTES], challenges[_NONCE_BYTES:], peer_values)
    data = proof + peer_values
    channel.send(Header(frames.WELCOME, bytes=len(data)), memoryview(data))


def introduce(channel: Channel, secret: bytes, own_values: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The worker's side: authenticate itself, and read the server's hello.

    Raises PeerError: `protocol_error` for a peer that is not a server of this run, `mismatch` and `ended` with the
    server's message.
    """
    header = _expected(channel, frames.CHALLENGE, limit_s)
    if header.bytes != _NONCE_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent a challenge of {header.bytes} bytes")
    theirs = bytearray(_NONCE_BYTES)
    channel.read_payload(memoryview(theirs), time.monotonic() + limit_s)
    own = os.urandom(_NONCE_BYTES)
    peer_values = json.dumps(own_values).encode("utf-8")
    data = own + _proof(secret, b"worker", bytes(theirs), own, peer_values) + peer_values
    channel.send(Header(frames.HELLO, bytes=len(data)), memoryview(data))
    header = _expected(channel, frames.WELCOME, limit_s)
    if not _PROOF_BYTES < header.bytes <= frames.TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent a welcome of {header.bytes} bytes")
    answer = bytearray(header.bytes)
    channel.read_payload(memoryview(answer), time.monotonic() + limit_s)
    proof, peer_data = bytes(answer[:_PROOF_BYTES]), bytes(answer[_PROOF_BYTES:])
    if not hmac.compare_digest(proof, _proof(secret, b"server", bytes(theirs), own, peer_data)):
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} does not know the secret of this run")
    return _parsed(channel, peer_data)


def _expected(channel: Channel, op: int, limit_s: float) -> Header:
    try:
        header = channel.receive(time.monotonic() + limit_s)
    except PeerError as error:
        if error.kind == "silent":
            text = (
                "%s accepted the connection and sent nothing for %.1f s: it is not a server of this run, or is stopped"
            )
            raise PeerError("silent", error.peer, text % (error.peer, limit_s)) from error
        raise
    if header.op != op:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent {header.name}, not {frames.NAMES[op]}")
    return header


def _proof(secret: bytes, role: bytes, of_server: bytes, of_worker: bytes, peer_values: bytes) -> bytes:
    return hmac.new(secret, b"preflight ps " + role + of_server + of_worker + peer_values, hashlib.sha256).digest()


def _parsed(channel: Channel, peer_values: bytes) -> dict[str, Any]:
    try:
        found = wire.parse(peer_values)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent a message that is not valid JSON")
    return found


#: The longest pause between attempts before the connection is open.
_PAUSE_S = 0.2
#: How often the handshake with a server is retried if it closes the connection without a message.
_MAX_TRIES = 20
#: How often a failed connection is reported again: it may last long after the server has begun to listen.
_REPEAT_S = 1.0


@dataclass
class DialledServer:
    """One server: its authenticated connection, or why there is none."""

    index: int
    endpoint: str
    dialled: DialResult = field(default_factory=lambda: DialResult("failed", "it was not tried"))
    channel: Channel | None = None
    host: str = ""
    problem: PeerError | None = None


class ServerDialer:
    """Dials all servers while torch is imported: `result` waits for all of them."""

    def __init__(self, config: Settings, progress: Progress, own_values: dict[str, Any]) -> None:
        self._config = config
        self._progress = progress
        self._own_values = own_values
        self.reached = [DialledServer(index, config.endpoints[index]) for index in range(config.servers)]
        self._ends = time.monotonic() + config.timeout_s
        self._threads = [
            threading.Thread(target=self._dial, args=(item,), name="preflight-ps-dial", daemon=True)
            for item in self.reached
        ]
        for thread in self._threads:
            thread.start()

    def channels(self) -> list[Channel]:
        """A connection to each server, by index.

        Raises ProbeUnavailable: `denied` when a server has another configuration or another program listens there,
        `timeout` when one cannot be reached.
        """
        config, progress = self._config, self._progress
        progress.entering("connections to the servers", waiting_for=list(config.server_numbers))
        for thread in self._threads:
            thread.join(max(0.0, self._ends + 3 * rendezvous.ATTEMPT_S - time.monotonic()))
            progress.waits_for([config.server_numbers[item.index] for item in self.reached if item.channel is None])
        found = [item.channel for item in self.reached if item.channel is not None]
        if len(found) == len(self.reached):
            progress.left()
            return found
        for channel in found:
            channel.send_error("this worker could not connect to all servers")
            channel.close()
        raise self._why()

    def _why(self) -> ProbeUnavailable:
        failed = [item for item in self.reached if item.channel is None]
        # A server's own message takes precedence over a failed connection to another server.
        first = min(failed, key=lambda item: (_RANK.get(item.problem.kind if item.problem else "", 4), item.index))
        if first.problem is None:
            text = "cannot reach server %d at %s (%s): %s"
            why = text % (first.index, first.endpoint, first.dialled.result, first.dialled.error)
            return ProbeUnavailable("timeout", why)
        kind = "denied" if first.problem.kind in ("mismatch", "protocol_error") else "blocked"
        return ProbeUnavailable(kind, first.problem.text)

    def _dial(self, item: DialledServer) -> None:
        try:
            host, port = settings.split_endpoint(item.endpoint)
        except ValueError as error:
            item.dialled = DialResult("unresolved", str(error))
            self._on_dialled(item)
            return
        before, notified_at, tries = "", 0.0, 0
        while True:
            connection = self._connect(item, host, port)
            if item.dialled.result != before or time.monotonic() - notified_at >= _REPEAT_S:
                before, notified_at = item.dialled.result, time.monotonic()
                self._on_dialled(item)
            if connection is not None:
                tries += 1
                self._greet(item, connection)
                # A server with many unauthenticated connections may drop one before it is authenticated.
                if item.problem is None or item.problem.kind != "gone" or tries >= _MAX_TRIES:
                    return
                item.problem = None if time.monotonic() < self._ends else item.problem
            if time.monotonic() >= self._ends:
                return
            time.sleep(_PAUSE_S)

    def _connect(self, item: DialledServer, host: str, port: int) -> socket.socket | None:
        """One attempt; the connection is kept if it opens."""
        began = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=rendezvous.ATTEMPT_S)
        except (OSError, UnicodeError):
            # The exact failure, and its address, are reported by the attempt made only for that purpose.
            item.dialled = rendezvous.dial(host, port)
            return None
        if connection.getsockname() == connection.getpeername():
            # A port of the ephemeral range may connect to itself while nothing listens there.
            connection.close()
            item.dialled = DialResult("refused", f"{host} port {port}: nothing listens there")
            return None
        address, source = str(connection.getpeername()[0]), str(connection.getsockname()[0])
        item.dialled = DialResult("open", "", address, source, time.monotonic() - began)
        return connection

    def _greet(self, item: DialledServer, connection: socket.socket) -> None:
        config = self._config
        name = f"server {item.index} at {item.endpoint}"
        channel = Channel(connection, peer=name, limit_s=config.least_limit_s)
        try:
            own_values = {**self._own_values, "server": item.index}
            item.host = str(introduce(channel, config.secret, own_values, config.least_limit_s).get("host", ""))[:255]
        except PeerError as error:
            channel.close()
            item.problem = error
            if error.kind == "mismatch":
                self._progress.send(
                    rank_events.PROBLEM,
                    problem="mismatch",
                    what="hello",
                    error=error.text,
                    rank=self._progress.rank,
                    server=item.index,
                )
            else:
                item.dialled = DialResult(
                    "stranger" if error.kind == "protocol_error" else "silent",
                    error.text,
                    item.dialled.address,
                    item.dialled.source,
                    item.dialled.seconds,
                )
                self._on_dialled(item)
            return
        except OSError as error:
            channel.close()
            item.problem = PeerError("gone", name, "{}: {}".format(name, error.strerror or errno.errorcode.get(0, "")))
            return
        channel.peer = f"{name} ({item.host})" if item.host else name
        item.channel = channel

    def _on_dialled(self, item: DialledServer) -> None:
        number = self._config.server_numbers[item.index]
        rendezvous.report_dial(self._progress, item.dialled, to=number, server=item.index, endpoint=item.endpoint)


_RANK = {"mismatch": 0, "protocol_error": 1, "ended": 2, "silent": 3, "gone": 3}
