"""Where nothing can be observed, nothing passes, and no check calls itself not applicable that asked for facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import api, catalog
from preflight.judgement import STAGES
from preflight.outcome import Status
from preflight.recording import FactRecord, Facts, Fleet, Node, NodeRecord, Unavailable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: These judge how reaching the nodes went, which is known.
OF_NODES = {"NOD001", "NOD002"}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir() if (path / "good").is_dir()))
def test_what_cannot_be_observed_is_unknown(example: str) -> None:
    (job,) = api.jobs_in([EXAMPLES / example / "good"], root=EXAMPLES)
    fleet = Fleet(tuple(NodeRecord(Node(f"node{index + 1}", index)) for index in range(2)))
    denied: dict[str, FactRecord] = {}
    asking: set[str] = set()
    for stage in STAGES:
        facts = Facts(tuple(denied.values()))
        for check in catalog.checks():
            for request in check.plan(job, fleet, facts) if check.when == stage else ():
                asking.add(check.meta.id)
                denied[request.key] = FactRecord(request, None, Unavailable("denied", "permission denied"), 0.0, 1.0)
    facts = Facts(tuple(denied.values()))
    assert asking
    for check in catalog.checks():
        if check.meta.id in OF_NODES:
            continue
        said = {verdict.status for verdict in check.judge(job, fleet, facts)}
        assert Status.PASS not in said, check.meta.id
        if check.meta.id in asking:
            assert said & {Status.UNKNOWN, Status.FAIL}, f"{check.meta.id} asked for facts, got none, and said {said}"
