"""A TCP test between two nodes: one listens on the job's ports and a free one, the other connects and sends.

After the greeting, a message larger than any frame is sent and must be acknowledged. If that fails, messages of growing
size follow on another connection: on a path that silently drops large packets, the first size that is not acknowledged
shows the limit.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import ipaddress
import json
import os
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import wire
from preflight_checks.probes.names import Lookup, lookup

# The protocol of two link probes over TCP, and the kernel's data about such a connection. Both ends first exchange
# a token, so that another program on the port is recognised; the listener adds the address from which it saw the
# connection come. After that, the client sends frames: a payload, which is acknowledged by its size, or a command,
# which is answered in JSON.


MAGIC = b"preflight-link 2 "
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + 2 * TOKEN_BYTES
#: The answer to a hello ends with the observed address of the client, padded with blanks.
SEEN_BYTES = 48
FRAME = struct.Struct(">cI")
PAYLOAD, COMMAND = b"D", b"C"
MAX_PAYLOAD_BYTES = 16 << 20
_MAX_COMMAND_BYTES = 4096
_TIOCOUTQ = 0x5411
#: A datagram: its train and its number; this number only means that the path is open.
DATAGRAM = struct.Struct(">8sI")
KNOCK = 0xFFFFFFFF
#: struct tcp_info of linux/tcp.h: eight bytes, then these 32-bit fields at these offsets; older kernels end before.
_TCP_INFO = {"snd_mss": 16, "pmtu": 60, "rtt": 68, "rttvar": 72, "total_retrans": 100, "min_rtt": 148, "data_out": 156}


def receive(stream: socket.socket, size: int, ends: float | None = None) -> bytes:
    """Receive exactly `size` bytes by `ends`. Raises EOFError at an early end, and the socket's OSErrors."""
    data = bytearray()
    while len(data) < size:
        if ends is not None:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                raise socket.timeout(f"only {len(data)} of {size} bytes arrived in time")
            stream.settimeout(remaining)
        more = stream.recv(min(size - len(data), 1 << 18))
        if not more:
            raise EOFError(bytes(data))
        data += more
    return bytes(data)


def hello(token: str) -> bytes:
    """Return the client's first message."""
    return MAGIC + token.encode("ascii", "replace")


def welcome(token: bytes, peer_address: str) -> bytes:
    """Return the listener's reply to the hello."""
    return MAGIC + token + plain_address(peer_address).encode().ljust(SEEN_BYTES)


def plain_address(text: str) -> str:
    """Return an address in its usual form: an IPv4 address from an IPv6 socket without its prefix."""
    return text[7:] if text.startswith("::ffff:") and "." in text else text.partition("%")[0]


def exchange_hello(stream: socket.socket, token: str) -> str:
    """Send the hello and return the address that the listener saw. Raises EOFError, OSError, or ValueError."""
    greeting = hello(token)
    stream.sendall(greeting)
    answer = receive(stream, HELLO_BYTES)
    if answer != greeting:
        raise ValueError(f"it responded with {answer[:40]!r}")
    return receive(stream, SEEN_BYTES).decode("ascii", "replace").strip()


def command(stream: socket.socket, **words: Any) -> dict[str, Any]:
    """Send a command and wait for its reply. Raises EOFError, OSError, or ValueError."""
    send_words(stream, **words)
    return receive_words(stream)


def receive_words(stream: socket.socket) -> dict[str, Any]:
    """Read the next frame, which must be a command or a reply to one."""
    kind, size = FRAME.unpack(receive(stream, FRAME.size))
    if kind != COMMAND or size > _MAX_COMMAND_BYTES:
        raise ValueError("expected a reply, received a frame of kind %r with %d bytes" % (kind, size))
    return words_of(receive(stream, size))


def words_of(body: bytes) -> dict[str, Any]:
    """Return the JSON of a command or reply. Raises ValueError for any other frame."""
    words = wire.parse(body, max_bytes=_MAX_COMMAND_BYTES)
    if not isinstance(words, dict):
        raise ValueError("expected an object")
    return words


