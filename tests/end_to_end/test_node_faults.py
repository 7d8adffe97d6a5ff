"""If a node does not answer, the smoke run does not continue without it. Other faults: `tests/fault_matrix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import check, give_shards, write_job

pytestmark = pytest.mark.thorough


def test_smoke_run_requires_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.sshd_stopped(cluster.node("node4")):
        checked = check(cluster, job)
    assert checked.only("NOD001")["nodes"] == ["node4"]
    assert checked.code == 1
    smoke = [stage for stage in checked.recording.stages if stage.name == "smoke"]
    assert "node4" in smoke[0].skipped
