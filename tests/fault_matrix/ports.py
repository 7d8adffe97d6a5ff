"""Ports of the job that another process holds."""

from __future__ import annotations

from tests.cluster import faults

from .fault import on_node

__all__ = ["FAULTS"]

FAULTS = (
    on_node("master-port-in-use", "PRT011", "node1", lambda node: faults.port_in_use(node, 29500), "29500"),
    on_node(
        "another-run-of-preflight-on-the-master-port",
        "PRT011",
        "node1",
        lambda node: faults.port_in_use(node, 29500, last=["preflight-0123456789abcdef01234567"]),
        "another run of preflight holds",
        status="unknown",
    ),
)
