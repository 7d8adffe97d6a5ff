"""The other end of every link probe: listens, acknowledges, counts datagrams, receives and sends bulk data.

Anyone may connect, but only a client with the token is served. Everything is limited: a frame by its size, a transfer
by bytes and seconds, a train of datagrams by its length.
"""

from __future__ import annotations

import binascii
import errno
import itertools
import os
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Callable

from preflight_checks.probes.interfaces import parse_port_list, visible_network
from preflight_checks.probes.links import (
    COMMAND,
    DATAGRAM,
    FRAME,
    HELLO_BYTES,
    KNOCK,
    MAX_PAYLOAD_BYTES,
    PAYLOAD,
    TOKEN_BYTES,
    hello,
    load,
    plain_address,
    receive,
    send_words,
    tcp_info,
    waited_s,
    welcome,
    words_of,
)
from preflight_checks.probes.ports import OTHER_RUN, bind_socket, holders_of

#: A connection that is silent for this long is dropped, and one without a complete greeting by then.
IDLE_S, GREETING_S = 12.0, 3.0
#: The maximum number of connections; of those without a greeting, the oldest is dropped for the newest.
MAX_CONNECTIONS, MAX_UNKNOWN = 4096, 256
#: Upper bounds of a transfer, whatever is requested.
MAX_SECONDS, MAX_BYTES, MAX_DATAGRAMS = 2.0, 256 << 20, 4000
CHUNK = 1 << 18
#: The time to receive data in transit after the sender has stopped, and the time to wait for a result.
LATER_S, RESULT_S = 0.1, 0.5
#: Room for a train that arrives while this process waits for a processor.
RECEIVE_BUFFER = 4 << 20
_SO_RXQ_OVFL = 40
#: The maximum number of ports across the ephemeral range, and how many are tried in each part of it.
MAX_SPREAD, _SPREAD_TRIES = 32, 8
OVERFLOW_BYTES = socket.CMSG_SPACE(4)


@dataclass(frozen=True)
class Listening:
    """The addresses of a listener: its token, the TCP and UDP ports that the kernel chose, and the requested ports.

    The value of a port is empty, or the reason why it could not be bound. `udp` is 0 if no datagrams can be received.
    `spread` are ports from one end of the ephemeral `range` (first and last port) to the other, in rising order.
    """

    token: str
    free: int
    udp: int = 0
    ports: dict[str, str] = field(default_factory=dict)
    spread: list[int] = field(default_factory=list)
    range: list[int] = field(default_factory=list)


