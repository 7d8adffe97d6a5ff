"""Shared plans: the requested nodes, the conditions, and judgements with a condition."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, passed
from preflight_checks.plans import combined, multi_node, on_every_node, only_if, several_nodes
from preflight_checks.probes.clock import clock
from preflight_checks.probes.machine import identity
from preflight_checks.requirements import gpu_claims
from tests.checks.check_builders import fleet, job


def test_every_reached_node_gets_every_probe() -> None:
    plan = on_every_node(clock, identity, params={"a": 1}, context=True, required=True, deadline_s=2.0)
    requests = list(plan(job(), fleet(2), Facts()))
    assert [(request.node, request.probe.rpartition(":")[2]) for request in requests] == [
        ("node0", "clock"),
        ("node0", "identity"),
        ("node1", "clock"),
        ("node1", "identity"),
    ]
    assert all(r.params == {"a": 1} and r.context and r.required and r.deadline_s == 2.0 for r in requests)


def test_a_condition_or_missing_claims_request_nothing() -> None:
    assert not list(on_every_node(clock, when=multi_node)(job(), fleet(1), Facts()))
    assert not list(on_every_node(clock, needed_by=gpu_claims)(job(), fleet(2), Facts()))
    assert not list(combined(on_every_node(clock), when=several_nodes)(job(), fleet(1), Facts()))
    needed = list(on_every_node(clock, needed_by=gpu_claims)(job(backend="nccl"), fleet(1), Facts()))
    assert needed[0].because


def test_a_judgement_is_asked_only_if_its_condition_holds() -> None:
    @only_if(multi_node, "clocks", "the job runs on one machine")
    def judge(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        yield passed("clocks")

    assert [verdict.status for verdict in judge(job(), fleet(1), Facts())] == [Status.NOT_APPLICABLE]
    assert [verdict.status for verdict in judge(job(), fleet(2), Facts())] == [Status.PASS]
