"""Culprits that neither ranks nor link checks can name: smaller groups are tried, and the pace of ranks is compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster, Node, faults
from tests.end_to_end.head_command import Checked, check, give_shards, write_job

pytestmark = pytest.mark.thorough

#: The ranks run in this Unix group and the probes of the link stage do not, so a filter can distinguish them.
GROUP = 4242
PYTHON = "/srv/python-of-the-job"


@contextmanager
def ranks_in_a_group(nodes: list[Node], python: str) -> Iterator[str]:
    """An interpreter that runs in `GROUP` on every node."""
    for node in nodes:
        node.write_text(PYTHON, f'#!/bin/sh\nexec setpriv --regid={GROUP} --clear-groups {python} "$@"\n')
        node.must(["chmod", "755", PYTHON])
    yield PYTHON


def run(cluster: Cluster, warm: str, folder: Path, *pairs: tuple[str, str]) -> Checked:
    """Run a check while the ranks' packets from one node of each pair to the other are dropped."""
    give_shards(cluster.nodes)
    job = write_job(folder)
    with ExitStack() as undo:
        python = undo.enter_context(ranks_in_a_group(cluster.nodes, warm))
        for a, b in pairs:
            undo.enter_context(faults.drop_of_group(cluster.node(a), GROUP, cluster.node(b)))
            undo.enter_context(faults.drop_of_group(cluster.node(b), GROUP, cluster.node(a)))
        return check(cluster, job, python=python)


def test_pair_of_nodes_that_hangs_is_found_by_bisection(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run(cluster, warm, tmp_path, ("node2", "node3"))
    finding = checked.only("SMK001")
    assert sorted(finding["nodes"]) == ["node2", "node3"], checked.text
    assert "hang together, and each of them works with another node" in finding["message"]
    assert not checked.found("LNK001")


def test_node_that_hangs_with_all_others_is_found_by_bisection(cluster: Cluster, warm: str, tmp_path: Path) -> None:
    checked = run(cluster, warm, tmp_path, ("node4", "node2"), ("node4", "node3"))
    finding = checked.only("SMK001")
    assert "node4" in finding["nodes"], checked.text
    assert "smaller groups tried" in finding["message"]


@pytest.mark.alone
def test_a_node_with_part_of_a_core_is_named_as_a_straggler(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.cpu_quota(cluster.node("node3"), 0.3):
        checked = check(cluster, job)
    waits = [
        window["waited"] - window["held_back"]
        for record in checked.recording.facts
        if record.value and record.request.group.startswith("smoke") and record.request.node != "node3"
        for window in record.value["windows"]
    ]
    if statistics.median(waits) > 0.6:
        pytest.skip("so much else runs on this machine that no rank gets more than the quota")
    finding = checked.only("SMK005")
    assert finding["nodes"] == ["node3"] and finding["severity"] == "warning", checked.text
    assert "times as long as the median rank" in finding["message"]
    assert "quota held it back" in finding["message"]
