"""Nodes that do not answer, and clocks that disagree."""

from __future__ import annotations

from dataclasses import replace

from preflight.outcome import Status
from preflight.recording import Fleet
from preflight_checks.clocks import clock_spread
from preflight_checks.nodes import node_unreachable

from .build import facts, fleet, job, judge, one, statuses


def with_clocks(*offsets: float | None, round_trip_s: float = 0.01) -> Fleet:
    records = fleet(len(offsets)).records
    return Fleet(
        tuple(
            replace(r, clock_offset_s=o, round_trip_s=round_trip_s)
            for r, o in zip(records, offsets, strict=True)
        )
    )


def test_a_silent_node_is_named_with_the_words_of_ssh() -> None:
    verdicts = judge(node_unreachable, job(), fleet(4, node3="Connection refused"), facts())
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node3",)
    assert "Connection refused" in found.message and "node3" in found.remedy
    assert sum(v.status is Status.PASS for v in verdicts) == 3


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
