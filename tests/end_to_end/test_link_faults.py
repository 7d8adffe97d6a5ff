"""Faults between nodes: refused, filtered and stalled are told apart, and one node's fault is one finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.running import NAMED_WITHIN_S, check, give_shards, reached_over_management, write_job

pytestmark = pytest.mark.cluster


def test_master_port_dropped(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.drop_port(cluster.node("node1"), 29500):
        checked = check(cluster, job)
    finding = checked.one("LNK001")
    assert "node1" in finding["nodes"]
    assert "29500" in finding["message"]
    assert "filtered" in finding["message"]
    assert checked.code == 1
    assert checked.stage_s("link") < NAMED_WITHIN_S


def test_master_port_refused(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.reject_port(cluster.node("node1"), 29500):
        checked = check(cluster, job)
    finding = checked.one("LNK001")
    assert "node1" in finding["nodes"]
    assert "29500" in finding["message"]
    assert "refused" in finding["message"]
    assert "filtered" not in finding["message"]
    assert checked.stage_s("link") < NAMED_WITHIN_S


def test_only_ssh_open_on_one_node(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.only_ports(cluster.node("node3"), [22]):
        checked = check(cluster, job)
    findings = checked.found("LNK001")
    assert findings, checked.text
    assert all("node3" in finding["nodes"] for finding in findings), checked.text
    assert checked.stage_s("link") < NAMED_WITHIN_S


def test_one_way_between_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.drop_between(cluster.node("node3"), cluster.node("node2")):
        checked = check(cluster, job)
    finding = checked.one("LNK001")
    assert sorted(finding["nodes"]) == ["node2", "node3"]
    assert checked.stage_s("link") < NAMED_WITHIN_S


def test_mtu_black_hole(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with reached_over_management(cluster), faults.mtu_black_hole(cluster.node("node4")):
        checked = check(cluster, job)
    finding = checked.one("LNK002")
    assert "node4" in finding["nodes"]
    assert not checked.found("LNK001"), checked.text
    assert checked.code == 1
    assert checked.stage_s("link") < NAMED_WITHIN_S


def test_mtu_black_hole_on_the_way_to_ssh(cluster: Cluster, tmp_path: Path) -> None:
    """Where ssh itself takes the broken way, login works and the agent never arrives: that is said, too."""
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.mtu_black_hole(cluster.node("node4")):
        checked = check(cluster, job)
    finding = checked.one("NOD001")
    assert finding["nodes"] == ["node4"]
    assert "MTU" in str(finding)
    assert checked.stage_s("open") < NAMED_WITHIN_S
