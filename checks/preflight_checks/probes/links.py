"""Two nodes speak over TCP: one listens on the job's ports and a free one, the other dials and sends.

After the greeting one message larger than any frame is sent and must be acknowledged. Where that does not happen,
messages of growing size follow on another connection: on a path that loses large packets without a word, the first
size that is not acknowledged tells where the limit lies.
"""

from __future__ import annotations

import binascii
import errno
import ipaddress
import select
import socket
import threading
import time

from preflight.node.record import ANNOTATED, dataclass, field
from preflight_checks.probes.link_wire import (
    DATAGRAM,
    FRAME,
    KNOCK,
    PAYLOAD,
    family_of,
    greeted,
    plain_address,
    receive,
    tcp_info,
    unacknowledged,
)
from preflight_checks.probes.names import Lookup, lookup

if ANNOTATED:
    from typing import Any, Dict, List, Optional, Tuple

CONNECT_S = 2.0
#: A node that is busy answers late; the kernel has accepted the connection by then.
GREET_S = 2.0
BULK_S = 2.5
#: This fits no Ethernet frame (jumbo frames end at 9216 bytes), so it goes in several full ones, both ways of doing.
BULK_BYTES = 1 << 16
#: Message sizes in bytes that look for the limit: below the smallest usual MTU, at 1500, between, above 9000.
STEPS = (64, 1200, 1400, 2000, 4000, 8000, 16000)
#: A message of this size does not fit any frame, so it went in full ones.
LARGEST_FRAME = 16000
#: How long nothing may be acknowledged before a transfer counts as stalled rather than slow.
STALL_S = 1.0
#: After this long without progress it is over: Linux has sent the segment again after 0.2, 0.6 and 1.4 s, and on a
#: path that loses one packet in twenty all four are lost once in 160000 times.
PATIENCE_S = 1.7
#: While the limit is looked for, the first loss is known already; 0.6 s cover two repetitions.
STEP_PATIENCE_S = 0.7
#: Everything one node dials is over after this long, unless the request says another budget.
BUDGET_S = 6.0
#: So many targets are dialled at the same time, and so many payloads are under way.
_AT_ONCE, _PAYLOADS_AT_ONCE = 96, 32
_KNOCKS = 5