def send_words(stream: socket.socket, **words: Any) -> None:
    """Send a command without waiting, or the reply to a command."""
    body = json.dumps(words).encode()
    stream.sendall(FRAME.pack(COMMAND, len(body)) + body)


def family_of(address: str) -> int:
    """Return the address family of an address in text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def unacknowledged_bytes(stream: socket.socket) -> int:
    """Return bytes in the send queue that the other side's kernel has not acknowledged."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(stream.fileno(), _TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0


def tcp_info(stream: socket.socket) -> dict[str, int]:
    """Return the kernel's data about a connection; fields that this kernel lacks are left out. Times are in us."""
    try:
        data = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:
        return {}
    return {name: struct.unpack_from("=I", data, at)[0] for name, at in _TCP_INFO.items() if at + 4 <= len(data)}


def congestion_control(stream: socket.socket) -> str:
    """Return the algorithm that paces this connection (`cubic`, `bbr`); empty if the kernel does not report it."""
    try:
        name = stream.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_CONGESTION", 13), 16)
    except OSError:
        return ""
    return name.split(b"\0")[0].decode("ascii", "replace")


@dataclass(frozen=True)
class Load:
    """The load of a node: its load average of the last minute, and the processors that this process may use."""

    average: float | None
    processors: int


def load() -> Load:
    """Return the current load of this node."""
    try:
        average: float | None = os.getloadavg()[0]
    except OSError:
        average = None
    try:
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        processors = os.cpu_count() or 1
    return Load(average, processors)


