"""Ports of the job that another process holds."""

from __future__ import annotations

from tests.cluster import faults

from .fault import Fault

__all__ = ["FAULTS"]

FAULTS = (
    Fault(
        "master-port-in-use",
        lambda cluster: faults.port_in_use(cluster.node("node1"), 29500),
        "PRT011",
        ("node1",),
        words=("29500",),
    ),
    Fault(
        "another-run-of-preflight-on-the-master-port",
        lambda cluster: faults.port_in_use(cluster.node("node1"), 29500, last=["preflight-0123456789abcdef01234567"]),
        "PRT011",
        ("node1",),
        status="unknown",
        verdict="incomplete",
        words=("another run of preflight holds",),
    ),
)
