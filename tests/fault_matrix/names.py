"""Names that resolve wrongly or not at all on one node, interfering proxies, and full kernel tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.cluster import Cluster, faults

from .fault import fault, on_node
from .nics import UNFILTERED

__all__ = ["FAULTS"]

C10D = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=eth0
torchrun --nnodes=4 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=7 --rdzv_endpoint=10.77.0.1:29400 \\
    train.py --data-path /srv/data/shards
"""
PADDLE = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=eth0
python -m paddle.distributed.launch --nnodes=4 --nproc_per_node=1 --master=node1:6070 train.py
"""
TENSORFLOW = """\
#!/usr/bin/env bash
export TF_CONFIG='{"cluster": {"worker": ["node1:2222", "node2:2222", "node3:2222", "node4:2222"]}, \\
"task": {"type": "worker", "index": 0}}'
python train.py --data-path /srv/data/shards
"""
KERAS = """\
import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data-path")
parser.parse_args()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""


def kernel_says(name: str, path: str, text: str) -> Callable[[Cluster], AbstractContextManager[object]]:
    """A file of /proc/sys/net on one node."""
    return lambda cluster: faults.kernel_file(cluster.node(name), f"/proc/sys/net/{path}", f"{text}\n")


@contextmanager
def stale_own_name(cluster: Cluster) -> Iterator[None]:
    """A node's own name resolves to an earlier address."""
    with faults.hosts_entry(cluster.node("node4"), "node4", "10.77.200.4"):
        yield


@contextmanager
def calls_itself_localhost(cluster: Cluster) -> Iterator[None]:
    """/etc/hosts of one node lists its own name after localhost, as some installers write it."""
    node = cluster.node("node1")
    lines = [line for line in node.read_text("/etc/hosts").splitlines() if line.split()[1:2] != ["node1"]]
    with faults.own_file(node, "/etc/hosts", "127.0.0.1 localhost node1\n" + "\n".join(lines[1:]) + "\n"):
        yield


@contextmanager
def slow_names(cluster: Cluster) -> Iterator[None]:
    """An unresponsive name server is queried before /etc/hosts, which answers after two seconds."""
    node = cluster.node("node4")
    with (
        faults.own_file(node, "/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: dns files\n"),
        faults.own_file(node, "/etc/resolv.conf", "nameserver 10.77.250.250\noptions timeout:2 attempts:1\n"),
    ):
        yield


@contextmanager
def silent_name_server(cluster: Cluster) -> Iterator[None]:
    """The master's name is in no file, and the name server does not answer."""
    node = cluster.node("node3")
    with (
        faults.hosts_missing(node, "node1"),
        faults.own_file(node, "/etc/resolv.conf", "nameserver 10.77.250.250\noptions timeout:5 attempts:2\n"),
    ):
        yield


FAULTS = (
    on_node(
        "own-name-leads-to-loopback",
        "node2",
        lambda node: faults.hosts_entry(node, "node2", "127.0.1.1"),
        job=UNFILTERED,
    ),
    fault("own-name-leads-to-an-old-address", stale_own_name, job=UNFILTERED),
    on_node("master-name-missing", "node3", lambda node: faults.hosts_missing(node, "node1")),
    on_node("master-name-leads-to-loopback", "node4", lambda node: faults.hosts_entry(node, "node1", "127.0.0.1")),
    on_node("master-name-leads-to-another-node", "node2", lambda node: faults.hosts_entry(node, "node1", "10.77.0.3")),
    fault("name-server-silent", silent_name_server),
    on_node("master-name-of-another-family", "node3", lambda node: faults.hosts_entry(node, "node1", "2001:db8::1")),
    on_node(
        "own-name-leads-to-loopback-under-paddle",
        "node2",
        lambda node: faults.hosts_entry(node, "node2", "127.0.1.1"),
        job=PADDLE,
        script="import paddle\n\npaddle.distributed.init_parallel_env()\n",
        options=("--ignore", "VER"),  # the nodes have no Paddle
    ),
    fault("two-names-of-one-machine", lambda cluster: ExitStack(), options=("--hosts", "node1,node2,node3,node2-mgmt")),
    fault("names-wait-for-a-dead-server", slow_names),
    on_node("hosts-file-differs", "node3", lambda node: faults.hosts_entry(node, "node2", "10.77.99.2")),
    fault("torchrun-calls-its-master-localhost", calls_itself_localhost, job=C10D),
    on_node(
        "torchrun-master-name-unknown-to-a-peer", "node4", lambda node: faults.hosts_missing(node, "node1"), job=C10D
    ),
    on_node(
        "proxy-on-one-node",
        "node3",
        lambda node: faults.session_variables(node, https_proxy="http://10.77.250.1:3128"),
        job=TENSORFLOW,
        script=KERAS,
    ),
    fault("no-local-ports", kernel_says("node2", "ipv4/ip_local_port_range", "50000 50000")),
    fault("few-local-ports", kernel_says("node2", "ipv4/ip_local_port_range", "50000 50031")),
    fault("connection-tracking-full", kernel_says("node4", "netfilter/nf_conntrack_count", "99999999")),
    fault("listen-backlog-of-two", kernel_says("node1", "core/somaxconn", "2")),
)
