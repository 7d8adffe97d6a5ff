"""Nodes that do not answer, and clocks that disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import OneOf, Unresolved
from preflight.model.recording import HEAD_PAUSED, FactRecord, Fleet, Origin, Unavailable
from preflight_checks.host.machines import clock_not_kept, clock_spread
from preflight_checks.nodes import named_node_absent, no_nodes, node_count_differs, node_not_examined, node_unreachable
from preflight_checks.probes.clock import Clock, clock
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses


def with_clocks(*offsets: float | None, round_trip_s: float = 0.01) -> Fleet:
    records = fleet(len(offsets)).records
    return Fleet(
        tuple(replace(r, clock_offset_s=o, round_trip_s=round_trip_s) for r, o in zip(records, offsets, strict=True))
    )


def test_a_silent_node_is_named_with_the_error_of_ssh() -> None:
    verdicts = judge(node_unreachable, job(), fleet(4, node3="Connection refused"), facts())
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node3",)
    assert "Connection refused" in found.message and "node3" in found.remedy
    assert sum(v.status is Status.PASS for v in verdicts) == 3


def test_a_node_lost_to_a_pause_of_the_head_is_not_blamed() -> None:
    broken = fleet(4, node3="preflight itself did not run for 12 s")
    records = (replace(r, problem_kind=HEAD_PAUSED) if r.problem else r for r in broken.records)
    verdicts = judge(node_unreachable, job(), replace(broken, records=tuple(records)), facts())
    assert not [v for v in verdicts if v.status is Status.FAIL]
    open_one = one(verdicts, Status.UNKNOWN)
    assert open_one.required and open_one.nodes == ("node3",) and "12 s" in open_one.message


@pytest.mark.parametrize(("given", "says"), [(3, "3 were given"), (5, "not part of the job"), (1, "1 was given")])
def test_fewer_or_more_nodes_than_the_job_has(given: int, says: str) -> None:
    found = one(judge(node_count_differs, job(nodes=4), fleet(given), facts()), Status.FAIL)
    assert says in found.message and "nodes=4" in found.message


def test_nodes_of_the_job_that_were_not_given_are_unknown() -> None:
    left = one(judge(node_count_differs, job(nodes=4), fleet(3), facts()), Status.UNKNOWN)
    assert left.required and left.subject == "1 of the job's 4 nodes"
    for seen in (fleet(5), local_fleet(2)):
        assert statuses(judge(node_count_differs, job(nodes=4), seen, facts())) == {"fail"}


def test_the_right_number_of_nodes_passes() -> None:
    assert statuses(judge(node_count_differs, job(nodes=4), fleet(4), facts())) == {"pass"}


@pytest.mark.parametrize("nodes", [1, "2:4", Unresolved("$N is set by the caller"), OneOf((2, 4))])
def test_an_uncertain_number_of_nodes_is_not_judged(nodes: object) -> None:
    judged = judge(node_count_differs, job(nodes=nodes), fleet(3), facts())
    assert statuses(judged) == {"not-applicable"}


def in_allocation(count: int) -> Fleet:
    return replace(fleet(count), executor="slurm", origin=Origin("executor", "Slurm job 71", "SLURM_JOB_ID=71 is set"))


def test_too_small_an_allocation_names_the_missing_ranks() -> None:
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(2), facts()), Status.FAIL)
    assert found.severity is None
    assert "Slurm job 71 holds only 2, node0, node1: node ranks 2 to 3 are missing" in found.message
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(5), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_without_nodes_the_reason_is_a_required_unknown() -> None:
    nobody = Fleet((), "slurm", Origin("executor", "slurm", "--on slurm", "no node is free", "missing"))
    found = one(judge(no_nodes, job(nodes=4), nobody, facts()), Status.UNKNOWN)
    assert found.required and found.message == "no node is free"
    assert statuses(judge(node_count_differs, job(nodes=4), nobody, facts())) == {"unknown"}
    assert statuses(judge(no_nodes, job(), in_allocation(2), facts())) == {"pass"}
    assert statuses(judge(no_nodes, job(), fleet(2), facts())) == {"not-applicable"}


def test_a_host_outside_the_allocation_is_named() -> None:
    listed = job(hosts=("node0", "me@node1.example.org", "node7", "10.0.0.9"))
    found = one(judge(named_node_absent, listed, in_allocation(4), facts()), Status.FAIL)
    assert found.nodes == ("node7",)
    assert statuses(judge(named_node_absent, job(hosts=("node1",)), in_allocation(4), facts())) == {"pass"}
    assert statuses(judge(named_node_absent, listed, fleet(4), facts())) == {"not-applicable"}


def test_the_suggested_command_uses_the_same_executor() -> None:
    broken = replace(fleet(2, node1="no answer"), executor="slurm")
    found = one(judge(node_unreachable, job(), broken, facts()), Status.FAIL)
    assert "`srun --overlap -N1 -n1 -w node1 true`" in found.remedy


def test_clocks_within_a_second_pass() -> None:
    assert statuses(judge(clock_spread, job(), with_clocks(0.0, 0.2, -0.3), facts())) == {"pass"}


def test_a_clock_that_is_off_is_named() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, 0.0, 300.0, 0.0), facts()), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "300" in found.message and "ahead" in found.message and "certificates" in found.message


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    slow = with_clocks(0.0, 0.0, 1.5, round_trip_s=2.0)
    assert statuses(judge(clock_spread, job(), slow, facts())) == {"pass"}


def test_a_clock_that_was_not_compared_is_unknown() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, None, 0.0), facts()), Status.UNKNOWN)
    assert found.subject == "node1"


def test_the_offset_decides_the_severity() -> None:
    def severity(offset: float, **claims: str) -> Severity | None:
        return one(judge(clock_spread, job(**claims), with_clocks(0.0, 0.0, offset), facts()), Status.FAIL).severity

    assert severity(2.0) is Severity.WARNING and severity(29.0) is Severity.WARNING
    assert severity(31.0) is None and severity(-300.0) is None


def test_a_dynamic_rendezvous_tolerates_fifteen_seconds() -> None:
    met = job(rendezvous_backend="c10d")
    found = one(judge(clock_spread, met, with_clocks(0.0, 0.0, 20.0), facts()), Status.FAIL)
    assert found.severity is None and "declares a node that is 15 s behind dead" in found.message
    assert one(judge(clock_spread, met, with_clocks(0.0, 0.0, 10.0), facts()), Status.FAIL).severity is Severity.WARNING
    static = job(rendezvous_backend="static")
    verdicts = judge(clock_spread, static, with_clocks(0.0, 0.0, 20.0), facts())
    assert one(verdicts, Status.FAIL).severity is Severity.WARNING


def test_with_two_nodes_the_clock_that_agrees_with_ours_is_right() -> None:
    assert one(judge(clock_spread, job(), with_clocks(40.0, 0.1), facts()), Status.FAIL).nodes == ("node0",)


def clock_at(name: str, **changes: object) -> FactRecord:
    usual = Clock(True, "", ("chronyd",))
    return fact(clock, name, replace(usual, **changes))  # type: ignore[arg-type]


def test_an_unsynchronised_clock_is_named() -> None:
    seen = facts(clock_at("node0"), clock_at("node1", synchronised=False, daemons=()), clock_at("node2"))
    found = one(judge(clock_not_kept, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "no time daemon was found" in found.message


def test_one_machine_has_one_clock() -> None:
    nodes = fleet(2)
    local = replace(nodes, records=tuple(replace(r, node=replace(r.node, address="127.0.0.1")) for r in nodes.records))
    seen = facts(clock_at("node0", synchronised=False), clock_at("node1", synchronised=False))
    assert statuses(judge(clock_not_kept, job(), local, seen)) == {"not-applicable"}


def test_no_synchronised_node_is_information() -> None:
    seen = facts(*(clock_at(f"node{i}", synchronised=False, daemon_says="Not synchronised") for i in range(2)))
    found = one(judge(clock_not_kept, job(), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.INFO and "Not synchronised" in found.message


def test_synchronised_clocks_pass_and_unreadable_ones_are_unknown() -> None:
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(clock_at("node0"), clock_at("node1")))) == {"pass"}
    denied = facts(*(clock_at(f"node{i}", synchronised=None, problem="Operation not permitted") for i in range(2)))
    assert statuses(judge(clock_not_kept, job(), fleet(2), denied)) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(fact(clock, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(1), facts())) == {"not-applicable"}


def answers(node: str, *problems: Unavailable | None) -> list[FactRecord]:
    """One request for each: answered, or unavailable."""
    return [fact(clock, node, problem or Clock(), params={"number": index}) for index, problem in enumerate(problems)]


NO_PROCESS = Unavailable("crashed", "the node cannot start a process: [Errno 11] Resource temporarily unavailable")


def test_a_node_that_cannot_start_processes_is_an_error() -> None:
    seen = facts(*answers("node0", None, None, None), *answers("node1", None, NO_PROCESS, NO_PROCESS, NO_PROCESS))
    verdicts = judge(node_not_examined, job(), fleet(2), seen)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",) and "3 of 4 requests" in found.message and "pids.max" in found.remedy
    assert one(verdicts, Status.PASS).subject == "1 node"


def test_a_node_that_answers_hardly_anything_is_unknown() -> None:
    seen = facts(*answers("node0", TIMEOUT, TIMEOUT, TIMEOUT, None))
    found = one(judge(node_not_examined, job(), fleet(1), seen), Status.UNKNOWN)
    assert found.required and found.nodes == ("node0",) and "3 of 4 requests were not answered" in found.message


def test_a_few_missing_answers_leave_the_node_examined() -> None:
    missing = Unavailable("missing", "there is no such file")
    seen = facts(*answers("node0", TIMEOUT, None, None, None), *answers("node1", missing, missing, missing, None))
    assert statuses(judge(node_not_examined, job(), fleet(2), seen)) == {"pass"}
    nothing = facts(*answers("node0", missing, missing))
    assert not one(judge(node_not_examined, job(), fleet(1), nothing), Status.UNKNOWN).required
    denied = facts(*answers("node0", *[Unavailable("denied", "it is not permitted")] * 3))
    assert one(judge(node_not_examined, job(), fleet(1), denied), Status.UNKNOWN).required
    once = facts(*answers("node0", NO_PROCESS, None, None, None))
    assert one(judge(node_not_examined, job(), fleet(1), once), Status.UNKNOWN).required
