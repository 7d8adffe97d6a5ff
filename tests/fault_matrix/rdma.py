"""RDMA devices that are absent, down, slow or inaccessible on one node, or have inconsistent addresses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tests.cluster import Cluster, Hca, faults, hcas, roce_gids
from tests.end_to_end.head_command import JOB

from .fault import GPU_SCRIPT, Fault, fault
from .nics import ON_CPUS

__all__ = ["FAULTS"]

#: Findings about the test machine itself: a torch without GPU support, and a low limit of locked memory.
MACHINE = (*ON_CPUS, "--ignore", "LIM002")
HEALTHY = hcas(4)
Inject = Callable[[Cluster], AbstractContextManager[object]]


def job(*exports: str) -> str:
    """The job over NCCL and eth0, with further variables."""
    lines = "".join(f"export {text}\n" for text in ("NCCL_SOCKET_IFNAME=eth0", *exports))
    return JOB.replace("export GLOO_SOCKET_IFNAME=eth0\n", lines)


def devices(**other: Sequence[Hca]) -> Inject:
    """Four devices on every node, except the named ones."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        with ExitStack() as undo:
            for node in cluster.nodes:
                undo.enter_context(faults.rdma_devices([node], other.get(node.name, HEALTHY)))
            yield

    return inject


def one_different(index: int, **different: str | Mapping[str, int]) -> list[Hca]:
    """Four devices, one of them different."""
    odd = replace(HEALTHY[index], **different)  # type: ignore[arg-type]
    return [odd if place == index else hca for place, hca in enumerate(HEALTHY)]


def roce(index_3: str = "RoCE v2", **without: bool) -> Inject:
    """RoCE cards with their addresses; `node2=True` leaves that node's without an IPv4 address."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        with ExitStack() as undo:
            for node in cluster.nodes:
                table = roce_gids(node.data_address)
                table[3] = (table[3][0], index_3, table[3][2])
                if without.get(node.name):
                    del table[2], table[3]
                cards = [Hca("mlx5_0", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)", gids=table)]
                undo.enter_context(faults.rdma_devices([node], cards))
            yield

    return inject


@contextmanager
def without_device_nodes(cluster: Cluster) -> Iterator[None]:
    """Cards on every node, but no device nodes on one."""
    with ExitStack() as undo:
        for node in cluster.nodes:
            undo.enter_context(faults.rdma_devices([node], HEALTHY, opened=node.name != "node3"))
        yield


@contextmanager
def low_memlock(cluster: Cluster) -> Iterator[None]:
    """Cards everywhere, and 64 KiB of locked memory: on all nodes, because the machine itself may allow little."""
    with devices()(cluster), ExitStack() as undo:
        for node in cluster.nodes:
            undo.enter_context(faults.low_limits(node, memlock=65536))
        yield


#: Stands in for perftest: both ends meet over TCP, and the slower of them is the rate that is printed.
IB_WRITE_BW = r"""
[ "$1" = --version ] && exec echo "Version: 6.16"
exec {python} -c '
import socket, sys
words, speed = sys.argv[2:], sys.argv[1]
port = int(words[words.index("-p") + 1])
if words[-1].count(".") == 3:
    with socket.create_connection((words[-1], port), 3) as stream:
        far = stream.recv(64).decode()
    print("#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print("131072 8000 0.00", min(float(speed), float(far)), "0.1")
else:
    with socket.socket() as listener:
        listener.bind(("", port))
        listener.listen()
        accepted, _ = listener.accept()
        accepted.sendall(speed.encode())
' {speed} "$@"
"""


@contextmanager
def slow_writes(cluster: Cluster) -> Iterator[None]:
    """One port of 200 Gbit/s on each node; writes from and to that of node2 are five times slower."""
    with faults.rdma_devices(cluster.nodes, hcas(1)), ExitStack() as undo:
        for node in cluster.nodes:
            speed = 39 if node.name == "node2" else 196
            text = IB_WRITE_BW.format(python=sys.executable, speed=speed)
            undo.enter_context(faults.management_tool(node, text, name="ib_write_bw"))
        yield


def row(name: str, inject: Inject, **more: Any) -> Fault:
    """A row of this subject: a job over NCCL on nodes with GPUs."""
    return fault(name, inject, **{"job": job(), "script": GPU_SCRIPT, "options": MACHINE, "gpus": True, **more})


FAULTS = (
    row("hca-absent", devices(node3=HEALTHY[:3]), job=job("NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3")),
    row("hca-renamed", devices(node2=[Hca(f"ibp{index}s0") for index in range(4)]), job=job("NCCL_IB_HCA=mlx5")),
    row("no-hca-on-one-node", devices(node1=[])),
    row("no-hca-anywhere", lambda cluster: ExitStack(), job=job("NCCL_NET=IB")),
    row(
        "hca-down", devices(node2=one_different(3, state="1: DOWN", physical="2: Polling")), job=job("NCCL_IB_HCA=mlx5")
    ),
    row("hca-without-subnet-manager", devices(node4=[replace(hca, state="2: INIT") for hca in HEALTHY])),
    row("hca-slow", devices(node4=one_different(0, rate="50 Gb/sec (1X HDR)"))),
    row("hca-flaps", devices(node1=one_different(2, counters={"link_downed": 212}))),
    row("hca-old-firmware", devices(node3=one_different(1, firmware="28.33.0751"))),
    row("gid-empty-on-one-node", roce(node2=True), job=job("NCCL_IB_GID_INDEX=3")),
    row("gid-link-local", roce(), job=job("NCCL_IB_GID_INDEX=1")),
    row("gid-of-roce-v1", roce(), job=job("NCCL_IB_GID_INDEX=2")),
    row("gid-not-found-on-one-node", roce(node3=True)),
    row("hca-writes-slowly", slow_writes),
    row("hca-closed-to-ranks", without_device_nodes),
    row("memlock-low-with-rdma", low_memlock, options=ON_CPUS),
)
