"""Secrets of nodes are in no output of a check, but differences between them are still found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.faults import context as ranks
from tests.end_to_end.head_command import JOB, check, give_shards, write_job

pytestmark = pytest.mark.thorough
OURS, THEIRS, IN_JOB = "s3cret-of-node2", "s3cret-of-the-others", "abcdef0123456789-in-the-job"


def test_secrets_of_nodes_are_compared_and_never_written(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, f"export WANDB_API_KEY={IN_JOB}\n{JOB}")
    others = [node for node in cluster.nodes if node.name != "node2"]
    with (
        ranks.session_variables(
            *others, PADDLE_ACCESS_KEY=THEIRS, WANDB_API_KEY=THEIRS, UCX_URL=f"http://me:{THEIRS}@a/"
        ),
        ranks.session_variables(cluster.node("node2"), PADDLE_ACCESS_KEY=OURS, WANDB_API_KEY=OURS),
    ):
        checked = check(cluster, job, "--until", "node")
    found = [finding for finding in checked.found("ENV020") if "PADDLE_ACCESS_KEY" in finding["message"]]
    assert [finding["nodes"] for finding in found] == [["node2"]] and "not shown" in found[0]["message"]
    written = "".join((tmp_path / name).read_text() for name in ("recording.json", "report.json")) + checked.text
    for secret in (OURS, THEIRS, IN_JOB):
        assert secret not in written
    seen = [fact.value for fact in checked.recording.facts if fact.request.probe.endswith("environment:environment")]
    hashes = {value["digests"]["PADDLE_ACCESS_KEY"] for value in seen}
    assert len(hashes) == 2, "two values, two hashes: parity is judged by them"
