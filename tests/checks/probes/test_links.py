"""Dialling and listening over loopback: every result of a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import link_listener, links
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import measure
from preflight_checks.probes.links import (
    BULK_BYTES,
    FRAME,
    HELLO_BYTES,
    PAYLOAD,
    SEEN_BYTES,
    Target,
    congestion_control,
    dial,
    hello,
    load,
    plain_address,
    receive,
    tcp_info,
    waited_s,
    welcome,
    words_of,
)
from preflight_checks.probes.names import Lookup
from tests.ports import free_port

TOKEN = "0" * 32


@contextlib.contextmanager
def listening(*ports: int, spread: int = 0) -> Iterator[dict[str, Any]]:
    """A listener as the agent runs it; yields its event."""
    said: list[dict[str, Any]] = []
    heard = threading.Event()

    def emit(event: dict[str, Any]) -> None:
        said.append(event)
        heard.set()

    wanted = {"ports": list(ports), "lifetime_s": 6.0}
    thread = threading.Thread(target=listen, args=({**wanted, "spread": spread}, emit), daemon=True)
    thread.start()
    assert heard.wait(5)
    yield said[0]["listening"]


@contextlib.contextmanager
def stranger(serve: Callable[[socket.socket], None] | None, buffer_bytes: int = 0) -> Iterator[int]:
    """Another program on a port: `serve` handles each connection in turn, None never accepts any."""
    with socket.socket() as listener:
        if buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if serve is not None:
            handle = serve

            def run() -> None:
                with contextlib.suppress(OSError, EOFError):
                    while True:
                        accepted, _ = listener.accept()
                        threading.Thread(target=one, args=(accepted,), daemon=True).start()

            def one(accepted: socket.socket) -> None:
                with accepted, contextlib.suppress(OSError, EOFError):
                    handle(accepted)

            threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]


def fake(port: int) -> dict[str, Any]:
    """The event of a listener other than the one on `port`."""
    return {"token": TOKEN, "free": port, "udp": 0, "ports": {}}


def dialled(port: int, event: dict[str, Any], host: str = "127.0.0.1", spread: bool = False, **more: Any) -> Target:
    wanted = {"peer": "b", "label": "it", "host": host, "port": port, "spread": spread}
    params = {"targets": [wanted], "listening": {"b": event}, **more}
    (target,) = dial(params).targets
    return target


def test_a_listener_answers_on_its_ports_and_on_a_free_one() -> None:
    port = free_port()
    with listening(port) as event:
        targets = [
            {"peer": "b", "label": "a", "host": "127.0.0.1", "port": 0},
            {"peer": "b", "label": "b", "host": "localhost", "port": port},
        ]
        found = dial({"targets": targets, "listening": {"b": event}}).targets
    assert [(t.label, t.status, t.arrived_bytes) for t in found] == [("a", "ok", BULK_BYTES), ("b", "ok", BULK_BYTES)]
    assert (found[0].source, found[0].seen_as) == ("127.0.0.1", "127.0.0.1")
    assert found[0].mss > 500 and found[0].path_mtu > 500


def test_a_listener_that_can_start_no_thread_answers_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            if self._target.__name__ == "_serve_connection":  # type: ignore[attr-defined]
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(link_listener, "threading", SimpleNamespace(Thread=Refused, Lock=threading.Lock))
    with listening() as event:
        assert dialled(0, event).status == "ok"


def test_ipv6_is_dialled_if_available() -> None:
    with listening() as event:
        found = dialled(0, event, host="::1")
    assert (found.status, found.seen_as) in (("ok", "::1"), ("no-route", ""))


def test_the_first_answering_address_counts_and_failed_ones_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "lookup", lambda host, limit_s: Lookup(host, ["127.0.0.9", "127.0.0.1"]))
    with listening() as event, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        event["free"] = other.getsockname()[1]
        found = dialled(0, event, host="two-addresses", budget_s=0.5)
    assert found.address == "127.0.0.1" and found.passed_over == ["127.0.0.9 refused"]


def test_a_peer_that_could_not_listen_is_unbound_with_its_reason() -> None:
    targets = [{"peer": "c", "label": "it", "host": "127.0.0.1", "port": 0}]
    (found,) = dial({"targets": targets, "listening": {}, "unheard": {"c": "the node is out of processes"}}).targets
    assert (found.status, found.detail) == ("unbound", "the node is out of processes")


def test_targets_beyond_the_budget_are_untried() -> None:
    with listening() as event:
        late = {"peer": "b", "label": "late", "host": "127.0.0.1", "port": 0, "after_s": 5.0}
        (found,) = dial({"targets": [late], "listening": {"b": event}, "budget_s": 0.2}).targets
    assert found.status == "untried"


def test_nothing_is_sent_when_bulk_is_off() -> None:
    with listening() as event:
        found = dialled(0, event, bulk_bytes=0)
    assert (found.status, found.arrived_bytes) == ("ok", 0)


def test_a_bound_port_is_reported_and_the_rest_works() -> None:
    with stranger(None) as taken, listening(taken) as event:
        assert event["ports"][str(taken)]
        found = dialled(taken, event)
        assert found.status == "unbound" and "in use" in found.detail
        assert dialled(0, event).status == "ok"


def test_a_closed_port_is_refused() -> None:
    found = dialled(0, fake(free_port()))
    assert found.status == "refused"


def test_an_unknown_name_is_unresolved() -> None:
    assert dialled(0, fake(1), host="does-not-exist.invalid").status == "unresolved"


def test_a_program_that_never_reads_is_silent() -> None:
    with stranger(None) as port:
        found = dialled(0, fake(port), budget_s=0.5)
    assert found.status == "silent"


def test_a_full_backlog_gets_no_answer_and_counts_as_filtered() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for item in waiting:
                item.setblocking(False)
                item.connect_ex(("127.0.0.1", port))
            found = dialled(0, fake(port), connect_s=0.4)
        finally:
            for item in waiting:
                item.close()
    assert found.status == "filtered"


def test_another_program_that_answers_is_recognized() -> None:
    def http(stream: socket.socket) -> None:
        stream.recv(100)
        stream.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + b" " * 100)

    with stranger(http) as port:
        found = dialled(0, fake(port))
    assert found.status == "stranger" and "HTTP/1.1 400" in found.detail


def test_another_program_that_closes_is_recognized() -> None:
    with stranger(lambda stream: stream.recv(1000) and None) as port:
        assert dialled(0, fake(port)).status == "stranger"


def test_the_listener_of_another_run_is_recognized() -> None:
    with listening() as event:
        other = fake(event["free"])
        found = dialled(0, other)
    assert found.status == "stranger"


def greeted(then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    """A listener that greets properly and then does something else."""

    def serve(stream: socket.socket) -> None:
        receive(stream, HELLO_BYTES)
        stream.sendall(welcome(TOKEN.encode(), "127.0.0.1"))
        then(stream)

    return serve


def only_up_to(limit: int, done: threading.Event) -> Callable[[socket.socket], None]:
    """Acknowledge messages up to this size; stop reading at a larger one."""

    def serve(stream: socket.socket) -> None:
        while True:
            _, size = FRAME.unpack(receive(stream, FRAME.size))
            if size > limit:
                done.wait(6)
                return
            receive(stream, size)
            stream.sendall(FRAME.pack(PAYLOAD, size))

    return greeted(serve)


@pytest.mark.thorough
def test_small_payloads_arrive_and_large_ones_do_not() -> None:
    done = threading.Event()
    with stranger(only_up_to(1400, done), buffer_bytes=4096) as port:
        found = dialled(0, fake(port), bulk_s=1.5, bulk_bytes=8 << 20)
    done.set()
    assert (found.status, found.arrived_bytes, found.lost_bytes) == ("stalled", 1400, 2000)


@pytest.mark.thorough
def test_a_moving_transfer_is_slow_not_stalled() -> None:
    def trickle(stream: socket.socket) -> None:
        while stream.recv(8192):
            time.sleep(0.02)

    with stranger(greeted(trickle), buffer_bytes=4096) as port:
        found = dialled(0, fake(port), bulk_s=1.3, bulk_bytes=8 << 20)
    assert (found.status, found.lost_bytes) == ("slow", 8 << 20)


def test_a_stall_after_full_frames_is_not_their_size() -> None:
    done = threading.Event()
    with stranger(only_up_to(16000, done), buffer_bytes=4096) as port:
        found = dialled(0, fake(port), bulk_s=1.2, bulk_bytes=8 << 20)
    done.set()
    assert (found.status, found.arrived_bytes) == ("slow", 16000)


@pytest.mark.thorough
def test_a_busy_program_is_not_a_lost_frame() -> None:
    def late(stream: socket.socket) -> None:
        time.sleep(1.0)

    with stranger(greeted(late)) as port:
        assert dialled(0, fake(port), bulk_s=0.6).status in ("slow", "reset")


def test_a_reset_during_the_payload_is_reported() -> None:
    def reset(stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with stranger(greeted(reset)) as port:
        assert dialled(0, fake(port)).status == "reset"


def test_clients_without_the_token_get_nothing() -> None:
    with listening() as event:
        with socket.create_connection(("127.0.0.1", event["free"]), 2) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100)
            stream.settimeout(3)
            with contextlib.suppress(ConnectionResetError):
                assert stream.recv(100) == b""
        assert dialled(0, event).status == "ok"


def test_a_listener_ends_by_itself() -> None:
    ended = listen({"ports": [], "lifetime_s": 0.05}, lambda event: None)
    assert len(ended.token) == 32 and ended.free > 0


@pytest.mark.parametrize("count", [8])
def test_targets_are_dialled_at_once(count: int) -> None:
    with stranger(None) as port:
        targets = [{"peer": "b", "label": str(i), "host": "127.0.0.1", "port": 0} for i in range(count)]
        found = dial({"targets": targets, "listening": {"b": fake(port)}, "budget_s": 0.5}).targets
    assert [item.label for item in found] == [str(i) for i in range(count)]


def test_an_invalid_frame_ends_only_its_connection() -> None:
    with listening() as event:
        for nonsense in (b"X" + b"\xff" * 4, FRAME.pack(b"C", 2) + b"[]", FRAME.pack(b"C", 5) + b"hello"):
            with socket.create_connection(("127.0.0.1", event["free"]), 2) as stream:
                stream.sendall(hello(event["token"]))
                receive(stream, HELLO_BYTES + SEEN_BYTES)
                stream.sendall(nonsense)
                stream.settimeout(3)
                with contextlib.suppress(ConnectionResetError):
                    assert stream.recv(100) == b""
        assert dialled(0, event).status == "ok"


def test_a_datagram_is_reported_once_without_a_connection() -> None:
    said: list[dict[str, Any]] = []
    ready, heard = threading.Event(), threading.Event()

    def emit(event: dict[str, Any]) -> None:
        said.append(event)
        (heard if "heard" in event else ready).set()

    threading.Thread(target=listen, args=({"ports": [], "lifetime_s": 6.0}, emit), daemon=True).start()
    assert ready.wait(5)
    event = said[0]["listening"]
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for item in waiting:
                item.setblocking(False)
                item.connect_ex(full.getsockname())
            target = {"peer": "b", "label": "it", "host": "127.0.0.1", "port": 0, "knock": "0123456789abcdef"}
            where = {**event, "free": full.getsockname()[1]}
            (found,) = dial({"targets": [target], "listening": {"b": where}, "connect_s": 0.3}).targets
        finally:
            for item in waiting:
                item.close()
    assert found.status == "filtered" and heard.wait(2)
    assert [item for item in said if "heard" in item] == [{"heard": "0123456789abcdef"}]


def test_ports_across_the_ephemeral_range_are_dialled_together() -> None:
    with listening(spread=8) as event:
        assert len(event["spread"]) == 8 and event["range"][0] <= event["spread"][0]
        found = dialled(0, event, spread=True)
        assert found.status == "ok" and found.ports == event["spread"]
        closed = {**event, "spread": [*event["spread"][:7], 1]}
        refused = dialled(0, closed, spread=True)
    assert refused.status == "refused" and refused.closed_ports == [1]


def test_a_range_too_small_to_divide_has_no_ports() -> None:
    assert link_listener._spread([50000, 50031], 8) == []


def test_reserved_ports_are_not_listened_on() -> None:
    waiting = link_listener._spread([50000, 50063], 2, frozenset(range(50050, 50064)))
    try:
        ports = [item.getsockname()[1] for item in waiting]
        assert ports and ports[-1] <= 50049
    finally:
        for item in waiting:
            item.close()
    assert link_listener._spread([50000, 50063], 1, frozenset(range(50000, 50064))) == []


def test_an_unanswered_hardware_address_is_no_rejection(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    table.write_text(
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.0.0.2         0x1         0x0         00:00:00:00:00:00     *        eth0\n"
        "10.0.0.3         0x1         0x2         02:00:00:00:00:03     *        eth0\n"
    )
    assert links._is_unanswered("10.0.0.2", str(table))
    assert not links._is_unanswered("10.0.0.3", str(table)) and not links._is_unanswered("10.9.9.9", str(table))
    assert links._is_unanswered("10.0.0.3", str(tmp_path / "none"))


# Measurements over loopback: every number exists, is bounded, and covers both directions.


def test_both_directions_are_measured_within_their_bounds() -> None:
    with listening() as event:
        params = {"peer": "b", "host": "127.0.0.1", "listening": {"b": event}, "bulk_bytes": 4 << 20, "train": 50}
        found = measure(params)
    assert 0 < found.least_s <= found.median_s <= found.p99_s
    assert found.pings >= 12 and found.lost_pings is not None
    for way in (found.out, found.back):
        assert (way.sent, way.arrived + way.no_room >= 50) == (50, True)
        assert way.single_mbps and way.several_mbps and way.single_mbps > 10
        assert way.frame_bytes > 1000 and way.frames_arrived > 0
    assert 0 < found.bytes <= 4 * (4 << 20)
    assert found.processors[0] == found.processors[1] >= 1 and found.source == "127.0.0.1"


def test_parts_can_be_skipped() -> None:
    with listening() as event:
        params = {"peer": "b", "host": "127.0.0.1", "listening": {"b": event}, "bulk_s": 0, "train": 0, "pings": 5}
        found = measure(params)
    assert found.pings == 5 and found.bytes == 0
    assert found.out.single_mbps is None and found.out.sent == 0


def test_a_listener_without_datagrams_reports_the_rest() -> None:
    with listening() as event:
        event["udp"] = 0
        found = measure({"peer": "b", "host": "127.0.0.1", "listening": {"b": event}, "bulk_s": 0.02})
    assert found.out.sent == 0 and found.out.single_mbps


def test_blocked_datagrams_are_not_counted() -> None:
    with listening() as event, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        event["udp"] = deaf.getsockname()[1]
        found = measure({"peer": "b", "host": "127.0.0.1", "listening": {"b": event}, "bulk_s": 0, "train": 20})
    assert (found.out.sent, found.out.arrived, found.out.frame_bytes, found.back.sent) == (20, 0, 0, 0)


def test_a_missing_peer_gives_no_measurement() -> None:
    with pytest.raises(ProbeUnavailable, match="refused"):
        measure({"peer": "b", "host": "127.0.0.1", "listening": {"b": fake(free_port())}})
    with pytest.raises(ProbeUnavailable, match="out of processes"):
        measure({"peer": "b", "host": "127.0.0.1", "listening": {}, "unheard": {"b": "out of processes"}})


def test_a_peer_that_disconnects_gives_no_measurement() -> None:
    with stranger(greeted(lambda stream: None)) as port, pytest.raises(ProbeUnavailable, match="was lost"):
        measure({"peer": "b", "host": "127.0.0.1", "listening": {"b": fake(port)}})


def test_a_transfer_ends_at_its_own_deadline() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        found = link_listener.transfer(here, "source", {"seconds": 0.1, "bytes": 64 << 20})
        assert found["bytes"] > 0
        taken = link_listener.transfer(there, "sink", {"seconds": 0.1, "bytes": 64 << 20})
        assert taken["bytes"] < found["bytes"] < 64 << 20


def test_dropped_packets_are_read_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "softnet_stat"
    path.write_text("0000272d 0000000a 00000000\n0000034d 00000001 00000001\n")
    assert link_listener.dropped_by_kernel(str(path)) == 11
    path.write_text("nonsense\n")
    assert link_listener.dropped_by_kernel(str(path)) == link_listener.dropped_by_kernel(str(tmp_path / "no")) == 0


def test_the_kernels_data_about_a_connection() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as stream:
            known = tcp_info(stream)
            assert known["snd_mss"] > 500 and known["total_retrans"] == 0
            assert congestion_control(stream)
    with socket.socketpair()[0] as other:
        assert tcp_info(other) == {} and congestion_control(other) == ""


def test_small_helpers() -> None:
    assert [plain_address(a) for a in ("::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1")] == [
        "10.0.0.1",
        "fe80::1",
        "10.0.0.1",
    ]
    assert load().processors >= 1
    waited = waited_s()
    assert waited is None or waited >= 0
    with pytest.raises(ValueError, match="object"):
        words_of(b"[]")
    assert FRAME.size == 5
