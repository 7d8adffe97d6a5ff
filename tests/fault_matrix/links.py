"""Links between nodes that are blocked, one-way, too narrow, or misrouted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import reached_over_management

from .fault import GPU_SCRIPT, Fault, on_node

__all__ = ["FAULTS"]


def via_management(
    inject: Callable[[Cluster], AbstractContextManager[object]],
) -> Callable[[Cluster], AbstractContextManager[object]]:
    """A fault of the data network, with nodes reached over the management network."""

    @contextmanager
    def both(cluster: Cluster) -> Iterator[None]:
        with reached_over_management(cluster), inject(cluster):
            yield

    return both


@contextmanager
def _two_shut(cluster: Cluster) -> Iterator[None]:
    with faults.only_ports(cluster.node("node2"), [22]), faults.only_ports(cluster.node("node3"), [22]):
        yield


FAULTS = (
    on_node(
        "master-port-dropped",
        "LNK001",
        "node1",
        lambda node: faults.drop_port(node, 29500),
        "29500",
        "filtered",
        "nft list ruleset",
        stage="link",
    ),
    on_node(
        "master-port-rejected",
        "LNK001",
        "node1",
        lambda node: faults.reject_port(node, 29500),
        "29500",
        "are refused",
        stage="link",
    ),
    Fault(
        "master-port-dropped-from-one-node",
        lambda cluster: faults.drop_port(cluster.node("node1"), 29500, source=cluster.node("node3")),
        "LNK001",
        ("node1", "node3"),
        stage="link",
        words=("node3 cannot reach node1", "29500", "filtered"),
    ),
    Fault(
        "master-port-rejected-from-one-node",
        lambda cluster: faults.reject_port(cluster.node("node1"), 29500, source=cluster.node("node4")),
        "LNK001",
        ("node1", "node4"),
        stage="link",
        words=("node4 cannot reach node1", "are refused"),
    ),
    Fault(
        "master-port-dropped-on-the-way-out",
        lambda cluster: faults.drop_port(cluster.node("node2"), 29500, direction="out"),
        "LNK001",
        ("node1", "node2"),
        stage="link",
        words=("node2 cannot reach node1", "filtered"),
    ),
    on_node(
        "only-port-22-open",
        "LNK001",
        "node3",
        lambda node: faults.only_ports(node, [22]),
        "node3 cannot be reached by any node",
        "ephemeral",
        "filtered",
        stage="link",
    ),
    Fault(
        "one-way-block",
        lambda cluster: faults.drop_between(cluster.node("node3"), cluster.node("node2")),
        "LNK001",
        ("node2", "node3"),
        stage="link",
        words=("node3 cannot reach node2", "from node3 to node2"),
    ),
    Fault(
        "one-direction-loses-everything",
        lambda cluster: faults.lose_everything(cluster.node("node3"), cluster.node("node2")),
        "LNK001",
        ("node2", "node3"),
        stage="link",
        words=("cannot reach each other", "those from node3 to node2 do not"),
    ),
    Fault(
        "several-nodes-let-only-ssh-in",
        _two_shut,
        "LNK001",
        ("node2", "node3"),
        stage="link",
        words=("node2, node3 cannot be reached by any node",),
    ),
    Fault(
        "mtu-black-hole",
        via_management(lambda cluster: faults.mtu_black_hole(cluster.node("node4"))),
        "LNK002",
        ("node4",),
        stage="link",
        words=("above 1400 bytes", "MTU 9000"),
    ),
    Fault(
        "data-network-down-on-one-node",
        via_management(lambda cluster: faults.link_down(cluster.node("node3"), "eth0")),
        "NIC001",
        ("node3",),
        words=("down",),
    ),
    Fault(
        "cable-out",
        via_management(lambda cluster: faults.unplugged(cluster.node("node3"), "eth0")),
        "NIC001",
        ("node3",),
        words=("no carrier",),
    ),
    Fault(
        "port-in-another-vlan",
        via_management(lambda cluster: faults.off_the_switch(cluster.node("node3"))),
        "LNK001",
        ("node3",),
        stage="link",
        words=("node3 reaches no other node and cannot be reached",),
    ),
    on_node(
        "master-name-missing-on-one-node",
        "NAM002",
        "node3",
        lambda node: faults.hosts_missing(node, "node1"),
        "does not resolve",
        stage="link",
    ),
    on_node(
        "master-name-leads-to-loopback-on-one-node",
        "NAM002",
        "node3",
        lambda node: faults.hosts_entry(node, "node1", "127.0.1.1"),
        "would connect to itself",
        stage="link",
    ),
    on_node(
        "data-network-routed-over-management",
        "LNK008",
        "node3",
        faults.routed_over_management,
        "come from 10.78.0.3 (eth1)",
        "10.77.0.3 (eth0)",
        severity="info",
        stage="link",
    ),
    Fault(
        "address-held-twice",
        via_management(lambda cluster: faults.duplicate_address(cluster.node("node3"))),
        "LNK007",
        ("node3",),
        stage="link",
        words=("answers for 10.77.0.3", "ip neigh flush"),
    ),
    on_node(
        "rate-limit",
        "LNK003",
        "node3",
        lambda node: faults.slow_link(node, 20),
        "Mbit/s from node3",
        "measured twice",
        "load average",
        "congestion control",
        stage="link",
    ),
    Fault(
        "packet-loss",
        via_management(lambda cluster: faults.packet_loss(cluster.node("node2"), 5)),
        "LNK005",
        ("node2",),
        severity="warning",
        stage="link",
        words=("were lost to node2", "ethtool -S"),
    ),
    Fault(
        "twenty-milliseconds-away",
        via_management(lambda cluster: faults.delayed(cluster.node("node3"), 20)),
        "LNK004",
        ("node3",),
        severity="warning",
        stage="link",
        words=("round trips to and from node3 take at least 40",),
    ),
    Fault(
        "unsteady-link",
        via_management(lambda cluster: faults.delayed(cluster.node("node3"), 10, jitter=10)),
        "LNK004",
        ("node3",),
        severity="warning",
        stage="link",
        words=("node3", "measured twice"),
    ),
    on_node(
        "one-node-with-large-frames",
        "LNK006",
        "node2",
        lambda node: faults.interface_mtu(node, "eth0", 9000),
        "8972 bytes",
        "node2 eth0 has MTU 9000",
        "node1 eth0 has MTU 1500",
        severity="warning",
        stage="link",
    ),
    on_node(
        "one-node-with-large-frames-where-rdma-may-be-used",
        "LNK006",
        "node2",
        lambda node: faults.interface_mtu(node, "eth0", 9000),
        stage="link",
        script=GPU_SCRIPT,
        gpus=True,
        # The torch of the machine that runs the tests is built without CUDA.
        follows=("VER001",),
    ),
    on_node(
        "upper-ephemeral-ports-dropped",
        "LNK001",
        "node3",
        lambda node: faults.drop_ports(node, 55000, 65535),
        "node3 cannot be reached by any node",
        "57470",
        "are open",
        stage="link",
    ),
    on_node(
        "master-port-prohibited-by-icmp",
        "LNK001",
        "node1",
        lambda node: faults.prohibit_port(node, 29500),
        "rejected with an ICMP message (by a firewall",
        "nft list ruleset",
        stage="link",
    ),
    Fault(
        "hardware-address-of-two-nodes",
        via_management(lambda cluster: faults.same_hardware_address(cluster.node("node3"), cluster.node("node2"))),
        "LNK010",
        ("node2", "node3"),
        stage="link",
        words=("have one hardware address",),
    ),
    Fault(
        "carrier-comes-and-goes",
        via_management(lambda cluster: faults.flapping(cluster.node("node3"), every_s=0.8)),
        "NIC013",
        ("node3",),
        stage="link",
        words=("lost or found its carrier",),
        # The interface may have no carrier while it is listed.
        follows=("NIC001",),
    ),
)
