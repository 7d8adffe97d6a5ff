"""Shared plans: the requested nodes, the conditions, and the verdict on one machine."""

from __future__ import annotations

from preflight.model.findings import Status
from preflight.model.recording import Facts
from preflight.plugins.authoring import Verdict
from preflight_checks.plans import combined, multi_node, multi_node_facts, on_every_node, several_nodes
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


def test_one_machine_is_not_compared() -> None:
    verdicts: list[Verdict] = []

    def judge(nodes: int) -> bool:
        steps = multi_node_facts(fleet(nodes), Facts(), clock, "clocks")
        while True:
            try:
                verdicts.append(next(steps))
            except StopIteration as end:
                return bool(end.value)

    assert judge(1) is False and [verdict.status for verdict in verdicts] == [Status.NOT_APPLICABLE]
    verdicts.clear()
    assert judge(2) is True and verdicts == []