@dataclass(frozen=True)
class Target:
    """What became of dialling one host and port of a peer.

    `status`: `ok`; before a connection `unresolved`, `no-route`, `refused`, `filtered` (no answer in time),
    `unbound` (the peer could not listen there), `untried` (no time was left); after it `silent` (accepted, but
    nobody answers), `reset`, `stranger` (something else answers); while sending `stalled` and `slow`.
    `arrived_bytes` is the largest message that was acknowledged, `lost_bytes` the first one that was not.
    `source` is our own address on the connection, `seen_as` that which the peer saw, `passed_over` the addresses of
    the name that took no connection before `address` did. `mss` and `path_mtu` are the kernel's, 0 where unknown.
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
    passed_over: List[str] = field(default_factory=list)
    mss: int = 0
    path_mtu: int = 0


@dataclass(frozen=True)
class Dialled:
    """Everything one node dialled on others."""

    targets: List[Target] = field(default_factory=list)


def dial(params: Dict[str, Any]) -> Dialled:
    """Dial everything in `params["targets"]`: objects with `peer`, `label`, `host`, `port` (0 = the peer's free one).

    `params["listening"]` holds for each peer what its `listen` emitted, `params["unheard"]` why another has none. A
    target may have `knock`, an id that is sent by datagram where no connection is answered, and `after_s`, the delay
    before it is dialled, so that not everybody dials one node at once. `connect_s` (2.0) bounds look-up and connection,
    `bulk_s` (2.5) the messages behind the greeting, `budget_s` (6.0) everything together; `bulk_bytes` is the large
    message (64 KiB; 0 sends nothing after the greeting).
    """
    return _Dialling(params).run()


class _Dialling:
    """One run of `dial`: its limits, and the look-ups that several targets share."""

    def __init__(self, params: Dict[str, Any]) -> None:
        self._params = params
        self._began = time.monotonic()
        self._until = self._began + float(params.get("budget_s", BUDGET_S))
        self._connect_s = float(params.get("connect_s", CONNECT_S))
        self._bulk_s = float(params.get("bulk_s", BULK_S))
        self._bulk_bytes = int(params.get("bulk_bytes", BULK_BYTES))
        self._slots = threading.Semaphore(_AT_ONCE)
        self._payloads = threading.Semaphore(_PAYLOADS_AT_ONCE)
        self._found = {}  # type: Dict[str, Lookup]
        self._looking = {}  # type: Dict[str, threading.Lock]

    def run(self) -> Dialled:
        """Every target, each in a thread of its own; those that are not through in time are said to be late."""
        wanted = list(self._params.get("targets") or [])
        results = [None] * len(wanted)  # type: List[Optional[Target]]
        for target in wanted:
            self._looking.setdefault(str(target["host"]), threading.Lock())

        def one(index: int, target: Dict[str, Any]) -> None:
            time.sleep(max(0.0, float(target.get("after_s", 0.0)) - (time.monotonic() - self._began)))
            if not self._slots.acquire(timeout=max(0.0, self._until - time.monotonic())):
                return
            try:
                if time.monotonic() < self._until:
                    results[index] = self._dial(target)
            finally:
                self._slots.release()

        threads = [threading.Thread(target=one, args=(i, t), daemon=True) for i, t in enumerate(wanted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._until + 0.3 - time.monotonic()))
        return Dialled([result or _late(target) for target, result in zip(wanted, results)])

    def _dial(self, target: Dict[str, Any]) -> Target:
        peer, host, wanted = str(target["peer"]), str(target["host"]), int(target["port"])
        call = _Call(peer, str(target["label"]), host, wanted)
        listening = (self._params.get("listening") or {}).get(peer)
        if listening is None:
            unheard = (self._params.get("unheard") or {}).get(peer, "nobody listens there")
            return call.ended("unbound", detail=str(unheard))
        port = wanted or int(listening["free"])
        unbound = listening.get("ports", {}).get(str(wanted), "" if not wanted else "it was not asked to listen there")
        if unbound:
            return call.ended("unbound", detail=str(unbound))
        until = min(self._until, call.began + self._connect_s)
        found = self._look_up(host, until)
        if not found.addresses:
            return call.ended("unresolved", detail=found.detail)
        id, udp = str(target.get("knock") or ""), int(listening.get("udp") or 0)
        knock = (udp, id) if id and udp else None
        return self._speak(call, found.addresses, port, until, str(listening["token"]), knock)

    def _speak(
        self,
        call: _Call,
        addresses: List[str],
        port: int,
        until: float,
        token: str,
        knock: Optional[Tuple[int, str]],
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
                return call.ended("untried", detail="no time was left to send anything")
            try:
                return self._send(call, stream, port, token)
            finally:
                self._payloads.release()

    def _send(self, call: _Call, stream: socket.socket, port: int, token: str) -> Target:
        """The large message; where it does not arrive, growing ones on a connection of their own."""
        end = min(self._until, time.monotonic() + self._bulk_s)
        try:
            rest = send_one(stream, self._bulk_bytes, end)
            call.note(stream)
        except (OSError, EOFError) as error:
            reason = "while %d bytes were sent: %s" % (self._bulk_bytes, error or "closed")
            return call.ended("reset", detail=reason, lost=self._bulk_bytes)
        if rest is None:
            return call.ended("ok", arrived=self._bulk_bytes)
        detail = "after %d of %d bytes" % (rest, self._bulk_bytes)
        if rest > LARGEST_FRAME:
            # Whoever got this far got frames of full size through: it cannot be their size.
            return call.ended("slow", detail=detail, arrived=LARGEST_FRAME, lost=self._bulk_bytes)
        arrived, lost = self._limit(call, port, token)
        if not lost:
            return call.ended("slow", detail=detail, arrived=arrived, lost=self._bulk_bytes)
        return call.ended("stalled", detail=detail, arrived=arrived, lost=lost)

    def _limit(self, call: _Call, port: int, token: str) -> Tuple[int, int]:
        """The largest message that is acknowledged, and the first that is not; 0 when none gets lost for its size."""
        arrived, lost = self._climb(call, port, token, STEPS)
        if not lost:
            return arrived, 0
        # A path that loses packets of any size now and then lets this one through the next time.
        again, _ = self._climb(call, port, token, (lost,))
        return (again, 0) if again == lost else (arrived, lost)

    def _climb(self, call: _Call, port: int, token: str, steps: Tuple[int, ...]) -> Tuple[int, int]:
        """Messages of growing size on one connection: the largest that is acknowledged, the first that is not."""
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
                    if send_one(stream, size, end, STEP_PATIENCE_S) is not None:
                        return arrived, size
                    arrived = size
            except (OSError, EOFError):
                return arrived, next((size for size in steps if size > arrived), 0)
        return arrived, 0

    def _look_up(self, host: str, until: float) -> Lookup:
        """What the host's name leads to, asked once for all targets."""
        try:
            return Lookup(host, [str(ipaddress.ip_address(host))])
        except ValueError:
            pass
        with self._looking[host]:
            if host not in self._found:
                self._found[host] = lookup(host, max(0.1, until - time.monotonic()))
            return self._found[host]


def _knock(address: str, port: int, id: str) -> None:
    """A few datagrams that the listener tells of, though no answer gets back: which way of the two is closed."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as datagrams:
        for _ in range(_KNOCKS):
            try:
                datagrams.sendto(DATAGRAM.pack(binascii.unhexlify(id)[:8].ljust(8, b"\0"), KNOCK), (address, port))
            except OSError:
                return
            time.sleep(0.02)


def _late(target: Dict[str, Any]) -> Target:
    peer, label = str(target["peer"]), str(target["label"])
    return Target(peer, label, str(target["host"]), int(target["port"]), "untried", detail="no time was left for it")


class _Call:
    """One target while it is dialled: what is known of it so far."""

    def __init__(self, peer: str, label: str, host: str, port: int) -> None:
        self.peer, self.label, self.host, self.port = peer, label, host, port
        self.began = time.monotonic()
        self.address = self.source = self.seen_as = self.status = self.detail = ""
        self.passed_over = []  # type: List[str]
        self.mss = self.path_mtu = 0

    def ended(self, status: str, *, detail: str = "", arrived: int = 0, lost: int = 0) -> Target:
        """The result."""
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
        )

    def connect(self, addresses: List[str], port: int, until: float) -> Optional[socket.socket]:
        """A connection to the first address that takes one; None when none does, with the worst of the failures."""
        failures = []  # type: List[Tuple[str, str, str]]
        for index, address in enumerate(addresses):
            share = max(0.05, (until - time.monotonic()) / (len(addresses) - index))
            stream = socket.socket(family_of(address), socket.SOCK_STREAM)
            stream.settimeout(share)
            try:
                stream.connect((address, port))
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.address, self.source = address, plain_address(str(stream.getsockname()[0]))
                self.passed_over = ["%s %s" % (failed, status) for status, failed, _ in failures]
                return stream
            except socket.timeout:
                failures.append(("filtered", address, "no answer within %.1f s" % share))
            except OSError as error:
                failures.append((_STATUS.get(error.errno or 0, "no-route"), address, error.strerror or str(error)))
            stream.close()
        # An address of a family that this node has no route for says least.
        failures.sort(key=lambda item: item[0] == "no-route")
        self.status, self.address, self.detail = failures[0] if failures else ("unresolved", "", "no address")
        if len(failures) > 1:
            self.detail += "; " + ", ".join("%s: %s" % (address, why) for _, address, why in failures[1:])
        return None

    def greet(self, stream: socket.socket, token: str, until: float) -> bool:
        """Exchange the token; False when the peer is not ours, with what was seen instead."""
        stream.settimeout(max(0.3, until - time.monotonic()))
        try:
            self.seen_as = greeted(stream, token)
            return True
        except socket.timeout:
            self.status, self.detail = "silent", "connected, but no answer came"
        except EOFError as error:
            data = error.args[0]
            said = "it answered %r" % data[:40] if data else "it closed the connection"
            self.status, self.detail = "stranger", said
        except ValueError as error:
            self.status, self.detail = "stranger", str(error)
        except OSError as error:
            self.status, self.detail = "reset", error.strerror or str(error)
        return False

    def note(self, stream: socket.socket) -> None:
        """Keep what the kernel knows of the connection."""
        known = tcp_info(stream)
        self.mss, self.path_mtu = known.get("snd_mss", 0), known.get("pmtu", 0)


_STATUS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "filtered",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "no-route",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
}


def send_one(stream: socket.socket, size: int, end: float, patience_s: float = PATIENCE_S) -> Optional[int]:
    """Send a payload of `size` bytes and wait for its acknowledgement.

    None when it came; else how many bytes were taken by the other side's kernel before the time ran out, where 0
    also stands for a transfer that stopped moving `STALL_S` ago.
    """
    data = FRAME.pack(PAYLOAD, size) + b"\0" * size
    stream.setblocking(False)
    sent, best, moved = 0, 0, time.monotonic()
    while True:
        now = time.monotonic()
        if sent < len(data):
            try:
                sent += stream.send(data[sent : sent + (1 << 18)])
            except BlockingIOError:
                pass
        taken = sent - unacknowledged(stream)
        if taken > best:
            best, moved = taken, now
        if sent > taken and now - moved >= patience_s:
            return 0
        if now >= end:
            # What the other side's kernel has taken went through, whatever its program is busy with.
            return best if now - moved < STALL_S or best == len(data) else 0
        watch = [stream] if sent < len(data) else []
        readable, _, _ = select.select([stream], watch, [], min(0.1, max(0.0, end - now)))
        if readable:
            stream.settimeout(max(0.05, end - time.monotonic()))
            try:
                receive(stream, FRAME.size)
            except socket.timeout:
                return 0
            return None
