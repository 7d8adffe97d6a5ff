"""Ranks that can or cannot start on each node."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Status
from preflight.model.recording import FactRecord, Unavailable
from preflight.runner.preparation import IN_CONTAINER, OUTSIDE
from preflight_checks.context.entry import ranks_cannot_start
from preflight_checks.probes.installed import Installed, installed
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

GOOD = Installed("3.11.7", "/env/bin/python3", "/usr/bin/python3.11", "/env", "venv", "x86_64", "cpython-311-x86_64")
ABSENT = "the job context cannot be entered: `/env/bin/python3` (the job) cannot be run: No such file or directory"


def closed(node: str, reason: str, provenance: str = "interpreter /env/bin/python3 (--python)") -> FactRecord:
    made = fact(installed, node, Unavailable("context", reason), context=True)
    return replace(made, provenance=provenance)


def good(count: int) -> list[FactRecord]:
    return [fact(installed, f"node{index}", GOOD, context=True) for index in range(count)]


def test_every_node_is_entered_in_the_job_context() -> None:
    asked = plan(ranks_cannot_start, job(), fleet(3))
    assert [request.node for request in asked] == ["node0", "node1", "node2"]
    assert all(request.context for request in asked)


def test_a_node_without_the_interpreter_is_named() -> None:
    seen = facts(*good(2), closed("node2", ABSENT))
    found = one(judge(ranks_cannot_start, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "No such file" in found.message and "on the other nodes" in found.message


def test_an_interpreter_missing_everywhere_is_an_error() -> None:
    seen = facts(*(closed(f"node{index}", ABSENT) for index in range(3)))
    found = one(judge(ranks_cannot_start, job(), fleet(3), seen), Status.FAIL)
    assert len(found.nodes) == 3


def test_an_old_interpreter_is_an_error_only_beside_newer_ones() -> None:
    old = "`/env/bin/python3` is older than Python 3.8"
    found = one(judge(ranks_cannot_start, job(), fleet(2), facts(*good(1), closed("node1", old))), Status.FAIL)
    assert "3.8" in found.remedy
    everywhere = facts(*(closed(f"node{index}", old) for index in range(2)))
    said = one(judge(ranks_cannot_start, job(), fleet(2), everywhere), Status.UNKNOWN)
    assert not said.required


def test_setup_lines_that_fail_everywhere_are_a_warning() -> None:
    module = "`python3` ended with 127 before its Python started: bash: module: command not found"
    everywhere = facts(*(closed(f"node{index}", module) for index in range(2)))
    assert one(judge(ranks_cannot_start, job(), fleet(2), everywhere), Status.UNKNOWN).required
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), facts(*good(1), closed("node1", module)))) == {"fail"}


def test_an_unknown_context_is_not_a_fault() -> None:
    nothing = "nothing names the interpreter the ranks run with; pass --python PATH"
    seen = facts(*(closed(f"node{index}", nothing, provenance="") for index in range(2)))
    said = one(judge(ranks_cannot_start, job(), fleet(2), seen), Status.UNKNOWN)
    assert not said.required and "--python" in said.message


def test_a_node_that_times_out_is_unknown() -> None:
    seen = facts(*good(1), fact(installed, "node1", TIMEOUT, context=True))
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), seen)) == {"unknown"}
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), facts(*good(2)))) == {"pass"}


def test_a_container_that_is_not_entered_makes_the_verdict_incomplete() -> None:
    reason = f"{IN_CONTAINER} docker x:1, which preflight cannot enter yet"
    seen = facts(*(fact(installed, f"node{i}", Unavailable("context", reason), context=True) for i in range(2)))
    found = one(judge(ranks_cannot_start, job(), fleet(2), seen), Status.UNKNOWN)
    assert found.required and found.nodes == ("node0", "node1")


def test_an_interpreter_outside_of_the_container_is_stated() -> None:
    records = [replace(record, provenance=f"interpreter python3, {OUTSIDE} docker x:1") for record in good(2)]
    found = one(judge(ranks_cannot_start, job(), fleet(2), facts(*records)), Status.UNKNOWN)
    assert not found.required and "was examined on the host" in found.message
