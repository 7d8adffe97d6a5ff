"""Nodes that do not answer, and clocks that disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.job import OneOf, Unresolved
from preflight.outcome import Status
from preflight.recording import Fleet
from preflight_checks.clocks import clock_spread
from preflight_checks.nodes import node_count_differs, node_unreachable

from .build import facts, fleet, job, judge, one, statuses


def with_clocks(*offsets: float | None, round_trip_s: float = 0.01) -> Fleet:
    records = fleet(len(offsets)).records
    return Fleet(
        tuple(replace(r, clock_offset_s=o, round_trip_s=round_trip_s) for r, o in zip(records, offsets, strict=True))
    )


def test_a_silent_node_is_named_with_the_words_of_ssh() -> None:
    verdicts = judge(node_unreachable, job(), fleet(4, node3="Connection refused"), facts())
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node3",)
    assert "Connection refused" in found.message and "node3" in found.remedy
    assert sum(v.status is Status.PASS for v in verdicts) == 3


@pytest.mark.parametrize(("given", "says"), [(3, "3 were given"), (5, "not part of the job"), (1, "1 was given")])
def test_fewer_or_more_nodes_than_the_job_has(given: int, says: str) -> None:
    found = one(judge(node_count_differs, job(nodes=4), fleet(given), facts()), Status.FAIL)
    assert says in found.message and "nodes=4" in found.message


def test_as_many_nodes_as_the_job_has_pass() -> None:
    assert statuses(judge(node_count_differs, job(nodes=4), fleet(4), facts())) == {"pass"}


@pytest.mark.parametrize("nodes", [1, "2:4", Unresolved("$N comes from outside"), OneOf((2, 4))])
def test_a_number_of_nodes_that_is_not_certain_is_left_alone(nodes: object) -> None:
    judged = judge(node_count_differs, job(nodes=nodes), fleet(3), facts())
    assert statuses(judged) == {"not-applicable"}


def test_clocks_within_a_second_pass() -> None:
    assert statuses(judge(clock_spread, job(), with_clocks(0.0, 0.2, -0.3), facts())) == {"pass"}


def test_the_clock_that_is_off_is_named() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, 0.0, 300.0, 0.0), facts()), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "300" in found.message and "ahead" in found.message and "certificates" in found.message


def test_a_slow_answer_is_no_wrong_clock() -> None:
    slow = with_clocks(0.0, 0.0, 1.5, round_trip_s=2.0)
    assert statuses(judge(clock_spread, job(), slow, facts())) == {"pass"}


def test_a_clock_nobody_compared_is_unknown() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, None, 0.0), facts()), Status.UNKNOWN)
    assert found.subject == "node1"
