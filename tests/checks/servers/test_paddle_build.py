"""Releases of Paddle whose wheels have no parameter server."""

from __future__ import annotations

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.servers import paddle_without_parameter_server as check
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

SERVERS = job(ps_mode=True)


def paddle_at(node: str, version: str) -> FactRecord:
    versions = {"paddlepaddle": version} if version else {}
    return fact(packages, node, Packages("3.11.2", "/usr/bin/python3", versions), context=True)


@pytest.mark.parametrize("version", ["3.1.1", "3.3.1"])
def test_a_wheel_without_servers_names_its_nodes(version: str) -> None:
    seen = facts(paddle_at("node0", "2.6.2"), paddle_at("node1", version))
    verdict = one(judge(check, SERVERS, fleet(2), seen), Status.FAIL)
    assert verdict.nodes == ("node1",)
    assert f"paddlepaddle {version}" in verdict.message and "3.1.1" in verdict.message
    assert verdict.severity in (None, Severity.ERROR)


@pytest.mark.parametrize("version", ["2.6.2", "3.0.0", "3.1.0", "3.2.0+servers", "own-build"])
def test_older_wheels_and_custom_builds_pass(version: str) -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(paddle_at("node0", version)))) == {"pass"}


def test_missing_facts_are_unknown_and_other_jobs_request_nothing() -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(fact(packages, "node0", TIMEOUT, context=True)))) == {
        "unknown"
    }
    assert statuses(judge(check, SERVERS, fleet(1), facts(paddle_at("node0", "")))) == {"not-applicable"}
    assert plan(check, job(), fleet(1)) == []
    assert statuses(judge(check, job(), fleet(1), facts(paddle_at("node0", "3.3.1")))) == {"not-applicable"}
    assert len(plan(check, SERVERS, fleet(2))) == 2