def listen(params: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> Listening:
    """Listen on every port of `params["ports"]` and on a free one until cancelled (or `lifetime_s`, 120 s).

    It also listens on `params["spread"]` ports across the ephemeral range. Emits `{"listening": Listening}` as soon as
    it listens, and `{"heard": ID}` once for each knock that arrives.
    """
    token = binascii.hexlify(os.urandom(TOKEN_BYTES))
    deadline = time.monotonic() + float(params.get("lifetime_s", 120.0))
    listeners: list[socket.socket] = []
    ports: dict[str, str] = {}
    try:
        first = _listener(0)
        listeners.append(first)
        for port in params.get("ports") or []:
            try:
                listeners.append(_listener(int(port)))
                ports[str(port)] = ""
            except OSError as error:
                ports[str(port)] = error.strerror or str(error)
                if any(holder.command == OTHER_RUN for holder in holders_of(int(port))):
                    ports[str(port)] += f" by {OTHER_RUN}"
        network = visible_network()
        ephemeral = [port for port in (network.first_port, network.last_port) if port]
        taken = frozenset(parse_port_list(network.reserved_ports))
        spread = _spread(ephemeral, min(int(params.get("spread", 0)), MAX_SPREAD), taken)
        listeners.extend(spread)
        server = _Server(token, _datagrams(), emit)
        across = [item.getsockname()[1] for item in spread]
        where = Listening(token.decode(), first.getsockname()[1], server.udp_port, ports, across, ephemeral)
        words = {"token": where.token, "free": where.free, "udp": where.udp, "ports": where.ports}
        emit({"listening": {**words, "spread": where.spread, "range": where.range}})
        server.serve(listeners, deadline)
        return where
    finally:
        for item in listeners:
            item.close()


def _spread(ephemeral: list[int], count: int, reserved_ports: AbstractSet[int] = frozenset()) -> list[socket.socket]:
    """Return listeners on about `count` ports of the range: the range is divided into as many equal parts, and one port
    near the upper end of each part is used.

    A part without a free port near its end has no listener. Reserved ports are not tried, because no job is assigned
    one.
    """
    sockets: list[socket.socket] = []
    if not ephemeral or count < 1:
        return sockets
    first, last = ephemeral
    size = (last - first + 1) // count
    for part in range(count if size >= _SPREAD_TRIES else 0):
        end = last if part == count - 1 else first + size * (part + 1) - 1
        allowed = (port for port in range(end, end - size, -1) if port not in reserved_ports)
        for port in itertools.islice(allowed, _SPREAD_TRIES):
            try:
                sockets.append(_listener(port, 0.0))
                break
            except OSError:
                continue
    return sockets


def _listener(port: int, timeout_s: float = 0.4) -> socket.socket:
    """Listen on `port`, waiting briefly for a previous process to release it."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            listener = bind_socket(socket.AF_INET6, ("::", port), both=True)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                listener = bind_socket(socket.AF_INET, ("0.0.0.0", port))
                break
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
    # All nodes dial the node of rank 0 at about the same time; the kernel lowers it to net.core.somaxconn.
    listener.listen(4096)
    return listener


def _datagrams() -> socket.socket | None:
    """Return a socket for datagrams of both address families; None if this node has no such socket."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            found = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            found.bind((anywhere, 0))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            enable_overflow_counter(found)
            forbid_fragmentation(found)
            return found
        except OSError:
            continue
    return None


@dataclass
class _Train:
    """The datagrams of one train so far: their origin, and how many arrived."""

    source: tuple[Any, ...]
    arrived: int = 0


class _Server:
    """Serves the connections of one listener, each in a thread."""

    def __init__(self, token: bytes, datagrams: socket.socket | None, emit: Callable[[dict[str, Any]], None]) -> None:
        self._token = token
        self._emit = emit
        self._datagrams = datagrams
        self._trains: dict[bytes, _Train] = {}
        self._overflown = 0
        self._lock = threading.Lock()
        self._connections = 0
        self._unknown: dict[socket.socket, float] = {}
        self._transfers: dict[str, dict[str, Any]] = {}
        self.udp_port = datagrams.getsockname()[1] if datagrams is not None else 0

    def serve(self, listeners: list[socket.socket], deadline: float) -> None:
        if self._datagrams is not None:
            threading.Thread(target=self._count, args=(self._datagrams,), daemon=True).start()
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            ready, _, _ = select.select(listeners, [], [], remaining)
            for item in ready:
                try:
                    accepted, peer = item.accept()
                except OSError:
                    continue
                self._accept_connection(accepted, str(peer[0]))

    def _accept_connection(self, accepted: socket.socket, peer_address: str) -> None:
        """Serve another connection; the oldest unauthenticated connections are dropped to make room."""
        with self._lock:
            if self._connections >= MAX_CONNECTIONS:
                accepted.close()
                return
            while len(self._unknown) >= MAX_UNKNOWN:
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]
                try:
                    # Its own thread closes it.
                    oldest.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._connections += 1
            self._unknown[accepted] = time.monotonic()
        try:
            threading.Thread(target=self._serve_connection, args=(accepted, peer_address), daemon=True).start()
        except RuntimeError:
            # No thread can be started. A connection that was closed would look like that of another program.
            self._serve_connection(accepted, peer_address)

    def _forget_connection(self, accepted: socket.socket) -> None:
        with self._lock:
            self._unknown.pop(accepted, None)
            self._connections -= 1

    def _serve_connection(self, accepted: socket.socket, peer_address: str) -> None:
        try:
            self._converse(accepted, peer_address)
        finally:
            self._forget_connection(accepted)

    def _converse(self, accepted: socket.socket, peer_address: str) -> None:
        with accepted:
            try:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if receive(accepted, HELLO_BYTES, time.monotonic() + GREETING_S) != hello(self._token.decode()):
                    return
                with self._lock:
                    self._unknown.pop(accepted, None)
                accepted.settimeout(IDLE_S)
                accepted.sendall(welcome(self._token, plain_address(peer_address)))
                while True:
                    kind, size = FRAME.unpack(receive(accepted, FRAME.size))
                    if not 0 < size <= MAX_PAYLOAD_BYTES:
                        return
                    body = receive(accepted, size)
                    if kind == PAYLOAD:
                        accepted.sendall(FRAME.pack(PAYLOAD, size))
                    elif kind != COMMAND or not self._execute(accepted, words_of(body)):
                        return
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                return

    def _execute(self, stream: socket.socket, words: dict[str, Any]) -> bool:
        """Execute a command; return False when the connection can be closed."""
        what = words.get("do")
        if what in ("sink", "source"):
            self._transfers[str(words["id"])] = transfer(stream, str(what), words)
            return False
        if what == "result":
            send_words(stream, **self._result(str(words["id"])))
        elif what == "load":
            found = load()
            send_words(stream, average=found.average, processors=found.processors, waited_s=waited_s())
        elif what == "arrived":
            train = self._trains.get(_id(words))
            overflown = self._overflown + dropped_by_kernel()
            send_words(stream, arrived=train.arrived if train else 0, overflown=overflown)
        elif what == "train":
            sent, size = self._send_train(_id(words), words)
            send_words(stream, sent=sent, size=size)
        elif what == "perftest":
            # Few fleets have RDMA: imported for those.
            from preflight_checks.probes import rdma

            send_words(stream, **rdma.serve(words))
        else:
            return False
        return True

    def _result(self, id: str) -> dict[str, Any]:
        """Return the result of a transfer, once its thread has finished."""
        until = time.monotonic() + RESULT_S
        while id not in self._transfers and time.monotonic() < until:
            time.sleep(0.005)
        return self._transfers.get(id, {})

    def _count(self, datagrams: socket.socket) -> None:
        """Count arriving datagrams by train, and those that this socket dropped."""
        while True:
            try:
                data, extra, _, source = datagrams.recvmsg(65536, OVERFLOW_BYTES)
            except OSError:
                return
            self._overflown = overflow_count(extra, self._overflown)
            if len(data) < DATAGRAM.size or len(self._trains) > 100000:
                continue
            id, number = DATAGRAM.unpack_from(data)
            if number == KNOCK and id not in self._trains:
                self._emit({"heard": binascii.hexlify(id).decode()})
            train = self._trains.setdefault(id, _Train(source))
            train.arrived += 1

    def _send_train(self, id: bytes, words: dict[str, Any]) -> tuple[int, int]:
        """Send a train back to the origin of train `id`; return count and size of datagrams (default: path MTU)."""
        train = self._trains.get(id)
        if train is None or self._datagrams is None:
            return 0, 0
        size = int(words.get("size") or 0)
        if not size:
            with socket.socket(self._datagrams.family, socket.SOCK_DGRAM) as receiver:
                receiver.connect(train.source)
                size = largest_datagram(receiver, str(train.source[0]))
        return send_train(self._datagrams, train.source, id, {**words, "size": size}), size