def waited_s() -> float | None:
    """Return how long this thread waited for a processor, from schedstat (nanoseconds); None if the kernel does not
    count it.
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


CONNECT_S = 2.0
#: A busy node answers late, although its kernel has accepted the connection.
GREET_S = 2.0
BULK_S = 2.5
#: This size exceeds every Ethernet frame (jumbo frames end at 9216 bytes), so several full frames go either way.
BULK_BYTES = 1 << 16
#: Message sizes in bytes for finding the limit: below the smallest usual MTU, at 1500, between, above 9000.
STEPS = (64, 1200, 1400, 2000, 4000, 8000, 16000)
#: A message of this size exceeds every frame, so it was sent in full frames.
MAX_FRAME_BYTES = 16000
#: A transfer with no acknowledgement for this long counts as stalled rather than slow.
STALL_S = 1.0
#: A transfer ends after this long without progress. By then Linux has sent the segment again after 0.2, 0.6 and 1.4 s;
#: on a path that loses one packet in twenty, all four are lost once in 160000 times.
PROGRESS_TIMEOUT_S = 1.7
#: While the limit is searched for, the first loss is known already; 0.6 s cover two repetitions.
STEP_TIMEOUT_S = 0.7
#: Time limit of all targets of one node, unless the request has another budget.
BUDGET_S = 6.0
#: The number of targets that are dialled, and of payloads that are sent, at the same time.
_AT_ONCE, _PAYLOADS_AT_ONCE = 96, 32
_KNOCKS = 5


@dataclass(frozen=True)
class Target:
    """The result of connecting to one host and port of a peer.

    `status`: `ok`; before a connection `unresolved`, `no-route`, `refused`, `prohibited` (by an ICMP message),
    `filtered` (no response in time), `unbound` (the peer could not listen there), `untried` (no time left); after
    it `silent` (accepted, but no reply), `reset`, `stranger` (something else replies); while sending `stalled` and
    `slow`. `arrived_bytes` is the largest message that was acknowledged, `lost_bytes` the first one that was not.
    `source` is our own address on the connection, `seen_as` that which the peer saw, `passed_over` the addresses of the
    name that failed before `address` worked. `mss` and `path_mtu` are the kernel's, 0 if unknown. `ports` are those
    tried across the ephemeral range, `closed_ports` those of them that failed.
    """

    peer: str
    label: str
    host: str
    port: int
    status: str
    address: str = ""
    detail: str = ""
    took_s: float = 0.0
    arrived_bytes: int = 0
    lost_bytes: int = 0
    source: str = ""
    seen_as: str = ""
    passed_over: list[str] = field(default_factory=list)
    mss: int = 0
    path_mtu: int = 0
    ports: list[int] = field(default_factory=list)
    closed_ports: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Dialled:
    """The results of all targets that one node tried."""

    targets: list[Target] = field(default_factory=list)


def dial(params: dict[str, Any]) -> Dialled:
    """Connect to everything in `params["targets"]`: objects with `peer`, `label`, `host`, `port` (0 = the peer's free
    one).

    `params["listening"]` contains the event of each peer's `listen`; `params["unheard"]` contains, for other peers, why
    there is none. A target with `spread` connects to all of the peer's ports across its ephemeral range, and fails if
    one fails. A target may have `knock`, an id that is sent by datagram if no connection succeeds, and `after_s`, a
    delay, so that not all nodes connect to one node at the same time. `connect_s` (2.0) bounds lookup and connection,
    `bulk_s` (2.5) the messages after the greeting, `budget_s` (6.0) everything together; `bulk_bytes` is the large
    message (64 KiB; 0 sends nothing after the greeting).
    """
    return _Dialling(params).run()


class _Dialling:
    """One run of `dial`: its limits, and the lookups that several targets share."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._params = params
        self._began = time.monotonic()
        self._until = self._began + float(params.get("budget_s", BUDGET_S))
        self._connect_s = float(params.get("connect_s", CONNECT_S))
        self._bulk_s = float(params.get("bulk_s", BULK_S))
        self._bulk_bytes = int(params.get("bulk_bytes", BULK_BYTES))
        self._slots = threading.Semaphore(_AT_ONCE)
        self._payloads = threading.Semaphore(_PAYLOADS_AT_ONCE)
        self._found: dict[str, Lookup] = {}
        self._looking: dict[str, threading.Lock] = {}

    def run(self) -> Dialled:
        """Try every target, each in its own thread; unfinished targets are reported as late."""
        wanted = list(self._params.get("targets") or [])
        results: list[Target | None] = [None] * len(wanted)
        for target in wanted:
            self._looking.setdefault(str(target["host"]), threading.Lock())

        def dial_target(index: int, target: dict[str, Any]) -> None:
            time.sleep(max(0.0, float(target.get("after_s", 0.0)) - (time.monotonic() - self._began)))
            if not self._slots.acquire(timeout=max(0.0, self._until - time.monotonic())):
                return
            try:
                if time.monotonic() < self._until:
                    results[index] = self._dial(target)
            finally:
                self._slots.release()

        threads = [threading.Thread(target=dial_target, args=(i, t), daemon=True) for i, t in enumerate(wanted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._until + 0.3 - time.monotonic()))
        return Dialled([result or _untried_target(target) for target, result in zip(wanted, results)])

    def _dial(self, target: dict[str, Any]) -> Target:
        peer, host, wanted = str(target["peer"]), str(target["host"]), int(target["port"])
        call = _Attempt(peer, str(target["label"]), host, wanted)
        listening = (self._params.get("listening") or {}).get(peer)
        if listening is None:
            unheard = (self._params.get("unheard") or {}).get(peer, "no listener was started on that node")
            return call.ended("unbound", detail=str(unheard))
        port = wanted or int(listening["free"])
        unbound = listening.get("ports", {}).get(
            str(wanted), "" if not wanted else "its listener does not use this port"
        )
        if unbound:
            return call.ended("unbound", detail=str(unbound))
        until = min(self._until, call.began + self._connect_s)
        found = self._look_up(host, until)
        if not found.addresses:
            return call.ended("unresolved", detail=found.detail)
        if target.get("spread"):
            across = [int(port) for port in listening.get("spread") or ()]
            return self._connect_all(call, found.addresses, across, until)
        id, udp = str(target.get("knock") or ""), int(listening.get("udp") or 0)
        knock = (udp, id) if id and udp else None
        return self._exchange(call, found.addresses, port, until, str(listening["token"]), knock)

    def _connect_all(self, call: _Attempt, addresses: list[str], ports: list[int], until: float) -> Target:
        """Connect to each of these ports at the same time; the peer's kernel accepts, so nothing needs to be sent."""
        tries = [_Attempt(call.peer, call.label, call.host, port) for port in ports]
        streams: list[socket.socket | None] = [None] * len(tries)

        def connect(index: int) -> None:
            streams[index] = tries[index].connect(addresses, ports[index], until)

        threads = [threading.Thread(target=connect, args=(index,), daemon=True) for index in range(len(tries))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until + 0.3 - time.monotonic()))
        for stream in streams:
            if stream is not None:
                stream.close()
        failed = [each for each in tries if each.status]
        worked = next((each for each in tries if not each.status), failed[0] if failed else call)
        call.address, call.source = worked.address, worked.source
        call.ports, call.closed_ports = ports, [each.port for each in failed]
        return call.ended(failed[0].status if failed else "ok", detail=failed[0].detail if failed else "")

    def _exchange(
        self, call: _Attempt, addresses: list[str], port: int, until: float, token: str, knock: tuple[int, str] | None
    ) -> Target:
        stream = call.connect(addresses, port, until)
        if stream is None:
            if call.status == "filtered" and knock:
                _knock(call.address, *knock)
            return call.ended(call.status, detail=call.detail)
        with stream:
            if not call.greet(stream, token, min(self._until, time.monotonic() + GREET_S)):
                return call.ended(call.status, detail=call.detail)
            if not self._bulk_bytes:
                return call.ended("ok")
            if not self._payloads.acquire(timeout=max(0.0, self._until - time.monotonic())):
                return call.ended("untried", detail="there was no time left to send data")
            try:
                return self._send(call, stream, port, token)
            finally:
                self._payloads.release()

    def _send(self, call: _Attempt, stream: socket.socket, port: int, token: str) -> Target:
        """Send the large message; if it does not arrive, send messages of growing size on a separate connection."""
        end = min(self._until, time.monotonic() + self._bulk_s)
        try:
            rest = send_payload(stream, self._bulk_bytes, end)
            call.note(stream)
        except (OSError, EOFError) as error:
            reason = "while %d bytes were sent: %s" % (self._bulk_bytes, error or "closed")
            return call.ended("reset", detail=reason, lost=self._bulk_bytes)
        if rest is None:
            return call.ended("ok", arrived=self._bulk_bytes)
        detail = f"after {rest} of {self._bulk_bytes} bytes"
        if rest > MAX_FRAME_BYTES:
            # Frames of full size got through: their size is not the cause.
            return call.ended("slow", detail=detail, arrived=MAX_FRAME_BYTES, lost=self._bulk_bytes)
        arrived, lost = self._limit(call, port, token)
        if not lost:
            return call.ended("slow", detail=detail, arrived=arrived, lost=self._bulk_bytes)
        return call.ended("stalled", detail=detail, arrived=arrived, lost=lost)

    def _limit(self, call: _Attempt, port: int, token: str) -> tuple[int, int]:
        """Return the sizes of the largest acknowledged and the first lost message; 0 if no message was lost for its
        size.
        """
        arrived, lost = self._find_size_limit(call, port, token, STEPS)
        if not lost:
            return arrived, 0
        # A path that randomly loses packets of any size may let this one through the next time.
        again, _ = self._find_size_limit(call, port, token, (lost,))
        return (again, 0) if again == lost else (arrived, lost)

    def _find_size_limit(self, call: _Attempt, port: int, token: str, steps: tuple[int, ...]) -> tuple[int, int]:
        """Send messages of growing size; return the largest acknowledged size and the first lost size."""
        arrived = 0
        stream = call.connect([call.address], port, min(self._until, time.monotonic() + self._connect_s))
        if stream is None:
            return arrived, steps[0]
        with stream:
            try:
                if not call.greet(stream, token, min(self._until, time.monotonic() + GREET_S)):
                    return arrived, steps[0]
                for size in steps:
                    end = min(self._until, time.monotonic() + self._bulk_s)
                    if send_payload(stream, size, end, STEP_TIMEOUT_S) is not None:
                        return arrived, size
                    arrived = size
            except (OSError, EOFError):
                return arrived, next((size for size in steps if size > arrived), 0)
        return arrived, 0

    def _look_up(self, host: str, until: float) -> Lookup:
        """Return the addresses of the host's name, resolved once for all targets."""
        try:
            return Lookup(host, [str(ipaddress.ip_address(host))])
        except ValueError:
            pass
        with self._looking[host]:
            if host not in self._found:
                self._found[host] = lookup(host, max(0.1, until - time.monotonic()))
            return self._found[host]


