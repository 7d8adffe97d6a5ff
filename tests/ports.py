"""Ports for tests that let somebody else listen: free now, and given to no outgoing connection meanwhile."""

from __future__ import annotations

from preflight_checks.probes import free_ports as probe

__all__ = ["free_port", "free_ports"]


def free_ports(count: int) -> list[int]:
    """So many, all different. They are drawn by lot, so that tests beside this one hardly get the same."""
    found = probe.free_ports({"count": count}).ports
    assert len(found) == count
    return found


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
