"""Ports of the job that somebody else holds."""

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
)
