"""Measurements over loopback: every number exists, is bounded, and covers both directions."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import link_listener
from preflight_checks.probes.link_quality import measure
from preflight_checks.probes.link_wire import (
    FRAME,
    congestion_control,
    load,
    plain_address,
    tcp_info,
    waited_s,
    words_of,
)
from tests.ports import free_port

from .test_links import fake, greeted, listening, stranger


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
    with stranger(greeted(lambda stream: None)) as port, pytest.raises(ProbeUnavailable, match="broke off"):
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