def enable_overflow_counter(datagrams: socket.socket) -> None:
    """Make the kernel report, with each datagram, how many datagrams the socket has dropped (SO_RXQ_OVFL in
    socket(7)).
    """
    try:
        datagrams.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    except OSError:
        pass


def overflow_count(extra: list[tuple[int, int, bytes]], last_known: int) -> int:
    """Return the overflow count in a datagram; `last_known` if the datagram carries none."""
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL and len(data) >= 4:
            return int(struct.unpack_from("=I", data)[0])
    return last_known


def dropped_by_kernel(path: str = "/proc/net/softnet_stat") -> int:
    """Return the number of packets that were received but dropped because the machine was too busy (second column)."""
    try:
        with open(path) as file:
            return sum(int(line.split()[1], 16) for line in file)
    except (OSError, ValueError, IndexError):
        return 0


def forbid_fragmentation(datagrams: socket.socket) -> None:
    """Make a socket send datagrams unfragmented (DF), up to the interface's MTU, regardless of the known path MTU."""
    for level, option in ((socket.IPPROTO_IP, 10), (socket.IPPROTO_IPV6, 23)):  # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER
        try:
            datagrams.setsockopt(level, option, 3)  # IP_PMTUDISC_PROBE
        except OSError:
            pass


def largest_datagram(connected: socket.socket, address: str) -> int:
    """Return the largest datagram that fits into one frame, from IP_MTU or IPV6_MTU; 0 if unknown."""
    mapped = plain_address(address)
    headers, (level, option) = (48, (socket.IPPROTO_IPV6, 24)) if ":" in mapped else (28, (socket.IPPROTO_IP, 14))
    try:
        return max(0, connected.getsockopt(level, option) - headers)
    except OSError:
        return 0


