"""Transport counters on virtual nodes with two networks: a wrong route is found by its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.end_to_end.head_command import JOB, check, give_shards, write_job

pytestmark = pytest.mark.thorough


@contextmanager
def routed_over_management(cluster: Cluster, name: str) -> Iterator[None]:
    """This node sends to the others' data addresses over the management network."""
    node = cluster.node(name)
    others = [other for other in cluster.nodes if other.name != name]
    ways = [[f"{other.data_address}/32", "via", other.management_address, "dev", "eth1"] for other in others]
    for way in ways:
        node.must(["ip", "route", "add", *way, "src", node.data_address])
    try:
        yield
    finally:
        for way in ways:
            node.must(["ip", "route", "del", *way])


def test_bytes_that_leave_over_the_management_network_are_found(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    give_shards(cluster.nodes)
    with routed_over_management(cluster, "node3"):
        checked = check(cluster, write_job(tmp_path), python=warm)
    finding = checked.only("SMK013")
    assert finding["nodes"] == ["node3"], checked.text
    assert "eth1 of node3 sent" in finding["message"] and "GLOO_SOCKET_IFNAME=eth0 chooses it" in finding["message"]


SHARDING = """\
import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--data-path")
parser.parse_args()
dist.init_process_group("gloo")
model = fully_shard(torch.nn.Linear(8, 8))
"""


def test_sharded_job_runs_with_two_ranks_per_node(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    give_shards(cluster.nodes)
    job = JOB.replace("--nnodes=4", "--nnodes=2").replace("--nproc_per_node=1", "--nproc_per_node=2")
    checked = check(cluster, write_job(tmp_path, job, SHARDING), "--hosts", "node[1-2]")
    subjects = {o["id"]: o["subject"] for o in checked.report["outcomes"] if o["status"] == "pass"}
    assert "4 ranks on 2 nodes, gloo (2 ranks per node, as the job starts them" in subjects["SMK001"], checked.text
    assert "equal on 4 ranks with fully_shard" in subjects["SMK003"]
    assert "SMK002" in subjects
