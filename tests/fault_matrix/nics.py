"""Network interfaces that are absent, down, slow, faulty, wrongly chosen, or duplicated on two nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.cluster import Cluster, Node, faults
from tests.end_to_end.head_command import JOB, reached_over_management

from .fault import GPU_SCRIPT, Fault, on_node

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
    on_node("interface-renamed", "NIC001", "node3", lambda node: faults.rename_interface(node, "eth0", "ens5"), "ens5"),
    Fault(
        "interface-down",
        over_management("node3", lambda node: faults.link_down(node, "eth0")),
        "NIC001",
        ("node3",),
        words=("is down", "ip link set eth0 up"),
    ),
    Fault(
        "interface-without-carrier",
        over_management("node2", lambda node: faults.unplugged(node, "eth0")),
        "NIC001",
        ("node2",),
        words=("no carrier",),
    ),
    Fault(
        "interface-without-address",
        over_management("node4", lambda node: faults.no_address(node, "eth0")),
        "NIC001",
        ("node4",),
        words=("no IP address",),
    ),
    Fault(
        "loopback-chosen",
        lambda cluster: ExitStack(),
        "NIC001",
        ("node1", "node2", "node3", "node4"),
        words=("loopback",),
        job=JOB.replace("GLOO_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME=lo"),
        follows=("IFN001",),  # lint reports it as well, without any node
    ),
    on_node(
        "filter-in-nccl-conf-of-one-node",
        "NIC001",
        "node2",
        lambda node: faults.nccl_conf(node, "NCCL_SOCKET_IFNAME=ib0\n"),
        "/etc/nccl.conf",
        "eth0",
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    Fault(
        "filter-in-the-environment-of-all-nodes",
        lambda cluster: faults.session_variables(*cluster.nodes, NCCL_SOCKET_IFNAME="ib0"),
        "NIC001",
        ("node1", "node2", "node3", "node4"),
        words=("in the environment where the ranks run",),
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "wrong-network-card",
        "NIC006",
        "node3",
        lambda node: faults.rename_interface(node, "eth0", "ens5"),
        "eth1",
        "10.77.0.0/16",
        "ens5",
        severity="warning",
        job=nccl("eth"),
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "mtu-differs",
        "NIC003",
        "node4",
        lambda node: faults.interface_mtu(node, "eth0", 1400),
        "1400",
        severity="warning",
    ),
    Fault(
        "speed-differs",
        kernel_says("node2", speed="1000"),
        "NIC008",
        ("node2",),
        severity="warning",
        words=("1 Gbit/s",),
    ),
    Fault(
        "half-duplex",
        kernel_says("node2", duplex="half"),
        "NIC008",
        ("node2",),
        severity="warning",
        words=("half duplex",),
    ),
    Fault(
        "interface-counts-errors",
        kernel_says("node4", statistics__rx_errors="48000"),
        "NIC010",
        ("node4",),
        severity="warning",
        words=("48000",),
    ),
    Fault(
        "interface-loses-its-carrier",
        kernel_says("node1", carrier_changes="412"),
        "NIC010",
        ("node1",),
        severity="warning",
        words=("412",),
    ),
    Fault(
        "docker-address-on-every-node",
        lambda cluster: faults.extra_interface(cluster.nodes, "docker0", "172.17.0.1/16"),
        "NIC005",
        ("node1", "node2", "node3", "node4"),
        words=("172.17.0.1",),
        job=nccl("docker"),
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "link-local-port-comes-first",
        "NIC004",
        "node2",
        lambda node: faults.extra_interface([node], "ibmc0", "169.254.3.1/16"),
        "169.254.3.1",
        "NCCL_SOCKET_IFNAME",
        job=UNFILTERED,
        script=GPU_SCRIPT,
        options=ON_CPUS,
        gpus=True,
    ),
    on_node(
        "second-address-in-the-network",
        "NIC012",
        "node3",
        lambda node: faults.extra_address(node, "eth1", "10.77.9.3/16"),
        "arp_ignore",
        severity="warning",
    ),
    Fault(
        "no-shared-network",
        over_management("node3", lambda node: faults.moved_address(node, "eth0", "10.99.0.3/24")),
        "NIC007",
        ("node3",),
        stage="link",
        words=("10.99.0.3",),
        # An unreachable address cannot be dialled either.
        follows=("LNK001",),
    ),
)
