"""Faults that facts of single nodes show: each found with the node named, in time, and again from the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.running import NAMED_WITHIN_S, check, give_shards, write_job

pytestmark = pytest.mark.cluster


def test_interface_on_three_of_four_nodes(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.rename_interface(cluster.node("node3"), "eth0", "ens5"):
        checked = check(cluster, job, "--until", "node")
    finding = checked.one("NIC001")
    assert finding["nodes"] == ["node3"]
    assert "ens5" in str(finding)
    assert checked.code == 1
    assert checked.stage_s("node") < NAMED_WITHIN_S


def test_own_name_resolves_to_loopback(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, job=_without_interface())
    with faults.hosts_entry(cluster.node("node2"), "node2", "127.0.1.1"):
        checked = check(cluster, job, "--until", "node")
    finding = checked.one("NAM001")
    assert finding["nodes"] == ["node2"]
    assert "127.0.1.1" in str(finding)
    assert checked.code == 1
    assert checked.stage_s("node") < NAMED_WITHIN_S


@pytest.mark.parametrize("fault", [faults.node_down, faults.sshd_stopped, faults.sshd_frozen])
def test_node_down(cluster: Cluster, tmp_path: Path, fault: type) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with fault(cluster.node("node4")):
        checked = check(cluster, job)
    finding = checked.one("NOD001")
    assert finding["nodes"] == ["node4"]
    assert checked.code == 1
    assert checked.stage_s("open") < NAMED_WITHIN_S
    smoke = [stage for stage in checked.recording.stages if stage.name == "smoke"]
    assert "node4" in smoke[0].skipped, "the smoke run must not silently shrink the world"


def test_driver_skew(gpu_cluster: Cluster, tmp_path: Path) -> None:
    give_shards(gpu_cluster.nodes)
    job = write_job(tmp_path, script='import torch.distributed as dist\n\ndist.init_process_group("nccl")\n')
    with faults.driver_version(gpu_cluster.node("node2"), "470.57.02", cuda=11040):
        checked = check(gpu_cluster, job, "--until", "node")
    finding = checked.one("VER002")
    assert finding["nodes"] == ["node2"]
    assert "470.57.02" in str(finding)
    assert checked.stage_s("node") < NAMED_WITHIN_S


def test_missing_shard(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.missing_file(cluster.node("node3"), "/srv/data/shards/part-00002"):
        checked = check(cluster, job, "--until", "node")
    finding = checked.one("DAT012")
    assert finding["nodes"] == ["node3"]
    assert "part-00002" in str(finding)
    assert checked.stage_s("node") < NAMED_WITHIN_S


def test_master_port_in_use(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.port_in_use(cluster.node("node1"), 29500):
        checked = check(cluster, job, "--until", "node")
    assert checked.one("PRT011")["nodes"] == ["node1"]
    assert checked.code == 1


def _without_interface() -> str:
    from tests.end_to_end.running import JOB

    return JOB.replace("export GLOO_SOCKET_IFNAME=eth0\n", "")
