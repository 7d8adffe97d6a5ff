"""Smaller groups of ranks after a run that hung: which are planned, and what the finding says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from preflight.node.child import plain
from preflight.outcome import Status
from preflight.recording import EventRecord, FactRecord, Facts, Unavailable
from preflight.request import Request
from preflight_checks.smoke.smoke import rank_did_not_finish
from preflight_checks.smoke.smoke_trials import plan_trials
from reference_trainer import phases
from reference_trainer.collective import RankReport

from .build import facts, fleet, job, judge, one, plan, stand_ins

JOB = job(backend="gloo", master_addr="node0", master_port=29500)
HUNG = Unavailable("cancelled", "it was cancelled")


def hung(count: int = 4, *, absent: tuple[int, ...] = ()) -> Facts:
    """All ranks are inside a collective that nobody leaves; those in `absent` have not entered it."""
    records, events = [], []
    for request in plan(rank_did_not_finish, JOB, fleet(count)):
        rank = int(request.params["rank"])

        def say(at_s: float, event: str, request: Request = request, **data: Any) -> EventRecord:
            return EventRecord(request.key, request.node, at_s, "child", {"event": event, **data})

        events.append(say(1.0, phases.PHASE, phase=phases.GROUP))
        if rank not in absent:
            events.append(say(2.0, phases.ENTERING, what="sum", collective=1, waiting_for=[]))
        events.extend(say(beat / 2, phases.BEAT, progress=0) for beat in range(3, 40))
        records.append(FactRecord(request, None, HUNG, 0.0, 20.1))
    events.append(EventRecord(records[0].request.key, "node0", 20.0, "head", {"event": phases.DECIDED}))
    return Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))


def tried(seen: Facts, hangs: Callable[[set[str]], bool], count: int = 4, most: int = 10) -> tuple[Facts, int]:
    """Make the trials that are asked for, until no more are."""
    for waves in range(most):
        requests = list(plan_trials(JOB, fleet(count), seen))
        if not requests:
            return seen, waves
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        records = list(seen.records)
        for ranks in groups.values():
            bad = hangs({request.node for request in ranks})
            for request in ranks:
                report = RankReport(request.params["rank"], len(ranks), request.node, "gloo", "cpu", "2.13.0")
                records.append(FactRecord(request, None if bad else plain(report), HUNG if bad else None, 21.0, 30.0))
        seen = Facts(tuple(records), seen.events())
    return seen, most


def test_halves_are_tried_with_ranks_of_their_own_and_only_as_far_as_is_cheap() -> None:
    requests = list(plan_trials(JOB, fleet(4), hung()))
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    assert sorted([r.node for r in ranks] for ranks in groups.values()) == [["node0", "node1"], ["node2", "node3"]]
    for ranks in groups.values():
        assert [r.params["rank"] for r in ranks] == [0, 1] and {r.params["world_size"] for r in ranks} == {2}
        assert {r.params["master_addr"] for r in ranks} == {ranks[0].node}
        assert all(r.params["until"] == phases.EXACT and not r.required and r.deadline_s < 30 for r in ranks)


def test_the_way_between_two_nodes_is_named_instead_of_all_nodes() -> None:
    seen, waves = tried(hung(), lambda group: {"node1", "node2"} <= group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2") and waves == 3
    assert "node1 and node2 hang together, and each of them gets through with another node" in found.message


def test_a_node_that_hangs_with_everybody_is_named() -> None:
    seen, _ = tried(hung(8), lambda group: "node6" in group, 8)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert found.nodes == ("node6",) and "also with a node that is sound otherwise" in found.message


def test_when_only_all_of_them_hang_that_is_said() -> None:
    seen, _ = tried(hung(), lambda group: len(group) == 4)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert len(found.nodes) == 4 and "only all of them together do" in found.message


def test_when_time_was_up_the_smallest_group_so_far_is_told() -> None:
    seen, _ = tried(hung(8), lambda group: "node6" in group, 8, most=1)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert "there was no time to try smaller ones" in found.message and len(found.nodes) == 8


def test_a_rank_that_stood_still_gets_a_second_opinion() -> None:
    seen, _ = tried(hung(absent=(2,)), lambda group: "node2" in group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "node2 hangs also with a node that is sound" in found.message


def test_nobody_is_blamed_for_what_does_not_happen_again() -> None:
    seen, _ = tried(hung(absent=(2,)), lambda group: False)
    said = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.UNKNOWN)
    assert said.required and "it may come and go" in said.message


def test_a_rank_that_died_needs_no_second_opinion_and_one_machine_gets_none() -> None:
    seen = hung()
    died = tuple(
        FactRecord(
            r.request, None, Unavailable("crashed", "killed", "", -9) if i == 1 else HUNG, 0.0, 5.0 if i == 1 else 20.1
        )
        for i, r in enumerate(seen.records)
    )
    assert list(plan_trials(JOB, fleet(4), Facts(died, seen.events()))) == []
    assert list(plan_trials(JOB, stand_ins(4), seen)) == []
    assert list(plan_trials(JOB, fleet(4), facts())) == []


def test_a_trial_that_could_not_start_is_no_hang() -> None:
    first = list(plan_trials(JOB, fleet(4), hung()))
    missing = Unavailable("missing", "torch cannot be imported")
    seen = Facts((*hung().records, *(FactRecord(r, None, missing) for r in first)), hung().events())
    again = list(plan_trials(JOB, fleet(4), seen))
    assert again and {r.group for r in again}.isdisjoint({r.group for r in first})
