"""One connection between a worker and a server, with a deadline for every call, and the lock that shares the CPU.

Threads of one interpreter wait for its lock after every operation of torch, because each operation releases and
reacquires it: with two workers, twelve times for a small request. A turn is held over the whole request, and released
only around system calls, waits, and operations large enough to benefit from a second CPU.

A header is 44 bytes, little-endian: magic, version, operation, flags, worker, clock, shard, count, payload bytes,
phase, and a CRC of all of these. The reader knows from its own plan how long a payload may be, and never allocates
memory based on the header alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import socket
import struct
import termios
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable

from preflight.agent import rank_events, wire
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import rendezvous
from reference_trainer.common.progress import Progress
from reference_trainer.common.rendezvous import DialResult
from reference_trainer.ps import settings
from reference_trainer.ps.settings import Settings

#: Operations above this size run without the lock, on another CPU.
LARGE_BYTES = 1 << 20


class FairLock:
    """A lock that only its holder releases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def acquire(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def release(self) -> bool:
        """Let another thread take the lock. Returns whether this thread held it."""
        if self._holder != threading.get_ident():
            return False
        self._holder = 0
        self._lock.release()
        return True


class NoLock(FairLock):
    """A lock for a single thread."""

    def acquire(self) -> None:
        """Return at once, because no other thread holds the lock."""

    def release(self) -> bool:
        """Do nothing, because no other thread waits."""
        return False


class Released:
    """`with Released(turn)`: runs an operation without making the other threads wait."""

    def __init__(self, turn: FairLock) -> None:
        self._turn = turn
        self._held = False
        #: `work` releases the turn for more than this.
        self.least_bytes = LARGE_BYTES

    def __enter__(self) -> None:
        self._held = self._turn.release()

    def __exit__(self, *error: Any) -> None:
        if self._held:
            self._turn.acquire()

    def work(self, size: int, work: Callable[..., None], *given: Any) -> None:
        """Return a context for work on this many bytes, which runs in turn or concurrently."""
        if size <= self.least_bytes:
            work(*given)
            return
        with self:
            work(*given)


MAGIC = b"PFps"
VERSION = 1
_HEADER = struct.Struct("<4sBBHIqIIQII")
_BODY = struct.Struct("<4sBBHIqIIQI")
_CRC = struct.Struct("<I")
_BODY_BYTES = _BODY.size
HEADER_BYTES = _HEADER.size

#: Handshake: the server's challenge, the worker's answer with its own, the server's answer.
CHALLENGE = 1
HELLO = 2
WELCOME = 3
#: A worker's requests. Pushes and updates have no reply of their own; the next reply confirms them.
PULL = 4
PUSH = 5
PUSHPULL = 6
LOOKUP = 7
UPDATE = 8
BARRIER = 9
BYE = 10
#: A server's replies. WAITING: the reply is delayed, because of the workers that the text names.
DATA = 11
WAITING = 12
#: A server to a backup worker: replace this worker, from this clock on.
TAKEOVER = 13
#: A worker's request for the order of all pushes and reads of the training.
HISTORY = 15
#: Either way: the text is the reason why this connection ends.
ERROR = 14

NAMES = {
    CHALLENGE: "CHALLENGE",
    HELLO: "HELLO",
    WELCOME: "WELCOME",
    PULL: "PULL",
    PUSH: "PUSH",
    PUSHPULL: "PUSHPULL",
    LOOKUP: "LOOKUP",
    UPDATE: "UPDATE",
    BARRIER: "BARRIER",
    BYE: "BYE",
    DATA: "DATA",
    WAITING: "WAITING",
    TAKEOVER: "TAKEOVER",
    ERROR: "ERROR",
    HISTORY: "HISTORY",
}

#: The last part of a push: the worker's clock is complete.
LAST = 1
#: The numbers are differences to be added unchanged, not gradients.
DELTA = 2
#: An ERROR that names a disagreement between its receiver and its sender.
MISMATCH = 4
#: An ERROR whose cause is a third process.
BECAUSE_OF_ANOTHER = 8
#: An ERROR for a process that does not belong to this run.
REFUSED = 16
#: An UPDATE of the rows of the last lookup, in their order: it carries no row numbers.
SAME_ROWS = 32

#: The maximum size of texts (HELLO, WELCOME, WAITING, ERROR), which are allocated before the peer is authenticated.
TEXT_BYTES = 64 * 1024
#: Largest size of a payload, whatever the plan.
MAX_BYTES = 1 << 40


class FrameError(Exception):
    """The data is not a frame of this protocol."""


@dataclass
class Header:
    """One frame without its payload. `clock` counts the worker's complete pushes of this phase.

    Headers are never modified, but a frozen dataclass would take three times as long to create.
    """

    op: int
    flags: int = 0
    worker: int = 0
    clock: int = 0
    shard: int = 0
    count: int = 0
    bytes: int = 0
    phase: int = 0

    @property
    def name(self) -> str:
        return NAMES[self.op]


def encode(header: Header) -> bytes:
    """Return the 44 bytes of a header."""
    body = _BODY.pack(
        MAGIC,
        VERSION,
        header.op,
        header.flags,
        header.worker,
        header.clock,
        header.shard,
        header.count,
        header.bytes,
        header.phase,
    )
    return body + _CRC.pack(zlib.crc32(body))


def decode(data: bytes | bytearray | memoryview) -> Header:
    """Decode the header in these 44 bytes. Raises FrameError with the received data."""
    if len(data) != HEADER_BYTES:
        raise FrameError(f"a header has {HEADER_BYTES} bytes, not {len(data)}")
    magic, version, op, flags, worker, clock, shard, count, size, phase, crc = _HEADER.unpack(data)
    if magic != MAGIC:
        raise FrameError(f"this is not the protocol of preflight's parameter servers: {bytes(data[:24])!r}")
    if crc != zlib.crc32(data[:_BODY_BYTES]):
        raise FrameError("the checksum of a header is wrong: bytes were changed in transit")
    if version != VERSION:
        raise FrameError(
            "the other side uses version %d of this protocol, and this side uses version %d" % (version, VERSION)
        )
    if op not in NAMES:
        raise FrameError("unknown operation %d" % op)
    if size > MAX_BYTES:
        raise FrameError("the header announces a payload of %d bytes" % size)
    return Header(op, flags, worker, clock, shard, count, size, phase)


#: Small frames are read with one system call; of larger ones at most this much is copied twice.
_READ_AHEAD = 64 * 1024
#: A payload of this size is received by one call, so that no turn is waited for in the middle of it, and nothing is
#: read ahead, which would cost another copy.
_LARGE_BYTES = 256 * 1024
#: Longest duration of a system call.
_TICK_US = 200_000
#: The kernel accepts 1024 buffers at once (IOV_MAX).
_MAX_PARTS = 1024
#: The kernel drops a connection after this long without an acknowledgement (tcp(7), TCP_USER_TIMEOUT).
USER_TIMEOUT_S = 10.0
#: A peer that blocks a call for longer than this is reported as awaited.
NOTICE_S = 0.5
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class PeerError(Exception):
    """The other side, `peer`, is gone, is silent, or has sent the reason why it ends.

    Args:
        kind: `gone`, `silent`, `protocol_error` (not a valid frame), `mismatch`, `ended` (it ended because of a third
            process).
    """

    def __init__(self, kind: str, peer: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.peer = peer
        self.text = text


def tune(connection: socket.socket) -> None:
    """Disable Nagle's delay, and set keep-alive and a limit on unacknowledged data, if the system supports them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", int(USER_TIMEOUT_S * 1000))):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def congestion_control(connection: socket.socket) -> str:
    """Return the kernel's congestion control for this connection, reported because it affects bandwidth."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return ""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, option, 16).split(b"\0")[0].decode("ascii", "replace")
    except OSError:
        return ""


class Channel:
    """Frames over one connected socket; `limit_s`, which may change, bounds each wait for the other side."""

    def __init__(self, connection: socket.socket, *, peer: str, limit_s: float) -> None:
        tune(connection)
        # Calls block in the kernel, which is one call where polling would be three, but never longer than a tick; then
        # the deadline is checked.
        connection.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", 0, _TICK_US))
        self.peer = peer
        self.limit_s = limit_s
        self.bytes_in = 0
        self.bytes_out = 0
        self.congestion = congestion_control(connection)
        self.address = address_of(connection, peer=True)
        self.source = address_of(connection, peer=False)
        self._socket = connection
        self._ahead = memoryview(bytearray(_READ_AHEAD))
        self._begin = self._end = 0
        self._payload_left = 0
        #: Read the following data together with the next header; after a large frame another one is likely.
        self._reads_ahead = True
        #: Unacknowledged bytes at the last check.
        self._unsent = 0
        self._queued: list[memoryview] = []
        #: A frame was begun whose end is still to be offered.
        self._cut = False
        self._sending = threading.Lock()
        #: Called when the other side has blocked a call for a moment, and when that is over.
        self.on_wait_change: Callable[[bool], None] = lambda lasts: None
        #: A call has been waiting for the other side for a moment.
        self.kept_waiting = False
        #: Released around system calls by its holder.
        self.turn: FairLock = NoLock()

    def send(self, header: Header, *payload: memoryview) -> None:
        """Send one whole frame, with the payload's buffers in sequence."""
        self.send_all([memoryview(encode(header)), *payload])

    def queue(self, parts: list[memoryview]) -> None:
        """Send these bytes before the next wait for the other side, together with everything else queued by then."""
        self._queued += parts

    def offer(self, parts: list[memoryview], *, whole: bool) -> None:
        """Queue these bytes, and send as much of the queue as possible without waiting. Raises PeerError.

        For answers while the other side is still sending: it reads nothing before it has sent everything, so waiting
        here would block forever.

        Args:
            whole: whether these bytes end a frame; otherwise the rest of it must be offered before anything else is
            sent.
        """
        with self._sending:
            self._cut = not whole
            self._queued += parts
            try:
                sent = self._socket.sendmsg(self._queued[:_MAX_PARTS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone(error) from error
            self.bytes_out += sent
            self._queued = _rest(self._queued, sent)

    def flush(self) -> None:
        """Send the queue."""
        if self._queued:
            self.send_all([])

    def send_all(self, parts: list[memoryview]) -> None:
        """Send these bytes in order, after the queue; one frame or several. Raises PeerError."""
        with self._sending:
            if self._queued:
                parts, self._queued = self._queued + parts, []
            began = 0.0
            left = sum(map(len, parts))
            while left:
                held_turn = self.turn.release()
                try:
                    sent = self._socket.sendmsg(parts[:_MAX_PARTS])
                except BlockingIOError:
                    began = began or time.monotonic() - _TICK_US / 1e6
                    self._check(began, began + self.limit_s, "read none of the data that was sent to it")
                    continue
                except OSError as error:
                    raise self._gone(error) from error
                finally:
                    if held_turn:
                        self.turn.acquire()
                # A peer that accepts data is alive.
                began = 0.0
                self._end_wait()
                self.bytes_out += sent
                left -= sent
                parts = _rest(parts, sent)

    def receive(self, deadline: float | None = None) -> Header:
        """Return the next header, by `deadline` however slowly its bytes arrive; without a deadline, as long as they
        keep arriving.

        Its payload must be read with `read_payload` before the next one is requested.

        Raises PeerError: `gone` at the end of the stream, `silent` when nothing arrives in time, `protocol_error` for
        an invalid frame, and the content of an ERROR frame.
        """
        if self._payload_left:
            raise RuntimeError(f"{self._payload_left} bytes of a payload were not read")
        while self._end - self._begin < HEADER_BYTES:
            self._read_more(deadline)
            self._in_time(deadline)
        begin = self._begin
        self._begin += HEADER_BYTES
        try:
            header = decode(self._ahead[begin : self._begin])
        except FrameError as error:
            raise PeerError("protocol_error", self.peer, f"{self.peer} sent invalid data: {error}") from error
        self._payload_left = header.bytes
        self._reads_ahead = header.bytes < _LARGE_BYTES
        if header.op == ERROR:
            raise self._error(header, deadline)
        return header

    def read_payload(self, into: memoryview, ends: float | None = None) -> None:
        """Read up to `into`'s size by `ends`, however slowly bytes arrive; without `ends`, while they keep arriving."""
        size = len(into)
        if size > self._payload_left:
            raise PeerError("protocol_error", self.peer, f"{self.peer} sent a payload that is too short")
        self._payload_left -= size
        have = min(size, self._end - self._begin)
        into[:have] = self._ahead[self._begin : self._begin + have]
        self._begin += have
        began = 0.0
        while have < size:
            held_turn = self.turn.release()
            try:
                if self._payload_left or size >= _LARGE_BYTES:
                    got = self._socket.recv_into(into[have:], 0, socket.MSG_WAITALL)
                else:
                    # The data after the payload comes with the same call.
                    got = self._socket.recvmsg_into([into[have:], self._ahead])[0]
            except BlockingIOError:
                began = began or time.monotonic() - _TICK_US / 1e6
                ends_s = began + self.limit_s if ends is None else ends
                self._check(began, ends_s, "stopped in the middle of a frame")
                continue
            except OSError as error:
                raise self._gone(error) from error
            finally:
                if held_turn:
                    self.turn.acquire()
            if not got:
                raise self._ended()
            began = 0.0
            self._end_wait()
            self.bytes_in += got
            self._begin, self._end = 0, max(0, got - (size - have))
            have += got
            if have < size:
                self._in_time(ends)

    def text(self, header: Header, ends: float | None = None) -> str:
        """Return the payload of this header as a string. Raises PeerError if it is longer than a message may be."""
        if header.bytes > TEXT_BYTES:
            raise PeerError("protocol_error", self.peer, f"{self.peer} sent a text of {header.bytes} bytes")
        data = bytearray(header.bytes)
        self.read_payload(memoryview(data), ends)
        return data.decode("utf-8", "replace")

    def send_error(self, text: str, flags: int = 0) -> None:
        """Send the reason for the end of this connection, except in the middle of a frame (as it would be data)."""
        if self._cut:
            return
        data = text.encode("utf-8")[:TEXT_BYTES]
        limit_s, self.limit_s = self.limit_s, min(1.0, self.limit_s)
        try:
            if self._sending.acquire(timeout=1.0):
                self._sending.release()
                self.send(Header(ERROR, flags, bytes=len(data)), memoryview(data))
        except PeerError:
            pass
        finally:
            self.limit_s = limit_s

    def shut(self) -> None:
        """Shut down both directions, which wakes any thread that waits on this connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()

    @property
    def seen(self) -> bytes:
        """Return the first bytes that arrived and were not read; messages about unknown clients quote them."""
        return bytes(self._ahead[self._begin : self._end][:80])

    def _read_more(self, deadline: float | None) -> None:
        self.flush()
        if self._begin == self._end:
            self._begin = self._end = 0
        elif _READ_AHEAD - self._end < HEADER_BYTES:
            left = self._end - self._begin
            self._ahead[:left] = bytes(self._ahead[self._begin : self._end])
            self._begin, self._end = 0, left
        until = _READ_AHEAD if self._reads_ahead else self._begin + HEADER_BYTES
        started_at = time.monotonic()
        while True:
            held_turn = self.turn.release()
            try:
                got = self._socket.recv_into(self._ahead[self._end : until])
            except BlockingIOError:
                ends = started_at + self.limit_s if deadline is None else deadline
                self._check(started_at, ends, "said nothing")
                continue
            except OSError as error:
                raise self._gone(error) from error
            finally:
                if held_turn:
                    self.turn.acquire()
            self._end_wait()
            if not got:
                raise self._ended()
            self._end += got
            self.bytes_in += got
            return

    def _in_time(self, deadline: float | None) -> None:
        """Raise PeerError if the deadline has passed, even if data is still arriving."""
        if deadline is not None and time.monotonic() >= deadline:
            self._end_wait()
            raise PeerError("silent", self.peer, f"{self.peer} did not send a whole frame in time")

    def _check(self, started_at: float, deadline: float, did: str) -> None:
        """After a system call without progress for a tick, report a long wait, and end it at the deadline."""
        now = time.monotonic()
        if now >= deadline and not self._is_draining():
            self._end_wait()
            raise PeerError("silent", self.peer, f"{self.peer} {did} for {self.limit_s:.1f} s")
        if now - started_at >= NOTICE_S:
            self.kept_waiting = True
            self.on_wait_change(True)

    def _end_wait(self) -> None:
        if self.kept_waiting:
            self.kept_waiting = False
            self.on_wait_change(False)

    def _is_draining(self) -> bool:
        """Return whether the kernel still sends queued data: the other side is alive and the path is slow."""
        try:
            (left,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False
        before, self._unsent = self._unsent, left
        return bool(0 < left < before)

    def _gone(self, error: OSError) -> PeerError:
        if error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
            return PeerError("silent", self.peer, f"{self.peer} no longer responds: {error.strerror}")
        return PeerError("gone", self.peer, f"the connection to {self.peer} was lost: {error.strerror}")

    def _ended(self) -> PeerError:
        return PeerError("gone", self.peer, f"{self.peer} closed the connection")

    def _error(self, header: Header, ends: float | None) -> PeerError:
        kind = "mismatch" if header.flags & MISMATCH else "ended"
        kind = "protocol_error" if header.flags & REFUSED else kind
        return PeerError(kind, self.peer, f"{self.peer} reports: {self.text(header, ends)}")


def _rest(parts: list[memoryview], sent: int) -> list[memoryview]:
    """Return the rest of these buffers after this many bytes were sent."""
    for place, part in enumerate(parts):
        if sent < len(part):
            return [part[sent:], *parts[place + 1 :]]
        sent -= len(part)
    return []


def address_of(connection: socket.socket, *, peer: bool) -> str:
    """Return `host:port` of one end of a connection; a mapped IPv4 address is shown as IPv4."""
    try:
        name: tuple[object, ...] = connection.getpeername() if peer else connection.getsockname()
    except OSError:
        return ""
    if len(name) < 2:
        return str(name)
    host = str(name[0])
    host = host[7:] if host.startswith("::ffff:") else host
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"


# Connects a worker to all servers in parallel; each side proves that it knows the secret of this run. The secret is
# never sent. Each side sends a random challenge and answers the other's with an HMAC of both challenges and its own
# hello, so that an old answer is useless and no hello can be changed in transit. An accepted worker is not
# challenged again: an attacker who can write into an established connection could also write the data.


_NONCE_BYTES = 32
_PROOF_BYTES = 32


def challenge(channel: Channel, secret: bytes, deadline: float) -> tuple[dict[str, Any], bytes]:
    """Read the worker's hello, and return it with the required proof. Raises PeerError for a stranger."""
    own = os.urandom(_NONCE_BYTES)
    channel.send(Header(CHALLENGE, bytes=len(own)), memoryview(own))
    try:
        header = channel.receive(deadline)
    except PeerError as error:
        if error.kind == "silent":
            raise PeerError(
                "protocol_error", error.peer, f"{error.peer} connected but did not identify itself"
            ) from error
        raise
    if header.op != HELLO or not _NONCE_BYTES + _PROOF_BYTES < header.bytes <= TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} began with {header.name}")
    data = bytearray(header.bytes)
    channel.read_payload(memoryview(data), deadline)
    theirs, proof = bytes(data[:_NONCE_BYTES]), bytes(data[_NONCE_BYTES : _NONCE_BYTES + _PROOF_BYTES])
    peer_values = bytes(data[_NONCE_BYTES + _PROOF_BYTES :])
    if not hmac.compare_digest(proof, _proof(secret, b"worker", own, theirs, peer_values)):
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} does not know the secret of this run")
    return _parse_json(channel, peer_values), own + theirs


def welcome(channel: Channel, secret: bytes, challenges: bytes, own_values: dict[str, Any]) -> None:
    """Send the server's answer, once it accepts the worker."""
    peer_values = json.dumps(own_values).encode("utf-8")
    proof = _proof(secret, b"server", challenges[:_NONCE_BYTES], challenges[_NONCE_BYTES:], peer_values)
    data = proof + peer_values
    channel.send(Header(WELCOME, bytes=len(data)), memoryview(data))


def introduce(channel: Channel, secret: bytes, own_values: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Run the worker's side: authenticate, and return the server's hello.

    Raises PeerError: `protocol_error` for a peer that is not a server of this run, `mismatch` and `ended` with the
    server's message.
    """
    header = _expect(channel, CHALLENGE, limit_s)
    if header.bytes != _NONCE_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent a challenge of {header.bytes} bytes")
    theirs = bytearray(_NONCE_BYTES)
    channel.read_payload(memoryview(theirs), time.monotonic() + limit_s)
    own = os.urandom(_NONCE_BYTES)
    peer_values = json.dumps(own_values).encode("utf-8")
    data = own + _proof(secret, b"worker", bytes(theirs), own, peer_values) + peer_values
    channel.send(Header(HELLO, bytes=len(data)), memoryview(data))
    header = _expect(channel, WELCOME, limit_s)
    if not _PROOF_BYTES < header.bytes <= TEXT_BYTES:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent a welcome of {header.bytes} bytes")
    answer = bytearray(header.bytes)
    channel.read_payload(memoryview(answer), time.monotonic() + limit_s)
    proof, peer_data = bytes(answer[:_PROOF_BYTES]), bytes(answer[_PROOF_BYTES:])
    if not hmac.compare_digest(proof, _proof(secret, b"server", bytes(theirs), own, peer_data)):
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} does not know the secret of this run")
    return _parse_json(channel, peer_data)


def _expect(channel: Channel, op: int, limit_s: float) -> Header:
    try:
        header = channel.receive(time.monotonic() + limit_s)
    except PeerError as error:
        if error.kind == "silent":
            text = (
                "%s accepted the connection but sent nothing for %.1f s: it is not a server of this run, or it is "
                "stopped"
            )
            raise PeerError("silent", error.peer, text % (error.peer, limit_s)) from error
        raise
    if header.op != op:
        raise PeerError("protocol_error", channel.peer, f"{channel.peer} sent {header.name}, not {NAMES[op]}")
    return header


def _proof(secret: bytes, role: bytes, of_server: bytes, of_worker: bytes, peer_values: bytes) -> bytes:
    return hmac.new(secret, b"preflight ps " + role + of_server + of_worker + peer_values, hashlib.sha256).digest()


def _parse_json(channel: Channel, peer_values: bytes) -> dict[str, Any]:
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
#: Interval between reports of a failed connection, which may last long after the server has begun to listen.
_REPEAT_S = 1.0


@dataclass
class DialledServer:
    """One server: its authenticated connection, or the reason why there is none."""

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
        """Return a connection to each server, by index.

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
        """Make one attempt to connect; the connection is kept if it opens."""
        started_at = time.monotonic()
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
        item.dialled = DialResult("open", "", address, source, time.monotonic() - started_at)
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
