"""The quality of the path between two nodes, in both directions: round trips, loss, bandwidth, and full-size frames.

Bytes and time are limited, because other jobs use the same network. Every number records which end had to wait for a
processor: on a busy node, a slow transfer proves nothing about the network.
"""

from __future__ import annotations

import binascii
import os
import select
import socket
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.link_listener import (
    OVERFLOW_BYTES,
    RECEIVE_BUFFER,
    dropped_by_kernel,
    enable_overflow_counter,
    forbid_fragmentation,
    largest_datagram,
    overflow_count,
    send_train,
    transfer,
)
from preflight_checks.probes.links import (
    DATAGRAM,
    FRAME,
    PAYLOAD,
    command,
    congestion_control,
    exchange_hello,
    family_of,
    load,
    plain_address,
    receive,
    send_words,
    tcp_info,
    waited_s,
)

CONNECT_S = 1.5
#: A ping is a small message and its acknowledgement; limits on their number and time, and a minimum number.
PINGS, PINGS_S, LEAST_PINGS, LEAST_PINGS_S = 200, 0.12, 12, 0.8
#: A train of small datagrams, far below the capacity of any network.
TRAIN, GAP_S = 500, 0.0002
#: One transfer. 64 MiB take 50 ms at 10 Gbit/s; a slower transfer is cut off by the time limit.
BULK_S, BULK_BYTES = 0.12, 64 << 20
STREAMS = 4
_FULL_FRAMES = 3
#: With this many lost datagrams, or with fewer round trips in the time of a transfer, nothing large is sent.
_LOST, _LEAST_TRIPS = 3, 25
#: Datagrams that have not been counted this long after the last one are lost.
_SETTLE_S = 0.15


@dataclass(frozen=True)
class Direction:
    """One direction. Rates are in Mbit/s; None if nothing could be measured. `busy` is the larger share of the
    transfers' time in which either end waited for a processor; None if a kernel does not count it.

    `sent` and `arrived` count small datagrams, `no_room` those that arrived but for which the receiving machine had no
    buffer space (and others that it dropped at the same time). TCP retransmitted `retransmitted` of `segments`.
    `frame_bytes` is the largest datagram that fits into one frame of the sender's interface; `frames_arrived` of
    `_FULL_FRAMES` arrived.
    """

    single_mbps: float | None = None
    several_mbps: float | None = None
    sent: int = 0
    arrived: int = 0
    no_room: int = 0
    retransmitted: int | None = None
    segments: int | None = None
    frame_bytes: int = 0
    frames_arrived: int = 0
    busy: float | None = None


@dataclass(frozen=True)
class Quality:
    """The measurements between two nodes. Times in seconds.

    `least_s`, `median_s`, `p99_s` are round trips of small messages, `spread_s` between the 10th and 90th percentile;
    `lost_pings` is the number of their segments that TCP retransmitted. `out` is from the measuring node, `back`
    towards it. `busy` is for the round trips. `average` and `processors` are those of both nodes, the measuring one
    first.
    """

    peer: str
    address: str
    source: str = ""
    least_s: float = 0.0
    median_s: float = 0.0
    p99_s: float = 0.0
    spread_s: float = 0.0
    pings: int = 0
    lost_pings: int | None = None
    out: Direction = field(default_factory=Direction)
    back: Direction = field(default_factory=Direction)
    congestion: str = ""
    mss: int = 0
    busy: float | None = None
    average: list[float | None] = field(default_factory=list)
    processors: list[int] = field(default_factory=list)
    bytes: int = 0
    took_s: float = 0.0


def measure(params: dict[str, Any]) -> Quality:
    """Measure between this node and `params["peer"]` at `params["host"]`, where `listen` is running.

    `train` (500) is the number of datagrams each way, `bulk_s` (0.12) the duration of each of the four transfers,
    `bulk_bytes` (64 MiB) their maximum size; 0 skips datagrams or transfers. `pings` (200) is the maximum number of
    round trips. Raises ProbeUnavailable if no connection can be made.
    """
    peer, host = str(params["peer"]), str(params["host"])
    listening = (params.get("listening") or {}).get(peer)
    if listening is None:
        raise ProbeUnavailable(
            "blocked", str((params.get("unheard") or {}).get(peer, "no listener was started on that node"))
        )
    link = _Link(params, peer, host, listening)
    try:
        link.open()
        return link.measure()
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise ProbeUnavailable("blocked", "the connection to {} was lost: {}".format(peer, error or "closed")) from None
    finally:
        link.close()


