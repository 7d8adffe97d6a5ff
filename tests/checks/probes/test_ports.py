"""Ports that can be bound, and the processes that hold others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from preflight_checks.probes.ports import bindable, bound, holders_of, parse_tcp_table, vacant
from tests.ports import free_port


@pytest.fixture
def bound_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_held_port_is_in_use_by_this_process(bound_port: int) -> None:
    state = bindable({"port": bound_port})
    assert state.problem == "in-use"
    assert [(item.pid, item.local, item.listening) for item in state.holders] == [
        (os.getpid(), f"127.0.0.1:{bound_port}", True)
    ]
    assert "python" in state.holders[0].command or "pytest" in state.holders[0].command


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_vacant_port_has_no_listener_at_any_address(family: socket.AddressFamily, address: str) -> None:
    port = free_port()
    assert vacant(port) and vacant(port), "to look at it leaves nothing behind"
    with bound(family, (address, port)):
        assert not vacant(port)
    assert vacant(port)


def test_testing_a_port_does_not_block_it() -> None:
    port = free_port()
    with socket.socket(socket.AF_INET6) as looking:
        # `vacant` also binds the port for an instant.
        looking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        looking.bind(("::", port))
        assert bindable({"port": port}).problem == ""


def test_a_released_port_can_be_bound_at_once() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert bindable({"port": port}).problem == ""
    assert bindable({"port": port}).problem == ""


def test_an_address_of_another_machine_is_not_local() -> None:
    assert bindable({"port": 6174, "host": "192.0.2.77"}).problem == "not-local"


@pytest.mark.parametrize("port", [0, 70000])
def test_an_invalid_port_is_refused(port: int) -> None:
    assert "from 1 to 65535" in bindable({"port": port}).detail


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 "
    "123456 1 0 100 0 0 10 0\n"
    "   1: 0100007F:1F90 0100007F:A1B2 01 00000000:00000000 02:000005B5 00000000     0        0 99 2 0 20 4 30 10 -1\n"
)
TCP6 = (
    "   0: 00000000000000000000000001000000:733C 00000000000000000000000000000000:0000 0A "
    "00000000:00000000 00:00000000 00000000     0        0 777 1 0 100 0 0 10 0\n"
)


def test_the_tables_of_the_kernel() -> None:
    rows = parse_tcp_table(HEAD + TCP)
    assert [(r.address, r.port, r.state, r.uid, r.inode) for r in rows] == [
        ("0.0.0.0", 29500, 10, 1000, 123456),
        ("127.0.0.1", 8080, 1, 0, 99),
    ]
    assert [(r.address, r.inode) for r in parse_tcp_table(HEAD + TCP6)] == [("::1", 777)]


@pytest.mark.parametrize("text", ["", HEAD, HEAD + "garbage\n", HEAD + "0: zz:yy 0 0A 0 0 0 0 0 0\n"])
def test_tables_without_rows(text: str) -> None:
    assert parse_tcp_table(text) == []


def test_a_free_port_has_no_holder(bound_port: int) -> None:
    assert list(holders_of(bound_port))
    assert list(holders_of(1)) == []