def send_train(datagrams: socket.socket, target: tuple[Any, ...] | None, id: bytes, words: dict[str, Any]) -> int:
    """Send `count` datagrams of `size` bytes, `gap_s` apart, to `target` or the connected peer; return the number
    sent.
    """
    count, gap_s = min(int(words["count"]), MAX_DATAGRAMS), min(float(words.get("gap_s", 0.0)), 0.01)
    body = b"\0" * max(0, min(int(words.get("size", 64)), 65000) - DATAGRAM.size)
    started_at, sent = time.monotonic(), 0
    for number in range(count):
        data = DATAGRAM.pack(id, number) + body
        try:
            if target is None:
                datagrams.send(data)
            else:
                datagrams.sendto(data, target)
            sent += 1
        except OSError:
            pass
        ahead = started_at + number * gap_s - time.monotonic()
        if ahead > 0.001:
            time.sleep(ahead)
    return sent


def _id(words: dict[str, Any]) -> bytes:
    return binascii.unhexlify(str(words["train"]))[:8].ljust(8, b"\0")


def transfer(stream: socket.socket, direction: str, words: dict[str, Any]) -> dict[str, Any]:
    """Receive (`sink`) or send (`source`) up to `bytes` for up to `seconds`, and return the result.

    A sink counts the time from the first received piece, whose bytes do not count, to the last piece. Each side
    measures its own end: on a slow path, the last data arrives much later than it was sent.
    """
    seconds = min(float(words["seconds"]), MAX_SECONDS)
    max_bytes = min(int(words["bytes"]), MAX_BYTES)
    before, started_at = waited_s(), time.monotonic()
    stream.setblocking(False)
    try:
        moved_bytes, took_s = (_send if direction == "source" else _receive_bulk)(
            stream, max_bytes, started_at + seconds
        )
    except OSError:
        moved_bytes, took_s = 0, 0.0
    after = waited_s()
    measured_wait_s = None if before is None or after is None else after - before
    known = tcp_info(stream)
    if direction == "source" and moved_bytes < max_bytes:
        # Data still in the queue must not delay the next measurement: closing resets the connection.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return {
        "bytes": moved_bytes,
        "seconds": took_s,
        "took_s": time.monotonic() - started_at,
        "waited_s": measured_wait_s,
        "retransmitted": known.get("total_retrans"),
        "sent": known.get("data_out"),
    }


def _send(stream: socket.socket, max_bytes: int, until: float) -> tuple[int, float]:
    """Send until all data is sent or time runs out; return the bytes that the kernel accepted, and the duration."""
    buffer = memoryview(bytearray(CHUNK))
    moved, began = 0, time.monotonic()
    while moved < max_bytes and time.monotonic() < until:
        _, writable, _ = select.select([], [stream], [], max(0.0, until - time.monotonic()))
        try:
            if writable:
                moved += stream.send(buffer[: min(CHUNK, max_bytes - moved)])
        except BlockingIOError:
            continue
    return moved, time.monotonic() - began


def _receive_bulk(stream: socket.socket, max_bytes: int, until: float) -> tuple[int, float]:
    """Receive until the end or shortly after `until`; return bytes and duration from the first to the last piece."""
    buffer = memoryview(bytearray(CHUNK))
    moved_bytes, first, last = 0, 0.0, 0.0
    while time.monotonic() < until + LATER_S:
        readable, _, _ = select.select([stream], [], [], max(0.0, until + LATER_S - time.monotonic()))
        if not readable:
            break
        try:
            size = stream.recv_into(buffer)
        except BlockingIOError:
            continue
        except OSError:
            break
        if not size:
            break
        now = time.monotonic()
        first, moved_bytes, last = (first, moved_bytes + size, now) if first else (now, moved_bytes, now)
    return moved_bytes, max(0.0, last - first)
