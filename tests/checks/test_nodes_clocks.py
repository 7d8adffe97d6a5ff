"""Nodes that do not answer, and clocks that disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.job import OneOf, Unresolved
from preflight.outcome import Severity, Status
from preflight.recording import FactRecord, Fleet, Origin
from preflight_checks.host.clocks import clock_not_kept, clock_spread
from preflight_checks.nodes import named_node_absent, no_nodes, node_count_differs, node_unreachable
from preflight_checks.probes.clock import Clock, clock

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, statuses


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


def in_allocation(count: int) -> Fleet:
    return replace(fleet(count), executor="slurm", origin=Origin("executor", "Slurm job 71", "SLURM_JOB_ID=71 is set"))


def test_too_small_an_allocation_is_an_error_that_names_the_ranks_left_out() -> None:
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(2), facts()), Status.FAIL)
    assert found.severity is None
    assert "Slurm job 71 holds only 2, node0, node1: node ranks 2 to 3 are missing" in found.message
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(5), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_without_nodes_the_reason_is_an_unknown_that_counts() -> None:
    nobody = Fleet((), "slurm", Origin("executor", "slurm", "--on slurm", "no node is free", "missing"))
    found = one(judge(no_nodes, job(nodes=4), nobody, facts()), Status.UNKNOWN)
    assert found.required and found.message == "no node is free"
    assert statuses(judge(node_count_differs, job(nodes=4), nobody, facts())) == {"unknown"}
    assert statuses(judge(no_nodes, job(), in_allocation(2), facts())) == {"pass"}
    assert statuses(judge(no_nodes, job(), fleet(2), facts())) == {"not-applicable"}


def test_a_host_of_the_files_that_is_not_in_the_allocation_is_named() -> None:
    listed = job(hosts=("node0", "me@node1.example.org", "node7", "10.0.0.9"))
    found = one(judge(named_node_absent, listed, in_allocation(4), facts()), Status.FAIL)
    assert found.nodes == ("node7",)
    assert statuses(judge(named_node_absent, job(hosts=("node1",)), in_allocation(4), facts())) == {"pass"}
    assert statuses(judge(named_node_absent, listed, fleet(4), facts())) == {"not-applicable"}


def test_the_command_to_try_goes_the_way_that_was_gone() -> None:
    broken = replace(fleet(2, node1="no answer"), executor="slurm")
    found = one(judge(node_unreachable, job(), broken, facts()), Status.FAIL)
    assert "`srun --overlap -N1 -n1 -w node1 true`" in found.remedy


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


def test_how_far_off_decides_how_bad_it_is() -> None:
    def severity(offset: float, **claims: str) -> Severity | None:
        return one(judge(clock_spread, job(**claims), with_clocks(0.0, 0.0, offset), facts()), Status.FAIL).severity

    assert severity(2.0) is Severity.WARNING and severity(29.0) is Severity.WARNING
    assert severity(31.0) is None and severity(-300.0) is None


def test_a_dynamic_rendezvous_stands_fifteen_seconds_only() -> None:
    met = job(rendezvous_backend="c10d")
    found = one(judge(clock_spread, met, with_clocks(0.0, 0.0, 20.0), facts()), Status.FAIL)
    assert found.severity is None and "takes a node for dead" in found.message
    assert one(judge(clock_spread, met, with_clocks(0.0, 0.0, 10.0), facts()), Status.FAIL).severity is Severity.WARNING
    static = job(rendezvous_backend="static")
    verdicts = judge(clock_spread, static, with_clocks(0.0, 0.0, 20.0), facts())
    assert one(verdicts, Status.FAIL).severity is Severity.WARNING


def test_of_two_clocks_the_one_that_agrees_with_ours_is_right() -> None:
    assert one(judge(clock_spread, job(), with_clocks(40.0, 0.1), facts()), Status.FAIL).nodes == ("node0",)


def kept(name: str, **changes: object) -> FactRecord:
    usual = Clock(0.0, 0.0, True, 0.01, 0.001, 3.0, "", ("chronyd",))
    return fact(clock, name, replace(usual, **changes))  # type: ignore[arg-type]


def test_a_clock_that_nobody_keeps_is_named_among_kept_ones() -> None:
    seen = facts(kept("node0"), kept("node1", synchronised=False, daemons=()), kept("node2"))
    found = one(judge(clock_not_kept, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "no time daemon is seen" in found.message


def test_where_nobody_is_synchronised_it_is_information() -> None:
    seen = facts(*(kept(f"node{i}", synchronised=False, daemon_says="Not synchronised") for i in range(2)))
    found = one(judge(clock_not_kept, job(), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.INFO and "Not synchronised" in found.message


def test_clocks_that_are_kept_pass_and_those_nobody_may_ask_about_are_unknown() -> None:
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(kept("node0"), kept("node1")))) == {"pass"}
    denied = facts(*(kept(f"node{i}", synchronised=None, problem="Operation not permitted") for i in range(2)))
    assert statuses(judge(clock_not_kept, job(), fleet(2), denied)) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(fact(clock, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(1), facts())) == {"not-applicable"}
