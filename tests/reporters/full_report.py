"""One report with everything that a format shows: findings, undecided checks, passes, suppressions."""

from __future__ import annotations

from dataclasses import replace

from preflight.engine.report import Report
from preflight.model.configuration import Configuration
from preflight.model.findings import Severity
from preflight.model.job import Suppression
from preflight.model.recording import StageRecord
from preflight.plugins.authoring import failed, not_applicable, passed, unknown
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span


def everything(**configured: object) -> Report:
    """An error at a location, a warning on two nodes, an undecided check, a pass, one suppressed and one not
    applicable.
    """
    comment = Suppression("run.sh", 9, ("TST002",), "tried, works here", span(line=9))
    place = span("jobs/train, v2.sbatch", 3)
    rules = [
        make_rule(
            lambda _: [failed("run.sh:3", "4 but 2\n100% wrong", at=place, also=[(span(), "2: here")], remedy="Say 2")]
        ),
        make_rule(lambda _: [failed("run.sh:9", "quiet", at=span(line=9), remedy="-")], "TST002"),
        make_rule(lambda _: [passed("run.sh"), not_applicable("x.py", "no launch")], "TST003"),
    ]
    checks = [
        make_check(
            lambda subject, fleet, facts: [
                failed(node, "slow link", at=seen(node), nodes=[node], remedy="-") for node in ("node1", "node2")
            ],
            severity=Severity.WARNING,
        ),
        make_check(
            lambda subject, fleet, facts: [
                unknown("GPUs of node3", "no answer in time", nodes=("node3",), required=True, at=span(line=4)),
                unknown("RDMA", "no root"),
            ],
            "TST502",
        ),
    ]
    recording = replace(
        make_recording(job(suppressions=(comment,)), verb="check", configuration=Configuration(**configured)),  # type: ignore[arg-type]
        nodes=reached("node1", "node2", "node3"),
        stages=(
            StageRecord("open", 0.0, 0.25),
            StageRecord("node", 0.25, 2.0),
            StageRecord("link", 2.0, 2.0, "no peer"),
        ),
    )
    return judged(recording, rules, checks)
