"""Ports on which tests let other processes listen: free now, and never used for outgoing connections."""

from __future__ import annotations

from preflight_checks.probes import ports as probe

__all__ = ["free_port", "free_ports"]


def free_ports(count: int) -> list[int]:
    """Return `count` different ports. They are random, so that concurrent tests rarely get the same ones."""
    found = probe.free_ports({"count": count}).ports
    assert len(found) == count
    return found


def free_port() -> int:
    """Return one free port."""
    (port,) = free_ports(1)
    return port
