"""Names, interfaces and routes of this machine, and parsers on recorded text."""

from __future__ import annotations

import socket
import struct

import pytest

from preflight_checks.probes.interfaces import (
    RUNNING,
    UP,
    Address,
    grouped,
    interfaces,
    parse_ip_addr,
    parse_route_answer,
    route,
)
from preflight_checks.probes.names import resolve


def test_localhost_resolves_to_loopback() -> None:
    found = resolve({"name": "localhost"})
    assert not found.problem and not found.own
    assert set(found.addresses) <= {"127.0.0.1", "::1"} and found.addresses


def test_no_name_means_the_own_name() -> None:
    found = resolve({"name": ""})
    assert found.own and found.name == socket.gethostname()


def test_a_name_that_cannot_exist_is_an_observation() -> None:
    found = resolve({"name": "does-not-exist.invalid"})
    assert found.addresses == [] and found.problem in ("unresolved", "timeout")
    assert found.detail


def test_a_malformed_name_does_not_crash() -> None:
    assert resolve({"name": "a" * 300}).problem == "unresolved"


def test_a_hanging_resolver_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    release = socket.socketpair()

    def hanging(*_args: object) -> object:
        release[0].recv(1)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    try:
        found = resolve({"name": "head", "limit_s": 0.05})
    finally:
        release[1].send(b"x")
    assert found.problem == "timeout"


def test_this_machine_has_a_loopback_interface_that_is_up() -> None:
    found = {item.name: item for item in interfaces({}).interfaces}
    lo = found["lo"]
    assert lo.loopback and lo.kind == "loopback" and lo.mtu
    assert Address("127.0.0.1", 8) in lo.addresses


RECORDED = """[
{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,"operstate":"UNKNOWN",
 "addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host"}]},
{"ifindex":4,"ifname":"ib0","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"mtu":2044,"operstate":"UP",
 "addr_info":[{"family":"inet","local":"10.1.0.4","prefixlen":16},
              {"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]},
{"ifindex":5,"ifname":"eno2","flags":["NO-CARRIER","BROADCAST","MULTICAST","UP"],"mtu":1500,"addr_info":[]},
{"deleted":true}
]"""


def test_ip_addr_gives_the_same_rows_as_getifaddrs() -> None:
    rows = grouped(parse_ip_addr(RECORDED))
    assert [(name, addresses) for name, _flags, addresses in rows] == [
        ("lo", [Address("127.0.0.1", 8)]),
        ("ib0", [Address("10.1.0.4", 16), Address("fe80::1", 64)]),
        ("eno2", []),
    ]
    assert rows[1][1] & UP and rows[1][1] & RUNNING
    assert rows[2][1] & UP and not rows[2][1] & RUNNING


@pytest.mark.parametrize("text", ["", 'Object "-j" is unknown, try "ip help".', '{"a": 1}'])
def test_an_invalid_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ip_addr(text)


def test_the_route_to_loopback_leaves_through_lo() -> None:
    found = route({"destination": "127.0.0.1"})
    assert (found.interface, found.source, found.problem) == ("lo", "127.0.0.1", "")


def test_a_route_to_an_unknown_name_is_unresolved() -> None:
    assert route({"destination": "does-not-exist.invalid"}).problem in ("unresolved", "timeout")


def answer(*attributes: tuple[int, bytes], kind: int = 24) -> bytes:
    body = b"".join(struct.pack("=HH", 4 + len(data), name) + data for name, data in attributes)
    return struct.pack("=IHHII", 28 + len(body), kind, 0, 1, 0) + b"\0" * 12 + body


def test_a_route_answer_gives_the_outgoing_interface() -> None:
    found = answer((1, bytes([10, 0, 0, 1])), (4, struct.pack("=I", 7)), (5, bytes([10, 0, 0, 1])))
    assert parse_route_answer(found) == 7


@pytest.mark.parametrize("data", [b"", b"\0" * 40, answer((1, b"\0" * 4)), answer((4, b"\7\0\0\0"), kind=2)])
def test_other_answers_give_none(data: bytes) -> None:
    assert parse_route_answer(data) is None
