"""Without any fact no check passes, and a check that requested facts is not `not-applicable`."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.config.resolve import jobs_in
from preflight.model.configuration import STAGES
from preflight.model.findings import Status
from preflight.model.recording import FactRecord, Facts, Fleet, Node, NodeRecord, Unavailable
from preflight.plugins import registry

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: These judge whether nodes were reached, which is known without facts.
OF_NODES = {"NOD001", "NOD002"}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir() if (path / "good").is_dir()))
def test_no_check_passes_without_facts(example: str) -> None:
    (job,) = jobs_in([EXAMPLES / example / "good"], root=EXAMPLES)
    fleet = Fleet(tuple(NodeRecord(Node(f"node{index + 1}", index)) for index in range(2)))
    denied: dict[str, FactRecord] = {}
    asking: set[str] = set()
    for stage in STAGES:
        facts = Facts(tuple(denied.values()))
        for check in registry.checks():
            for request in check.plan(job, fleet, facts) if check.when == stage else ():
                asking.add(check.meta.id)
                denied[request.key] = FactRecord(request, None, Unavailable("denied", "permission denied"), 0.0, 1.0)
    facts = Facts(tuple(denied.values()))
    assert asking
    for check in registry.checks():
        if check.meta.id in OF_NODES:
            continue
        said = {verdict.status for verdict in check.judge(job, fleet, facts)}
        assert Status.PASS not in said, check.meta.id
        if check.meta.id in asking:
            assert said & {Status.UNKNOWN, Status.FAIL}, f"{check.meta.id} asked for facts, got none, and said {said}"
