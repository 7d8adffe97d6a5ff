"""The other end of every link probe: listens, acknowledges, counts datagrams, takes in and sends out bulk data.

Anybody may connect; only who says the token is served. Everything served is bounded: a frame by its size, a transfer
by bytes and seconds, a train of datagrams by its length.
"""

from __future__ import annotations

import binascii
import errno
import os
import select
import socket
import struct
import threading
import time

from preflight.node.record import ANNOTATED, dataclass, field
from preflight_checks.probes.link_wire import (
    COMMAND,
    DATAGRAM,
    FRAME,
    HELLO_BYTES,
    KNOCK,
    LARGEST_PAYLOAD,
    PAYLOAD,
    TOKEN_BYTES,
    hello,
    load,
    plain_address,
    receive,
    tcp_info,
    tell,
    waited_s,
    welcome,
    words_of,
)
from preflight_checks.probes.ports import bound

if ANNOTATED:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: A connection that says nothing for so long is given up.
IDLE_S = 12.0
#: No transfer takes longer or more than this, whatever is asked for.
MOST_SECONDS, MOST_BYTES, MOST_DATAGRAMS = 2.0, 256 << 20, 4000
CHUNK = 1 << 18
#: What is still on its way when the sender has stopped is taken in for so long, and a result is waited for so long.
LATER_S, RESULT_S = 0.1, 0.5
#: Room for a train that arrives while this process waits for a processor.
RECEIVE_BUFFER = 4 << 20
_SO_RXQ_OVFL = 40
OVERFLOW_BYTES = socket.CMSG_SPACE(4)


@dataclass(frozen=True)
class Listening:
    """Where a listener listens: its token, the TCP and UDP ports the kernel chose, and the asked-for ports.

    The text behind a port is empty, or why it could not be bound. `udp` is 0 where no datagrams can be received.
    """

    token: str
    free: int
    udp: int = 0
    ports: Dict[str, str] = field(default_factory=dict)


def listen(params: Dict[str, Any], emit: Callable[[Dict[str, Any]], None]) -> Listening:
    """Listen on every port of `params["ports"]` and on a free one until cancelled (or `lifetime_s`, 120 s).

    Emits `{"listening": Listening}` as soon as it listens, and `{"heard": ID}` once for each knock that arrives.
    """
    token = binascii.hexlify(os.urandom(TOKEN_BYTES))
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
        server = _Server(token, _datagrams(), emit)
        where = Listening(token.decode(), first.getsockname()[1], server.udp_port, ports)
        emit({"listening": {"token": where.token, "free": where.free, "udp": where.udp, "ports": where.ports}})
        server.serve(listeners, deadline)
        return where
    finally:
        for item in listeners:
            item.close()


def _listener(port: int, patience_s: float = 0.4) -> socket.socket:
    """Listen on `port`, waiting a moment for whoever held it before to let go of it."""
    until = time.monotonic() + patience_s
    while True:
        try:
            found = bound(socket.AF_INET6, ("::", port), both=True)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                found = bound(socket.AF_INET, ("0.0.0.0", port))
                break
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
    # Everybody dials the node of rank 0 at about the same time; the kernel lowers it to net.core.somaxconn.
    found.listen(4096)
    return found


