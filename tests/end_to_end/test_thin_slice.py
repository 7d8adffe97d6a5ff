"""The thin slice of the real thing that the gate runs: checks of two nodes over ssh, each kind of outcome once.

Everything else that needs daemons, virtual nodes or training processes is marked `thorough`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.faults import services as ranks
from tests.cluster.fixtures import require_virtual_nodes
from tests.end_to_end.head_command import (
    JOB,
    SCRIPT,
    SERVER_JOB,
    SERVER_SCRIPT,
    THIS_CHECKOUT,
    check,
    give_shards,
    write_job,
)

TWO_NODES = JOB.replace("--nnodes=4", "--nnodes=2")
#: A server and a worker on each node.
TWO_SERVERS = SERVER_JOB.replace("10.77.0.3:6171,10.77.0.4:6171", "10.77.0.1:6171,10.77.0.2:6171")
#: Generous: a busy machine may be slow, and a slow run is not what these tests are about.
OPTIONS = ("--hosts=node[1-2]", "--smoke-deadline", "240")
SECRET = "s3cret-of-this-test"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Two nodes with the same shards."""
    require_virtual_nodes()
    with Cluster(2) as cluster:
        give_shards(cluster.nodes)
        yield cluster


def passed(report: dict[str, list[dict[str, str]]]) -> set[str]:
    return {outcome["id"] for outcome in report["outcomes"] if outcome["status"] == "pass"}


def test_a_healthy_collective_job_is_go(nodes: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checked = check(nodes, write_job(tmp_path, TWO_NODES, SCRIPT), *OPTIONS)
    assert (checked.code, checked.report["verdict"]) == (0, "go"), checked.text
    assert {"NOD001", "LNK001", "SMK001"} <= passed(checked.report), checked.text


def test_a_healthy_job_of_two_servers_and_two_workers_is_go(nodes: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checked = check(nodes, write_job(tmp_path, TWO_SERVERS, SERVER_SCRIPT), *OPTIONS)
    assert (checked.code, checked.report["verdict"]) == (0, "go"), checked.text
    assert {"NOD001", "SMK021"} <= passed(checked.report), checked.text
    assert "servers 0, 1 and workers 0, 1 on 2 nodes (async, as in the job)" in checked.text


def test_a_node_with_other_shards_and_a_secret(nodes: Cluster, tmp_path: Path) -> None:
    nodes.node("node2").must(["rm", "/srv/data/shards/part-00003"])
    try:
        with ranks.session_variables(*nodes.nodes, WANDB_API_KEY=SECRET):
            checked = check(nodes, write_job(tmp_path, TWO_NODES, SCRIPT), *OPTIONS, "--until", "node")
    finally:
        give_shards(nodes.nodes)
    assert (checked.code, checked.report["verdict"]) == (1, "no-go"), checked.text
    errors = [finding for finding in checked.report["findings"] if finding["severity"] == "error"]
    assert {node for finding in errors for node in finding["nodes"]} == {"node2"}, checked.text
    recorded = (tmp_path / "recording.json").read_text()
    assert SECRET not in recorded + (tmp_path / "report.json").read_text() + checked.text + checked.progress
    # The same verdict from the recording, without a node.
    command = [sys.executable, "-m", "preflight", "judge", str(tmp_path / "recording.json"), "--output", "json"]
    judged = subprocess.run(
        command, env=os.environ | THIS_CHECKOUT, capture_output=True, text=True, timeout=60, check=False
    )
    assert judged.returncode == 1, judged.stderr
    assert json.loads(judged.stdout)["findings"] == checked.report["findings"]
