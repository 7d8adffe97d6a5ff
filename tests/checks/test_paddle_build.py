"""Releases of Paddle whose wheels hold no parameter server."""

from __future__ import annotations

import pytest

from preflight.outcome import Severity, Status
from preflight.recording import FactRecord
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.servers.paddle_build import paddle_without_parameter_server as check

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

SERVERS = job(ps_mode=True)


def has(node: str, version: str) -> FactRecord:
    versions = {"paddlepaddle": version} if version else {}
    return fact(packages, node, Packages("3.11.2", "/usr/bin/python3", versions), context=True)


@pytest.mark.parametrize("version", ["3.1.1", "3.3.1"])
def test_a_wheel_without_servers_is_named_with_its_nodes(version: str) -> None:
    seen = facts(has("node0", "2.6.2"), has("node1", version))
    verdict = one(judge(check, SERVERS, fleet(2), seen), Status.FAIL)
    assert verdict.nodes == ("node1",)
    assert f"paddlepaddle {version}" in verdict.message and "3.1.1" in verdict.message
    assert verdict.severity in (None, Severity.ERROR)


@pytest.mark.parametrize("version", ["2.6.2", "3.0.0", "3.1.0", "3.2.0+servers", "own-build"])
def test_older_wheels_and_builds_of_ones_own_pass(version: str) -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(has("node0", version)))) == {"pass"}


def test_what_cannot_be_seen_is_unknown_and_what_does_not_matter_is_not_asked() -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(fact(packages, "node0", TIMEOUT, context=True)))) == {
        "unknown"
    }
    assert statuses(judge(check, SERVERS, fleet(1), facts(has("node0", "")))) == {"not-applicable"}
    assert plan(check, job(), fleet(1)) == []
    assert statuses(judge(check, job(), fleet(1), facts(has("node0", "3.3.1")))) == {"not-applicable"}
    assert len(plan(check, SERVERS, fleet(2))) == 2
