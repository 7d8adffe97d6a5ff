"""A node that does not answer: the smoke run never silently shrinks the world. Other faults: `tests/fault_matrix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster, faults
from tests.end_to_end.running import check, give_shards, write_job

pytestmark = pytest.mark.cluster


def test_no_smoke_run_without_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path)
    with faults.sshd_stopped(cluster.node("node4")):
        checked = check(cluster, job)
    assert checked.one("NOD001")["nodes"] == ["node4"]
    assert checked.code == 1
    smoke = [stage for stage in checked.recording.stages if stage.name == "smoke"]
    assert "node4" in smoke[0].skipped