def _datagrams() -> Optional[socket.socket]:
    """A socket for datagrams of both families; None where this node gives none."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            found = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            found.bind((anywhere, 0))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            count_overflow(found)
            never_cut(found)
            return found
        except OSError:
            continue
    return None


@dataclass
class _Train:
    """Datagrams of one train so far: where they come from, and how many arrived."""

    source: Tuple[Any, ...]
    arrived: int = 0


class _Server:
    """Serves the connections of one listener, a thread each."""

    def __init__(
        self, token: bytes, datagrams: Optional[socket.socket], emit: Callable[[Dict[str, Any]], None]
    ) -> None:
        self._token = token
        self._emit = emit
        self._datagrams = datagrams
        self._trains = {}  # type: Dict[bytes, _Train]
        self._overflown = 0
        self._transfers = {}  # type: Dict[str, Dict[str, Any]]
        self.udp_port = datagrams.getsockname()[1] if datagrams is not None else 0

    def serve(self, listeners: List[socket.socket], deadline: float) -> None:
        """Accept until the deadline."""
        if self._datagrams is not None:
            threading.Thread(target=self._count, args=(self._datagrams,), daemon=True).start()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            ready, _, _ = select.select(listeners, [], [], left)
            for item in ready:
                try:
                    accepted, peer = item.accept()
                except OSError:
                    continue
                threading.Thread(target=self._serve_one, args=(accepted, str(peer[0])), daemon=True).start()

    def _serve_one(self, accepted: socket.socket, seen: str) -> None:
        with accepted:
            accepted.settimeout(IDLE_S)
            try:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if receive(accepted, HELLO_BYTES) != hello(self._token.decode()):
                    return
                accepted.sendall(welcome(self._token, plain_address(seen)))
                while True:
                    kind, size = FRAME.unpack(receive(accepted, FRAME.size))
                    if not 0 < size <= LARGEST_PAYLOAD:
                        return
                    body = receive(accepted, size)
                    if kind == PAYLOAD:
                        accepted.sendall(FRAME.pack(PAYLOAD, size))
                    elif kind != COMMAND or not self._obey(accepted, words_of(body)):
                        return
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                return

    def _obey(self, stream: socket.socket, words: Dict[str, Any]) -> bool:
        """Carry a command out; False when the connection is of no further use."""
        what = words.get("do")
        if what in ("sink", "source"):
            self._transfers[str(words["id"])] = transfer(stream, str(what), words)
            return False
        if what == "result":
            tell(stream, **self._result(str(words["id"])))
        elif what == "load":
            found = load()
            tell(stream, average=found.average, processors=found.processors, waited_s=waited_s())
        elif what == "arrived":
            train = self._trains.get(_id(words))
            overflown = self._overflown + dropped_by_kernel()
            tell(stream, arrived=train.arrived if train else 0, overflown=overflown)
        elif what == "train":
            sent, size = self._send_train(_id(words), words)
            tell(stream, sent=sent, size=size)
        else:
            return False
        return True

    def _result(self, id: str) -> Dict[str, Any]:
        """What came of a transfer, once the thread that serves it is through."""
        until = time.monotonic() + RESULT_S
        while id not in self._transfers and time.monotonic() < until:
            time.sleep(0.005)
        return self._transfers.get(id, {})

    def _count(self, datagrams: socket.socket) -> None:
        """Count what arrives, by train, and what this socket had no room for."""
        while True:
            try:
                data, extra, _, source = datagrams.recvmsg(65536, OVERFLOW_BYTES)
            except OSError:
                return
            self._overflown = overflown(extra, self._overflown)
            if len(data) < DATAGRAM.size or len(self._trains) > 100000:
                continue
            id, number = DATAGRAM.unpack_from(data)
            if number == KNOCK and id not in self._trains:
                self._emit({"heard": binascii.hexlify(id).decode()})
            train = self._trains.setdefault(id, _Train(source))
            train.arrived += 1

    def _send_train(self, id: bytes, words: Dict[str, Any]) -> Tuple[int, int]:
        """Send a train to where one of this id came from: how many datagrams went, and of which size.

        Without a size they are as large as one frame of this path may be by what this kernel knows of it.
        """
        train = self._trains.get(id)
        if train is None or self._datagrams is None:
            return 0, 0
        size = int(words.get("size") or 0)
        if not size:
            with socket.socket(self._datagrams.family, socket.SOCK_DGRAM) as asked:
                asked.connect(train.source)
                size = largest_datagram(asked, str(train.source[0]))
        return send_train(self._datagrams, train.source, id, {**words, "size": size}), size


def count_overflow(datagrams: socket.socket) -> None:
    """Have the kernel say with each datagram how many the socket had no room for (SO_RXQ_OVFL of socket(7))."""
    try:
        datagrams.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    except OSError:
        pass


def overflown(extra: List[Tuple[int, int, bytes]], known: int) -> int:
    """That number, as it came with a datagram; `known` where it did not come."""
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL and len(data) >= 4:
            return int(struct.unpack_from("=I", data)[0])
    return known


def dropped_by_kernel(path: str = "/proc/net/softnet_stat") -> int:
    """Packets this machine received and dropped because it was too busy: the second column, added up."""
    try:
        with open(path) as file:
            return sum(int(line.split()[1], 16) for line in file)
    except (OSError, ValueError, IndexError):
        return 0


def never_cut(datagrams: socket.socket) -> None:
    """Have every datagram sent whole (DF) and as large as the interface allows, whatever was learnt of the path."""
    for level, option in ((socket.IPPROTO_IP, 10), (socket.IPPROTO_IPV6, 23)):  # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER
        try:
            datagrams.setsockopt(level, option, 3)  # IP_PMTUDISC_PROBE
        except OSError:
            pass


def largest_datagram(connected: socket.socket, address: str) -> int:
    """How many bytes one datagram to the connected end may carry in one frame; 0 where the kernel does not say.

    IP_MTU and IPV6_MTU (ip(7), ipv6(7)) give the MTU of the route, less the headers of IP and UDP.
    """
    mapped = plain_address(address)
    headers, (level, option) = (48, (socket.IPPROTO_IPV6, 24)) if ":" in mapped else (28, (socket.IPPROTO_IP, 14))
    try:
        return max(0, connected.getsockopt(level, option) - headers)
    except OSError:
        return 0


def send_train(datagrams: socket.socket, target: Optional[Tuple[Any, ...]], id: bytes, words: Dict[str, Any]) -> int:
    """Send `count` datagrams of `size` bytes, `gap_s` apart; to the connected end without a target. How many went."""
    count, gap_s = min(int(words["count"]), MOST_DATAGRAMS), min(float(words.get("gap_s", 0.0)), 0.01)
    body = b"\0" * max(0, min(int(words.get("size", 64)), 65000) - DATAGRAM.size)
    began, sent = time.monotonic(), 0
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
        ahead = began + number * gap_s - time.monotonic()
        if ahead > 0.001:
            time.sleep(ahead)
    return sent


def _id(words: Dict[str, Any]) -> bytes:
    return binascii.unhexlify(str(words["train"]))[:8].ljust(8, b"\0")


def transfer(stream: socket.socket, way: str, words: Dict[str, Any]) -> Dict[str, Any]:
    """Take in (`sink`) or send out (`source`) up to `bytes` for up to `seconds`; what came of it.

    A sink counts from the first piece that came in, which itself is not counted, to the last. Neither end waits for
    the other's: on a slow way what was sent last arrives long after.
    """
    seconds = min(float(words["seconds"]), MOST_SECONDS)
    most = min(int(words["bytes"]), MOST_BYTES)
    before, began = waited_s(), time.monotonic()
    stream.setblocking(False)
    try:
        moved, took_s = (_send if way == "source" else _take)(stream, most, began + seconds)
    except OSError:
        moved, took_s = 0, 0.0
    after = waited_s()
    waited = None if before is None or after is None else after - before
    known = tcp_info(stream)
    if way == "source" and moved < most:
        # What still lies in the queue must not delay the next measurement: closing resets the connection.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return {
        "bytes": moved,
        "seconds": took_s,
        "took_s": time.monotonic() - began,
        "waited_s": waited,
        "retransmitted": known.get("total_retrans"),
        "sent": known.get("data_out"),
    }


def _send(stream: socket.socket, most: int, until: float) -> Tuple[int, float]:
    """Send until there is no more, or no time: bytes that the kernel took, and how long that was."""
    buffer = memoryview(bytearray(CHUNK))
    moved, began = 0, time.monotonic()
    while moved < most and time.monotonic() < until:
        _, writable, _ = select.select([], [stream], [], max(0.0, until - time.monotonic()))
        try:
            if writable:
                moved += stream.send(buffer[: min(CHUNK, most - moved)])
        except BlockingIOError:
            continue
    return moved, time.monotonic() - began


def _take(stream: socket.socket, most: int, until: float) -> Tuple[int, float]:
    """Receive until the end or until a little after `until`: bytes between the first and the last piece, and time."""
    buffer = memoryview(bytearray(CHUNK))
    moved, first, last = 0, 0.0, 0.0
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
        first, moved, last = (first, moved + size, now) if first else (now, moved, now)
    return moved, max(0.0, last - first)
