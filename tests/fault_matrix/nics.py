"""Network interfaces that are absent, down, slow, faulty, wrongly chosen, or duplicated on two nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.cluster import Cluster, Node, faults
from tests.end_to_end.head_command import JOB, reached_over_management

from .fault import GPU_SCRIPT, fault, on_node

__all__ = ["FAULTS"]

#: The torch of the test machine may lack GPU support, which is another fault.
ON_CPUS = ("--ignore", "VER001")
UNFILTERED = JOB.replace("export GLOO_SOCKET_IFNAME=eth0\n", "")


def nccl(filter_value: str) -> str:
    """The job with NCCL_SOCKET_IFNAME instead of Gloo's variable."""
    return JOB.replace("GLOO_SOCKET_IFNAME=eth0", f"NCCL_SOCKET_IFNAME={filter_value}")


def over_management(
    name: str, fault: Callable[[Node], AbstractContextManager[None]]
) -> Callable[[Cluster], AbstractContextManager[object]]:
    """The fault on one node, which ssh reaches over the management network."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        with reached_over_management(cluster), fault(cluster.node(name)):
            yield

    return inject


def kernel_says(name: str, **files: str) -> Callable[[Cluster], AbstractContextManager[object]]:
    """Files of /sys/class/net/eth0 on one node; `statistics__rx_errors` stands for statistics/rx_errors."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        with ExitStack() as undo:
            for file, text in files.items():
                path = f"/sys/class/net/eth0/{file.replace('__', '/')}"
                undo.enter_context(faults.kernel_file(cluster.node(name), path, f"{text}\n"))
            yield

    return inject


FAULTS = (
    on_node("interface-renamed", "node3", lambda node: faults.rename_interface(node, "eth0", "ens5")),
    fault("interface-down", over_management("node3", lambda node: faults.link_down(node, "eth0"))),
    fault("interface-without-carrier", over_management("node2", lambda node: faults.unplugged(node, "eth0"))),
    fault("interface-without-address", over_management("node4", lambda node: faults.no_address(node, "eth0"))),
    fault(
        "loopback-chosen",
        lambda cluster: ExitStack(),
        job=JOB.replace("GLOO_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME=lo"),
    ),
    on_node(
        "filter-in-nccl-conf-of-one-node",
        "node2",
        lambda node: faults.nccl_conf(node, "NCCL_SOCKET_IFNAME=ib0\n"),
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    fault(
        "filter-in-the-environment-of-all-nodes",
        lambda cluster: faults.session_variables(*cluster.nodes, NCCL_SOCKET_IFNAME="ib0"),
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "wrong-network-card",
        "node3",
        lambda node: faults.rename_interface(node, "eth0", "ens5"),
        job=nccl("eth"),
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node("mtu-differs", "node4", lambda node: faults.interface_mtu(node, "eth0", 1400)),
    fault("speed-differs", kernel_says("node2", speed="1000")),
    fault("half-duplex", kernel_says("node2", duplex="half")),
    fault("interface-counts-errors", kernel_says("node4", statistics__rx_errors="48000")),
    fault("interface-loses-its-carrier", kernel_says("node1", carrier_changes="412")),
    fault(
        "docker-address-on-every-node",
        lambda cluster: faults.extra_interface(cluster.nodes, "docker0", "172.17.0.1/16"),
        job=nccl("docker"),
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "link-local-port-comes-first",
        "node2",
        lambda node: faults.extra_interface([node], "ibmc0", "169.254.3.1/16"),
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node("second-address-in-the-network", "node3", lambda node: faults.extra_address(node, "eth1", "10.77.9.3/16")),
    fault(
        "no-shared-network", over_management("node3", lambda node: faults.moved_address(node, "eth0", "10.99.0.3/24"))
    ),
)
