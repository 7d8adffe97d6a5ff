"""Two nodes speak over TCP: one listens on the job's ports and a free one, the other dials and sends.

Both ends first exchange a token, so that another program on the port is recognised. Then messages of growing
size are sent, each acknowledged: on a path that loses large packets without a word, the first size that
is not acknowledged tells where the limit lies.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from preflight_checks.probes.names import lookup
from preflight_checks.probes.ports import bound

CONNECT_S = 2.0
BULK_S = 2.5
#: Message sizes in bytes: below the smallest usual MTU, at 1500, between, above a 9000-byte frame, then bulk.
STEPS = (64, 1200, 1400, 2000, 4000, 8000, 16000, 65536)
BULK_BYTES = 1 << 20
#: A message of this size does not fit any Ethernet frame (jumbo frames end at 9216), so it went in full ones.
LARGEST_FRAME = 16000
#: How long nothing may be acknowledged before a transfer counts as stalled rather than slow.
STALL_S = 1.0
#: After this long without progress it is over: Linux has sent the segment again after 0.2, 0.6 and 1.4 s, and on a
#: path that loses one packet in twenty all four are lost once in 160000 times.
PATIENCE_S = 1.7
_MAGIC = b"preflight-link 1 "
_TOKEN_BYTES = 16
_HELLO = len(_MAGIC) + 2 * _TOKEN_BYTES
_SIZE = struct.Struct(">I")
_LARGEST = 16 << 20
_TIOCOUTQ = 0x5411


@dataclass(frozen=True)
class Target:
    """What became of dialling one host and port.

    `status`: `ok`; before a connection `unresolved`, `no-route`, `refused`, `filtered` (no answer in time),
    `unbound` (the peer could not listen there); after it `silent` (accepted, but nobody answers), `reset`,
    `stranger` (something else answers); while sending `stalled` and `slow`.
    `arrived_bytes` is the largest message that was acknowledged, `lost_bytes` the first one that was not.
    """

    label: str
    host: str
    port: int
    status: str
    address: str = ""
    detail: str = ""
    took_s: float = 0.0
    arrived_bytes: int = 0
    lost_bytes: int = 0


@dataclass(frozen=True)
class Dialled:
    """Everything one node dialled on another."""

    targets: List[Target] = field(default_factory=list)


@dataclass(frozen=True)
class Listened:
    """What a listener that came to its end has to say."""

    connections: int


def listen(params: Dict[str, Any], emit: Callable[[Dict[str, Any]], None]) -> Listened:
    """Listen on every port of `params["ports"]` and on a free one until cancelled (or `lifetime_s`, 120 s).

    Emits one event: `{"listening": {"token", "ephemeral", "ports": {"29500": ""}}}`; the text behind a port is
    empty, or why it could not be bound. Anybody may connect; only who says the token is answered.
    """
    token = binascii.hexlify(os.urandom(_TOKEN_BYTES))
    deadline = time.monotonic() + float(params.get("lifetime_s", 120.0))
    listeners = []  # type: List[socket.socket]
    ports = {}  # type: Dict[str, str]
    try:
        first = _listener(0)
        listeners.append(first)
        for port in params.get("ports") or []:
            try:
                listeners.append(_listener(int(port)))
                ports[str(port)] = ""
            except OSError as error:
                ports[str(port)] = error.strerror or str(error)
        emit({"listening": {"token": token.decode(), "ephemeral": first.getsockname()[1], "ports": ports}})
        return Listened(_serve(listeners, token, deadline))
    finally:
        for item in listeners:
            item.close()


def _listener(port: int, patience_s: float = 0.4) -> socket.socket:
    """Listen on `port`, waiting a moment for the listener of the round before to let go of it."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return bound(socket.AF_INET6, ("::", port), both=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return bound(socket.AF_INET, ("0.0.0.0", port))
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)


def _serve(listeners: List[socket.socket], token: bytes, deadline: float) -> int:
    connections = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return connections
        ready, _, _ = select.select(listeners, [], [], left)
        for item in ready:
            try:
                accepted, _peer = item.accept()
            except OSError:
                continue
            connections += 1
            threading.Thread(target=_answer, args=(accepted, token), daemon=True).start()


def _answer(accepted: socket.socket, token: bytes) -> None:
    """Say the token back to who knows it, then acknowledge every message."""
    with accepted:
        accepted.settimeout(CONNECT_S + BULK_S + 1.0)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _receive(accepted, _HELLO) != _MAGIC + token:
                return
            accepted.sendall(_MAGIC + token)
            while True:
                (size,) = _SIZE.unpack(_receive(accepted, _SIZE.size))
                if not 0 < size <= _LARGEST:
                    return
                _receive(accepted, size)
                accepted.sendall(_SIZE.pack(size))
        except (OSError, EOFError):
            return


