"""Nodes that cannot be reached, or that let nobody in."""

from __future__ import annotations

from tests.cluster import faults

from .fault import Fault

__all__ = ["FAULTS"]


FAULTS = (
    Fault("node-down", lambda cluster: faults.node_down(cluster.node("node4")), "NOD001", ("node4",), stage="open"),
    Fault(
        "sshd-stopped",
        lambda cluster: faults.sshd_stopped(cluster.node("node2")),
        "NOD001",
        ("node2",),
        stage="open",
        words=("nothing listens",),
    ),
    Fault(
        "sshd-frozen",
        lambda cluster: faults.sshd_frozen(cluster.node("node3")),
        "NOD001",
        ("node3",),
        stage="open",
        words=("does not speak",),
    ),
    Fault(
        "mtu-black-hole-on-the-way-to-ssh",
        lambda cluster: faults.mtu_black_hole(cluster.node("node4")),
        "NOD001",
        ("node4",),
        stage="open",
        words=("MTU",),
    ),
    Fault(
        "ssh-port-dropped",
        lambda cluster: faults.drop_port(cluster.node("node1"), 22),
        "NOD001",
        ("node1",),
        stage="open",
        words=("firewall",),
    ),
    Fault(
        "ssh-port-rejected",
        lambda cluster: faults.reject_port(cluster.node("node1"), 22),
        "NOD001",
        ("node1",),
        stage="open",
    ),
)
