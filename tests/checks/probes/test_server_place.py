"""The resources of a node for parameter servers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from preflight_checks.probes import kernel_network
from preflight_checks.probes import server_place as probe
from preflight_checks.probes.server_place import is_own, server_place


def test_loopback_and_other_addresses_are_not_own() -> None:
    assert not is_own("127.0.0.1") and not is_own("::1") and not is_own("0.0.0.0") and not is_own("nonsense")
    assert not is_own("203.0.113.7")


def test_this_machine() -> None:
    seen = server_place({"hosts": ["127.0.0.1", "203.0.113.7", "no-such-host.invalid"]})
    loopback, stranger, missing = seen.hosts
    assert loopback.addresses == ["127.0.0.1"] and not loopback.local
    assert not stranger.local and missing.problem in ("unresolved", "timeout")
    assert seen.memory_bytes and seen.cores and seen.cores > 0


def test_an_own_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "is_own", lambda address: address == "192.0.2.1")
    monkeypatch.setattr(probe, "_speeds", lambda: {"192.0.2.1": 10000})
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
    (host,) = server_place({"hosts": ["ps-a"]}).hosts
    assert host.local and host.speed_mbps == 10000


def test_a_node_without_proc_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MEMINFO", str(tmp_path / "none"))
    monkeypatch.setattr(kernel_network, "SYSCTL", str(tmp_path / "none"))
    seen = server_place({})
    assert seen.first_ephemeral_port is None and seen.hosts == []