class _Link:
    """One measurement in progress."""

    def __init__(self, params: dict[str, Any], peer: str, host: str, listening: dict[str, Any]) -> None:
        self._peer = peer
        self._listening = listening
        self._train = int(params.get("train", TRAIN))
        self._pings_wanted = int(params.get("pings", PINGS))
        self._bulk_s = float(params.get("bulk_s", BULK_S))
        self._bulk_bytes = int(params.get("bulk_bytes", BULK_BYTES))
        self._bytes = 0
        self._address = host
        self._control = socket.socket()

    def open(self) -> None:
        """Resolve the host and connect. Raises OSError, EOFError or ValueError."""
        found = socket.getaddrinfo(self._address, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
        self._address = str(found[0][4][0])
        self._control.close()
        self._control = self._connect()

    def close(self) -> None:
        self._control.close()

    def _connect(self) -> socket.socket:
        stream = socket.socket(family_of(self._address), socket.SOCK_STREAM)
        try:
            stream.settimeout(CONNECT_S)
            stream.connect((self._address, int(self._listening["free"])))
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            exchange_hello(stream, str(self._listening["token"]))
            stream.settimeout(3.0)
        except BaseException:
            stream.close()
            raise
        return stream

    def measure(self) -> Quality:
        """Measure round trips first, while the path is quiet, then datagrams, then bulk transfers."""
        started_at = time.monotonic()
        far_before = command(self._control, do="load")
        before, quiet_s = waited_s(), time.monotonic()
        trips = self._pings()
        info = tcp_info(self._control)
        quiet_s = time.monotonic() - quiet_s
        after = waited_s()
        far = command(self._control, do="load")
        waits = [_share(before, after, quiet_s), _share(far_before["waited_s"], far["waited_s"], quiet_s)]
        out, back = self._datagrams() if self._train else (Direction(), Direction())
        lost = out.sent - out.arrived + back.sent - back.arrived
        # On a path that loses packets, or on which a transfer would end before reaching full speed, bulk data show
        # nothing else, and take long.
        sound = not (out.arrived and lost >= _LOST) and statistics.median(trips) < self._bulk_s / _LEAST_TRIPS
        if self._bulk_bytes and self._bulk_s and sound:
            out, back = self._bulk(out, back)
        here = load()
        trips.sort()
        return Quality(
            self._peer,
            self._address,
            plain_address(str(self._control.getsockname()[0])),
            trips[0],
            statistics.median(trips),
            trips[min(len(trips) - 1, int(len(trips) * 0.99))],
            trips[int((len(trips) - 1) * 0.9)] - trips[int((len(trips) - 1) * 0.1)],
            len(trips),
            info.get("total_retrans"),
            out,
            back,
            congestion_control(self._control),
            info.get("snd_mss", 0),
            _largest(waits),
            [here.average, far["average"]],
            [here.processors, int(far["processors"])],
            self._bytes,
            round(time.monotonic() - started_at, 3),
        )

    def _pings(self) -> list[float]:
        """Return round trips of small messages, in seconds."""
        data = FRAME.pack(PAYLOAD, 16) + b"\0" * 16
        round_trips_s: list[float] = []
        began = time.monotonic()
        while len(round_trips_s) < self._pings_wanted:
            ran_s = time.monotonic() - began
            if ran_s > LEAST_PINGS_S or (ran_s > PINGS_S and len(round_trips_s) >= LEAST_PINGS):
                break
            at = time.perf_counter()
            self._control.sendall(data)
            receive(self._control, FRAME.size)
            round_trips_s.append(time.perf_counter() - at)
        return round_trips_s

    def _datagrams(self) -> tuple[Direction, Direction]:
        """Measure trains and full frames in both directions; none if firewalls block datagrams, as many do."""
        port = int(self._listening.get("udp") or 0)
        if not port:
            return Direction(), Direction()
        with socket.socket(family_of(self._address), socket.SOCK_DGRAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            forbid_fragmentation(own)
            own.connect((self._address, port))
            id = os.urandom(8)
            before = self._request_arrivals(id, 0)
            sent = send_train(own, None, id, {"count": self._train, "gap_s": GAP_S})
            after = self._request_arrivals(id, sent)
            arrived, no_room = int(after["arrived"]), int(after["overflown"]) - int(before["overflown"])
            frame = largest_datagram(own, self._address)
            full, large = os.urandom(8), 0
            if arrived and frame:
                send_train(own, None, full, {"count": _FULL_FRAMES, "size": frame, "gap_s": 0.001})
                large = int(self._request_arrivals(full, _FULL_FRAMES)["arrived"])
            frame = frame if arrived else 0
            out = Direction(sent=sent, arrived=arrived, no_room=no_room, frame_bytes=frame, frames_arrived=large)
            if not arrived:
                return out, Direction()
            counting, dropped = _Counting(own), dropped_by_kernel()
            words = {"do": "train", "train": binascii.hexlify(id).decode()}
            answer = command(self._control, count=self._train, gap_s=GAP_S, size=64, **words)
            came = counting.final_count(int(answer["sent"]))
            full_answer = command(self._control, count=_FULL_FRAMES, gap_s=0.001, size=0, **words)
            full_arrived = counting.final_count(int(answer["sent"]) + _FULL_FRAMES) - came
            counting.stop()
            no_room = counting.overflown + dropped_by_kernel() - dropped
        frame = int(full_answer["size"]) if came else 0
        return out, Direction(
            sent=int(answer["sent"]), arrived=came, no_room=no_room, frame_bytes=frame, frames_arrived=full_arrived
        )

    def _request_arrivals(self, id: bytes, sent: int) -> dict[str, Any]:
        """Return the peer's count once it is complete or no longer grows, because the peer may be busy."""
        answer: dict[str, Any] = {}
        best, grown = -1, time.monotonic()
        while time.monotonic() - grown < _SETTLE_S:
            answer = command(self._control, do="arrived", train=binascii.hexlify(id).decode())
            if int(answer["arrived"]) >= sent:
                break
            if int(answer["arrived"]) > best:
                best, grown = int(answer["arrived"]), time.monotonic()
            time.sleep(_SETTLE_S / 10)
        return answer

    def _bulk(self, out: Direction, back: Direction) -> tuple[Direction, Direction]:
        """Measure one stream in each direction, then several at the same time in each direction, and return the
        results.
        """
        found: list[dict[str, Any]] = []
        for streams, direction in ((1, "source"), (1, "sink"), (STREAMS, "source"), (STREAMS, "sink")):
            found.append(self._transfers(streams, direction))
        single_out, single_back, several_out, several_back = found
        return _add_rates(out, single_out, several_out), _add_rates(back, single_back, several_back)

    def _transfers(self, streams: int, direction: str) -> dict[str, Any]:
        """Run several transfers at the same time; `direction` is this node's role in them."""
        results: list[dict[str, Any]] = [{} for _ in range(streams)]
        share = self._bulk_bytes // streams

        def node_load(index: int) -> None:
            try:
                results[index] = self._transfer(direction, share)
            except (OSError, EOFError, ValueError, KeyError):
                pass

        threads = [threading.Thread(target=node_load, args=(index,), daemon=True) for index in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._bulk_s + CONNECT_S)
        for result in results:
            if result:
                other = command(self._control, do="result", id=result["id"])
                result["there"] = other
        good = [item for item in results if item.get("there")]
        receiving = [item["there"] if direction == "source" else item for item in good]
        sending = [item if direction == "source" else item["there"] for item in good]
        took_s = max([float(item["seconds"]) for item in receiving] or [0.0])
        moved = sum(int(item["bytes"]) for item in receiving)
        self._bytes += moved
        waits = [_share(0.0, item["waited_s"], float(item["took_s"])) for item in (*receiving, *sending)]
        return {
            "mbps": moved * 8 / took_s / 1e6 if took_s > 0 and len(good) == streams else None,
            "busy": _largest(waits),
            "retransmitted": _sum_known([item["retransmitted"] for item in sending]),
            "sent": _sum_known([item["sent"] for item in sending]),
        }

    def _transfer(self, direction: str, max_bytes: int) -> dict[str, Any]:
        stream = self._connect()
        with stream:
            id = binascii.hexlify(os.urandom(8)).decode()
            words = {"id": id, "seconds": self._bulk_s, "bytes": max_bytes}
            send_words(stream, do="sink" if direction == "source" else "source", **words)
            found = transfer(stream, direction, words)
        return {**found, "id": id}


class _Counting:
    """Counts the datagrams received on a socket, in a thread."""

    def __init__(self, datagrams: socket.socket) -> None:
        self._datagrams = datagrams
        self._count = 0
        self.overflown = 0
        self._over = False
        enable_overflow_counter(datagrams)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            ready, _, _ = select.select([self._datagrams], [], [], 0.05)
            if not ready:
                continue
            try:
                data, extra, _, _ = self._datagrams.recvmsg(65536, OVERFLOW_BYTES)
                self.overflown = overflow_count(extra, self.overflown)
                self._count += len(data) >= DATAGRAM.size
            except OSError:
                return

    def final_count(self, expected: int) -> int:
        """Return the count once it is complete, or once it has not grown for a while."""
        best, grown = -1, time.monotonic()
        while self._count < expected and time.monotonic() - grown < _SETTLE_S:
            if self._count > best:
                best, grown = self._count, time.monotonic()
            time.sleep(_SETTLE_S / 30)
        return self._count

    def stop(self) -> None:
        self._over = True
        self._thread.join(1.0)


def _add_rates(direction: Direction, single: dict[str, Any], several: dict[str, Any]) -> Direction:
    return Direction(
        single["mbps"],
        several["mbps"],
        direction.sent,
        direction.arrived,
        direction.no_room,
        _sum_known([single["retransmitted"], several["retransmitted"]]),
        _sum_known([single["sent"], several["sent"]]),
        direction.frame_bytes,
        direction.frames_arrived,
        _largest([single["busy"], several["busy"]]),
    )


def _share(before: float | None, after: float | None, took_s: float) -> float | None:
    if before is None or after is None or took_s <= 0:
        return None
    return round(max(0.0, after - before) / took_s, 3)


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _sum_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