def _knock(address: str, port: int, id: str) -> None:
    """Send a few datagrams that the listener reports even without a connection, which shows which direction is
    closed.
    """
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as datagrams:
        for _ in range(_KNOCKS):
            try:
                datagrams.sendto(DATAGRAM.pack(binascii.unhexlify(id)[:8].ljust(8, b"\0"), KNOCK), (address, port))
            except OSError:
                return
            time.sleep(0.02)


def _untried_target(target: dict[str, Any]) -> Target:
    peer, label = str(target["peer"]), str(target["label"])
    return Target(peer, label, str(target["host"]), int(target["port"]), "untried", detail="there was no time left")


class _Attempt:
    """One attempt to connect to a target: the results so far."""

    def __init__(self, peer: str, label: str, host: str, port: int) -> None:
        self.peer, self.label, self.host, self.port = peer, label, host, port
        self.began = time.monotonic()
        self.address = self.source = self.seen_as = self.status = self.detail = ""
        self.passed_over: list[str] = []
        self.mss = self.path_mtu = 0
        self.ports: list[int] = []
        self.closed_ports: list[int] = []

    def ended(self, status: str, *, detail: str = "", arrived: int = 0, lost: int = 0) -> Target:
        """Return the result of the target so far."""
        took_s = round(time.monotonic() - self.began, 3)
        return Target(
            self.peer,
            self.label,
            self.host,
            self.port,
            status,
            self.address,
            detail,
            took_s,
            arrived,
            lost,
            self.source,
            self.seen_as,
            self.passed_over,
            self.mss,
            self.path_mtu,
            self.ports,
            self.closed_ports,
        )

    def connect(self, addresses: list[str], port: int, until: float) -> socket.socket | None:
        """Connect to the first address that accepts; if none does, return None and record the most informative
        failure.
        """
        failures: list[tuple[str, str, str]] = []
        for index, address in enumerate(addresses):
            share = max(0.05, (until - time.monotonic()) / (len(addresses) - index))
            stream = socket.socket(family_of(address), socket.SOCK_STREAM)
            try:
                failure = _connect(stream, address, port, share)
                if failure is None:
                    stream.settimeout(share)
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.address, self.source = address, plain_address(str(stream.getsockname()[0]))
                    self.passed_over = [f"{failed} {status}" for status, failed, _ in failures]
                    return stream
                failures.append((failure[0], address, failure[1]))
            except OSError as error:
                failures.append((_STATUS.get(error.errno or 0, "no-route"), address, error.strerror or str(error)))
            stream.close()
        # An address of a family that this node has no route for is least informative.
        failures.sort(key=lambda item: item[0] == "no-route")
        self.status, self.address, self.detail = failures[0] if failures else ("unresolved", "", "no address")
        if len(failures) > 1:
            self.detail += "; " + ", ".join(f"{address}: {reason}" for _, address, reason in failures[1:])
        return None

    def greet(self, stream: socket.socket, token: str, until: float) -> bool:
        """Exchange the token. Return False if the peer is not ours; `detail` then contains what it sent instead."""
        stream.settimeout(max(0.3, until - time.monotonic()))
        try:
            self.seen_as = exchange_hello(stream, token)
            return True
        except socket.timeout:
            self.status, self.detail = "silent", "connected, but got no response"
        except EOFError as error:
            data = error.args[0]
            problem = f"it responded with {data[:40]!r}" if data else "it closed the connection"
            self.status, self.detail = "stranger", problem
        except ValueError as error:
            self.status, self.detail = "stranger", str(error)
        except OSError as error:
            self.status, self.detail = "reset", error.strerror or str(error)
        return False

    def note(self, stream: socket.socket) -> None:
        known = tcp_info(stream)
        self.mss, self.path_mtu = known.get("snd_mss", 0), known.get("pmtu", 0)