def _receive(stream: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError when the other side closes before, OSError as the socket does."""
    data = bytearray()
    while len(data) < size:
        more = stream.recv(min(size - len(data), 1 << 18))
        if not more:
            raise EOFError(bytes(data))
        data += more
    return bytes(data)


def dial(params: Dict[str, Any]) -> Dialled:
    """Dial everything in `params["targets"]` at once: objects with `label`, `host`, and `port` (0 = the free one).

    `params["listening"]` is what the peer's `listen` emitted. `connect_s` (2.0) bounds look-up, connection and
    greeting together, `bulk_s` (2.5) the messages behind it; `bulk_bytes` is the last message (1 MiB; 0 sends
    the smallest only).
    """
    listening = params["listening"]
    listening = listening.get("listening", listening)
    wanted = list(params.get("targets") or [])
    results = [None] * len(wanted)  # type: List[Optional[Target]]

    def run(index: int, target: Dict[str, Any]) -> None:
        results[index] = _dial_one(target, listening, params)

    threads = [threading.Thread(target=run, args=(i, t), daemon=True) for i, t in enumerate(wanted)]
    for thread in threads:
        thread.start()
    connect_s, bulk_s = float(params.get("connect_s", CONNECT_S)), float(params.get("bulk_s", BULK_S))
    end = time.monotonic() + connect_s + bulk_s + 0.5
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    found = []  # type: List[Target]
    for target, result in zip(wanted, results):
        late = Target(str(target["label"]), str(target["host"]), int(target["port"]), "filtered", "", "gave up")
        found.append(result if result is not None else late)
    return Dialled(found)


def _dial_one(target: Dict[str, Any], listening: Dict[str, Any], params: Dict[str, Any]) -> Target:
    label, host, wanted = str(target["label"]), str(target["host"]), int(target["port"])
    began = time.monotonic()

    def ended(status: str, address: str = "", detail: str = "", arrived: int = 0, lost: int = 0) -> Target:
        took = round(time.monotonic() - began, 3)
        return Target(label, host, wanted, status, address, detail, took, arrived, lost)

    port = wanted or int(listening["ephemeral"])
    unbound = listening.get("ports", {}).get(str(wanted), "" if not wanted else "it was not asked to listen there")
    if unbound:
        return ended("unbound", "", unbound)
    until = began + float(params.get("connect_s", CONNECT_S))
    found = lookup(host, max(0.1, until - time.monotonic()))
    if not found.addresses:
        return ended("unresolved", "", found.detail)
    token = _MAGIC + str(listening["token"]).encode()
    stream, address, status, detail = _connect(found.addresses, port, until)
    if stream is None:
        return ended(status, address, detail)
    with stream:
        status, detail = _greet(stream, token, until)
        if status:
            return ended(status, address, detail)
        bulk_bytes = int(params.get("bulk_bytes", BULK_BYTES))
        steps = STEPS + (bulk_bytes,) if bulk_bytes else STEPS[:1]
        end = time.monotonic() + float(params.get("bulk_s", BULK_S))
        status, detail, arrived, lost = _send_steps(stream, steps, end)
        return ended(status, address, detail, arrived, lost)


def _connect(addresses: List[str], port: int, until: float) -> Tuple[Optional[socket.socket], str, str, str]:
    """A connection to the first address that takes one, else the last failure: (None, address, status, detail)."""
    failure = ("", "filtered", "no time was left")
    for index, address in enumerate(addresses):
        share = max(0.05, (until - time.monotonic()) / (len(addresses) - index))
        stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        stream.settimeout(share)
        try:
            stream.connect((address, port))
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream, address, "", ""
        except socket.timeout:
            failure = (address, "filtered", "no answer within %.1f s" % share)
        except OSError as error:
            failure = (address, _STATUS.get(error.errno or 0, "no-route"), error.strerror or str(error))
        stream.close()
    return (None,) + failure


_STATUS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "filtered",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "no-route",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
}


def _greet(stream: socket.socket, token: bytes, until: float) -> Tuple[str, str]:
    """Exchange the token. ("", "") when the peer is ours, else a status and what was seen."""
    stream.settimeout(max(0.3, until - time.monotonic()))
    data = b""
    try:
        stream.sendall(token)
        data = _receive(stream, len(token))
    except socket.timeout:
        return "silent", "connected, but no answer came"
    except EOFError as error:
        data = error.args[0]
    except OSError as error:
        return "reset", error.strerror or str(error)
    if data == token:
        return "", ""
    return "stranger", "it answered %r" % data[:40] if data else "it closed the connection"


def _send_steps(stream: socket.socket, steps: Tuple[int, ...], end: float) -> Tuple[str, str, int, int]:
    """Send messages of growing size: (status, detail, largest acknowledged, first not acknowledged)."""
    arrived = 0
    for size in steps:
        try:
            slow = _send_one(stream, size, end)
        except (OSError, EOFError) as error:
            return "reset", "while %d bytes were sent: %s" % (size, error), arrived, size
        if slow is not None:
            # Whoever got this far got frames of full size through: it cannot be their size.
            status = "slow" if slow or arrived >= LARGEST_FRAME else "stalled"
            return status, "after %d of %d bytes" % (slow, size), arrived, size
        arrived = size
    return "ok", "", arrived, 0


def _send_one(stream: socket.socket, size: int, end: float) -> Optional[int]:
    """Send `size` bytes and wait for their acknowledgement.

    None when it came; else how many bytes were taken by the other side's kernel before the time ran out, where 0
    also stands for a transfer that stopped moving `STALL_S` ago.
    """
    data = _SIZE.pack(size) + b"\0" * size
    stream.setblocking(False)
    sent, best, moved = 0, 0, time.monotonic()
    while True:
        now = time.monotonic()
        if sent < len(data):
            try:
                sent += stream.send(data[sent : sent + (1 << 18)])
            except BlockingIOError:
                pass
        taken = sent - _unacknowledged(stream)
        if taken > best:
            best, moved = taken, now
        if sent > taken and now - moved >= PATIENCE_S:
            return 0
        if now >= end:
            return best if now - moved < STALL_S else 0
        watch = [stream] if sent < len(data) else []
        readable, _, _ = select.select([stream], watch, [], min(0.1, end - now))
        if readable:
            stream.settimeout(max(0.05, end - time.monotonic()))
            try:
                _receive(stream, _SIZE.size)
            except socket.timeout:
                return 0
            return None


def _unacknowledged(stream: socket.socket) -> int:
    """Bytes in the send queue that the other side's kernel has not acknowledged."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(stream.fileno(), _TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
