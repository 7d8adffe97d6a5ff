"""Links between nodes that are blocked, one-way, too narrow, or misrouted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import reached_over_management

from .fault import GPU_SCRIPT, fault, on_node

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
    on_node("master-port-dropped", "node1", lambda node: faults.drop_port(node, 29500)),
    on_node("master-port-rejected", "node1", lambda node: faults.reject_port(node, 29500)),
    fault(
        "master-port-dropped-from-one-node",
        lambda cluster: faults.drop_port(cluster.node("node1"), 29500, source=cluster.node("node3")),
    ),
    fault(
        "master-port-rejected-from-one-node",
        lambda cluster: faults.reject_port(cluster.node("node1"), 29500, source=cluster.node("node4")),
    ),
    fault(
        "master-port-dropped-on-the-way-out",
        lambda cluster: faults.drop_port(cluster.node("node2"), 29500, direction="out"),
    ),
    on_node("only-port-22-open", "node3", lambda node: faults.only_ports(node, [22])),
    fault("one-way-block", lambda cluster: faults.drop_between(cluster.node("node3"), cluster.node("node2"))),
    fault(
        "one-direction-loses-everything",
        lambda cluster: faults.lose_everything(cluster.node("node3"), cluster.node("node2")),
    ),
    fault("several-nodes-let-only-ssh-in", _two_shut),
    fault("mtu-black-hole", via_management(lambda cluster: faults.mtu_black_hole(cluster.node("node4")))),
    fault(
        "data-network-down-on-one-node", via_management(lambda cluster: faults.link_down(cluster.node("node3"), "eth0"))
    ),
    fault("cable-out", via_management(lambda cluster: faults.unplugged(cluster.node("node3"), "eth0"))),
    fault("port-in-another-vlan", via_management(lambda cluster: faults.off_the_switch(cluster.node("node3")))),
    on_node("master-name-missing-on-one-node", "node3", lambda node: faults.hosts_missing(node, "node1")),
    on_node(
        "master-name-leads-to-loopback-on-one-node",
        "node3",
        lambda node: faults.hosts_entry(node, "node1", "127.0.1.1"),
    ),
    on_node("data-network-routed-over-management", "node3", faults.routed_over_management),
    fault("address-held-twice", via_management(lambda cluster: faults.duplicate_address(cluster.node("node3")))),
    on_node("rate-limit", "node3", lambda node: faults.slow_link(node, 20)),
    fault("packet-loss", via_management(lambda cluster: faults.packet_loss(cluster.node("node2"), 5))),
    fault("twenty-milliseconds-away", via_management(lambda cluster: faults.delayed(cluster.node("node3"), 20))),
    fault("unsteady-link", via_management(lambda cluster: faults.delayed(cluster.node("node3"), 10, jitter=10))),
    on_node("one-node-with-large-frames", "node2", lambda node: faults.interface_mtu(node, "eth0", 9000)),
    on_node(
        "one-node-with-large-frames-where-rdma-may-be-used",
        "node2",
        lambda node: faults.interface_mtu(node, "eth0", 9000),
        script=GPU_SCRIPT,
        gpus=True,
    ),
    on_node("upper-ephemeral-ports-dropped", "node3", lambda node: faults.drop_ports(node, 55000, 65535)),
    on_node("master-port-prohibited-by-icmp", "node1", lambda node: faults.prohibit_port(node, 29500)),
    fault(
        "hardware-address-of-two-nodes",
        via_management(lambda cluster: faults.same_hardware_address(cluster.node("node3"), cluster.node("node2"))),
    ),
    fault(
        "carrier-comes-and-goes", via_management(lambda cluster: faults.flapping(cluster.node("node3"), every_s=0.8))
    ),
)