def _connect(stream: socket.socket, address: str, port: int, timeout_s: float) -> tuple[str, str] | None:
    """Connect; if that fails, return the failure as status and detail.

    An immediate error comes from this node itself (its routes). A later error was sent by another machine in an ICMP
    message, unless the kernel gave up requesting the hardware address.
    """
    stream.setblocking(False)
    code = stream.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        _, writable, _ = select.select([], [stream], [], timeout_s)
        if not writable:
            return "filtered", f"no response within {timeout_s:.1f} s"
        code = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code in _ICMP_ERRORS and ":" not in address and not _is_unanswered(address):
            return "prohibited", f"ICMP error: {os.strerror(code)}"
    return (_STATUS.get(code, "no-route"), os.strerror(code)) if code else None


def _is_unanswered(address: str, path: str = "/proc/net/arp") -> bool:
    """Return whether the kernel has no reply to its ARP requests for this IPv4 address; True if unknown."""
    try:
        with open(path) as file:
            entries = [line.split() for line in file]
    except OSError:
        return True
    # Columns: address, type, flags (0x0: no answer), hardware address. A machine behind a router has no entry.
    return any(entry[0] == address and entry[2] == "0x0" for entry in entries if len(entry) > 2)


#: The kernel's error codes for an ICMP "destination unreachable" (icmp_err_convert in net/ipv4/icmp.c).
_ICMP_ERRORS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOPROTOOPT)
_STATUS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "filtered",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "no-route",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
}


