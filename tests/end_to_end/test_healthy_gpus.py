"""Nodes with healthy GPUs, driver and framework give no finding, and every check of them has an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import check, give_shards, write_job
from tests.fault_matrix.fault import GPU_SCRIPT
from tests.fault_matrix.gpus import GPU_JOB

pytestmark = pytest.mark.thorough

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
