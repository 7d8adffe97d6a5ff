"""The kernel's neighbour table, from made-up answers and from this machine."""

from __future__ import annotations

import socket
import struct

from preflight_checks.probes.neighbours import neighbours, parse_neighbours


def entry(family: int, address: str, hardware: bytes, state: int = 0x02) -> bytes:
    """One RTM_NEWNEIGH message."""

    def attribute(kind: int, value: bytes) -> bytes:
        return (struct.pack("=HH", 4 + len(value), kind) + value).ljust((4 + len(value) + 3) & ~3, b"\0")

    body = struct.pack("=BxxxiHBB", family, 3, state, 0, 0) + attribute(1, socket.inet_pton(family, address))
    body += attribute(2, hardware)
    return struct.pack("=IHHII", 16 + len(body), 28, 0, 1, 0) + body


DONE = struct.pack("=IHHII", 20, 3, 0, 1, 0) + bytes(4)


def test_entries_of_both_families_are_read() -> None:
    data = entry(socket.AF_INET, "10.0.0.2", bytes(range(6))) + entry(socket.AF_INET6, "fe80::2", bytes([2] * 6)) + DONE
    rows, over = parse_neighbours(data)
    assert rows == [(3, "10.0.0.2", "00:01:02:03:04:05"), (3, "fe80::2", "02:02:02:02:02:02")] and over


def test_entries_without_an_answer_are_skipped() -> None:
    for state in (0x01, 0x20, 0x40):
        assert parse_neighbours(entry(socket.AF_INET, "10.0.0.2", bytes(6), state))[0] == []


def test_an_infiniband_address_is_skipped() -> None:
    assert parse_neighbours(entry(socket.AF_INET, "10.0.0.2", bytes(20)))[0] == []


def test_malformed_data_ends_the_answer() -> None:
    assert parse_neighbours(b"") == ([], False)
    assert parse_neighbours(bytes(16)) == ([], True)
    cut = entry(socket.AF_INET, "10.0.0.2", bytes(range(6)))[:-8]
    assert parse_neighbours(cut)[0] in ([], [(3, "10.0.0.2", "00:01:02:03:04:05")])


def test_this_machine_has_a_table_and_a_reason_for_no_requests() -> None:
    found = neighbours({"ask": ["198.51.100.77", "2001:db8::1"]})
    assert isinstance(found.table, list)
    assert all(card.hardware.count(":") == 5 for card in found.cards)
    assert set(found.answers) <= {"198.51.100.77"}