def send_payload(stream: socket.socket, size: int, end: float, timeout_s: float = PROGRESS_TIMEOUT_S) -> int | None:
    """Send a payload of `size` bytes and wait for its acknowledgement.

    Returns None if it arrived; otherwise the number of bytes that the other side's kernel accepted before time ran out,
    or 0 if the transfer stopped making progress `STALL_S` ago.
    """
    data = FRAME.pack(PAYLOAD, size) + b"\0" * size
    stream.setblocking(False)
    sent, best, last_progress = 0, 0, time.monotonic()
    while True:
        now = time.monotonic()
        if sent < len(data):
            try:
                sent += stream.send(data[sent : sent + (1 << 18)])
            except BlockingIOError:
                pass
        used = sent - unacknowledged_bytes(stream)
        if used > best:
            best, last_progress = used, now
        if sent > used and now - last_progress >= timeout_s:
            return 0
        if now >= end:
            # Bytes that the other side's kernel has accepted got through, whatever its program is busy with.
            return best if now - last_progress < STALL_S or best == len(data) else 0
        watch = [stream] if sent < len(data) else []
        readable, _, _ = select.select([stream], watch, [], min(0.1, max(0.0, end - now)))
        if readable:
            stream.settimeout(max(0.05, end - time.monotonic()))
            try:
                receive(stream, FRAME.size)
            except socket.timeout:
                return 0
            return None
