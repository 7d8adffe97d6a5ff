"""The master's port, tested with plain sockets on loopback."""

from __future__ import annotations

import errno
import socket

import pytest

from reference_trainer.common import rendezvous


def test_open_port_is_dialled_with_its_source_address() -> None:
    with rendezvous.listen(0) as listener:
        outcome = rendezvous.dial("127.0.0.1", listener.getsockname()[1])
    assert (outcome.result, outcome.address, outcome.source) == ("open", "127.0.0.1", "127.0.0.1")


def test_port_in_use_is_reported_with_its_number() -> None:
    with rendezvous.listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port}: Address already in use") as raised:
            rendezvous.listen(port)
    assert raised.value.errno == errno.EADDRINUSE


def test_refused_and_unresolved_are_distinguished(free_port: int) -> None:
    refused = rendezvous.dial("127.0.0.1", free_port)
    assert (refused.result, str(free_port) in refused.error) == ("refused", True)
    assert rendezvous.dial("no-such-node.invalid", 1).result == "unresolved"
    assert rendezvous.dial("a" * 300, 1).result == "unresolved"


def test_a_silent_address_times_out() -> None:
    with socket.socket() as full:
        # A listener whose queue is full does not answer another SYN.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        outcome = rendezvous.dial("127.0.0.1", address[1], timeout_s=0.2)
        for one in waiting:
            one.close()
    assert outcome.result == "timed-out"


def test_dialling_continues_and_reports_each_change_once(free_port: int) -> None:
    told: list[str] = []
    pauses = 0
    listeners: list[socket.socket] = []

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            listeners.append(rendezvous.listen(free_port))

    outcome = rendezvous.dial_until(
        "127.0.0.1", free_port, timeout_s=30, on_dialled=lambda dialled: told.append(dialled.result), pause=pause
    )
    listeners[0].close()
    assert (outcome.result, told, pauses) == ("open", ["refused", "open"], 3)
