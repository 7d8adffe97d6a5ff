"""Healthy nodes give no finding, however often they are checked and however busy the machine is.

`PREFLIGHT_SOAK=20` runs each case so often; without it, once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import check, give_shards, write_job
from tests.fault_matrix.fault import GPU_SCRIPT
from tests.fault_matrix.gpus import GPU_JOB

pytestmark = pytest.mark.thorough


ROUNDS = int(os.environ.get("PREFLIGHT_SOAK", "1"))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """While the block runs, this many processes each occupy a processor."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.timeout(120 * ROUNDS)
@pytest.mark.parametrize("loops", [0, os.cpu_count() or 1], ids=["idle", "busy"])
def test_healthy_nodes_give_no_finding(cluster: Cluster, tmp_path: Path, loops: int) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    told: list[str] = []
    with busy(loops):
        for number in range(ROUNDS):
            checked = check(cluster, job, "--until", "link")
            findings = [f for f in checked.report["findings"] if f["severity"] != "info"]
            told += [f"round {number}: {f['id']} {f['message']}" for f in findings]
            unknown = [o for o in checked.report["outcomes"] if o["status"] == "unknown" and o["required"]]
            told += [f"round {number}: {o['id']} {o['subject']}: {o['reason']}" for o in unknown]
    assert told == []


SIXTY_FOUR = 64


@pytest.mark.thorough
@pytest.mark.alone
def test_sixty_four_nodes_are_checked(tmp_path: Path) -> None:
    """On one machine with a few cores that is about a thousand processes: facts may be late, but no node may be
    lost."""
    with Cluster(SIXTY_FOUR) as cluster:
        give_shards(cluster.nodes)
        job = write_job(tmp_path)
        options = ("--hosts", f"node[1-{SIXTY_FOUR}]", "--until", "node")
        checked = check(cluster, job, *options, "--open-deadline", "30", "--node-deadline", "60")
        left = cluster.head.run(["sh", "-c", "ps -eo args | grep -c '[p]reflight-'"], timeout=20)
    nodes = checked.recording.nodes
    assert [node.problem for node in nodes if node.problem] == []
    assert len({fact.request.node for fact in checked.recording.facts if fact.unavailable is None}) == SIXTY_FOUR
    assert left.stdout.strip() == "0", left


# Nodes with healthy GPUs, driver and framework give no finding, and every check of them has an answer.


#: Facts that virtual nodes lack: their kernel log is the machine's and may be unreadable, and their cards have no
#: NVLinks or NVSwitches.
MAY_BE_SILENT = {"GPU017", "GPU022", "GPU023"}


def test_healthy_gpus_give_no_finding(gpu_cluster: Cluster, tmp_path: Path) -> None:
    give_shards(gpu_cluster.nodes)
    job = write_job(tmp_path, GPU_JOB, GPU_SCRIPT)
    with faults.installed(gpu_cluster.nodes, faults.Torch()):
        checked = check(gpu_cluster, job, "--until", "node")
    found = [f for f in checked.report["findings"] if f["id"][:3] in ("GPU", "VER")]
    assert not found, checked.text
    asked = {o["id"]: set() for o in checked.report["outcomes"] if o["id"][:3] in ("GPU", "VER")}
    for outcome in checked.report["outcomes"]:
        if outcome["id"] in asked:
            asked[outcome["id"]].add(outcome["status"])
    silent = {id for id, statuses in asked.items() if "unknown" in statuses}
    assert silent <= MAY_BE_SILENT, checked.text
    for id in ("GPU011", "GPU013", "GPU014", "GPU015", "GPU016", "GPU018", "GPU019", "GPU020", "GPU021", "GPU024"):
        assert "pass" in asked[id], id
    for id in ("GPU025", "VER001", "VER002", "VER004"):
        assert "pass" in asked[id], id
