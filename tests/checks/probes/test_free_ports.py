"""Free ports of this node."""

from __future__ import annotations

import socket

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import ports as module
from preflight_checks.probes.kernel_network import KernelNetwork
from preflight_checks.probes.ports import FIRST, candidates, free_ports


def test_found_ports_can_be_bound_together_and_vary() -> None:
    found = free_ports({"count": 16}).ports
    assert len(set(found)) == 16
    for port in found:
        with socket.create_server(("", port)):
            pass
    assert found != free_ports({"count": 16}).ports


def test_a_bound_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        monkeypatch.setattr(module, "candidates", lambda network: [taken])
        with pytest.raises(ProbeUnavailable, match="no free port"):
            free_ports({"count": 1})


@pytest.mark.parametrize(
    ("first", "last", "low", "high"),
    [
        (32768, 60999, FIRST, 32767),
        (9000, 60000, 60001, 65535),
        (1024, 65535, FIRST, 65535),
        (None, None, FIRST, 65535),
    ],
)
def test_ephemeral_ports_are_avoided(first: int | None, last: int | None, low: int, high: int) -> None:
    found = candidates(KernelNetwork(first, last, reserved_ports="20000-20010"))
    assert (found[0], found[-1]) == (low, high) and 20005 not in found
