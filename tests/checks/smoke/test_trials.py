"""Smaller groups of ranks after a hang: the planned groups, and their results in the finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.findings import Status
from preflight.model.recording import EventRecord, FactRecord, Facts, Unavailable
from preflight.model.requests import Request
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.smoke.completion import plan_trials, rank_did_not_finish, trials
from reference_trainer.collective.rank import RankReport
from tests.checks.check_builders import fact, facts, fleet, job, judge, local_fleet, one, plan

JOB = job(backend="gloo", master_addr="node0", master_port=29500)
HUNG = Unavailable("cancelled", "it was cancelled")


def hung(count: int = 4, *, absent: tuple[int, ...] = ()) -> Facts:
    """All ranks hang in a collective; those in `absent` have not entered it."""
    records, events = [], []
    for request in plan(rank_did_not_finish, JOB, fleet(count)):
        rank = int(request.params["rank"])

        def event_record(at_s: float, event: str, request: Request = request, **data: Any) -> EventRecord:
            return EventRecord(request.key, request.node, at_s, "child", {"event": event, **data})

        events.append(event_record(1.0, rank_events.PHASE, phase=rank_events.GROUP))
        if rank not in absent:
            events.append(event_record(2.0, rank_events.ENTERING, what="sum", collective=1, waiting_for=[]))
        events.extend(event_record(beat / 2, rank_events.BEAT, progress=0, starved_s=0.0) for beat in range(3, 40))
        records.append(FactRecord(request, None, HUNG, 0.0, 20.1))
    events.append(EventRecord(records[0].request.key, "node0", 20.0, "head", {"event": rank_events.DECIDED}))
    return Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))


def in_a_collective(
    request: Request, since_s: float, until_s: float, *, entered_s: float = 1.0, enters: bool = True
) -> list[EventRecord]:
    """A rank enters its first collective after `entered_s`, and stays in it; without `enters` it stays before it."""

    def event_record(at_s: float, event: str, **data: Any) -> EventRecord:
        return EventRecord(request.key, request.node, at_s, "child", {"event": event, **data})

    beats = range(int(2 * since_s) + 1, int(2 * until_s))
    return [
        event_record(since_s, rank_events.PHASE, phase=rank_events.STARTED),
        event_record(since_s + entered_s, rank_events.PHASE, phase=rank_events.GROUP),
        *(
            [event_record(since_s + entered_s, rank_events.ENTERING, what="sum", collective=1, waiting_for=[])]
            if enters
            else []
        ),
        *(event_record(beat / 2, rank_events.BEAT, progress=0, starved_s=0.0) for beat in beats),
    ]


def cut_off(seen: Facts, *, entered_s: float) -> Facts:
    """The next trials are ended after 10 s; their ranks were in a collective after `entered_s`."""
    late = Unavailable("timeout", "no answer within 10 s")
    records, events = list(seen.records), list(seen.events())
    for request in plan_trials(JOB, fleet(4), seen):
        records.append(FactRecord(request, None, late, 50.0, 60.0))
        events += in_a_collective(request, 50.0, 60.0, entered_s=entered_s)
    return Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))


def run_trials(
    seen: Facts,
    hangs: Callable[[set[str]], bool],
    count: int = 4,
    limit: int = 10,
    *,
    absent: tuple[int, ...] = (),
) -> tuple[Facts, int]:
    """Run the requested trials until there are none left; where one hangs, those in `absent` enter no collective."""
    for waves in range(limit):
        requests = list(plan_trials(JOB, fleet(count), seen))
        if not requests:
            return seen, waves
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        records, events = list(seen.records), list(seen.events())
        for ranks in groups.values():
            bad = hangs({request.node for request in ranks})
            for request in ranks:
                report = RankReport(request.params["rank"], len(ranks), request.node, "gloo", "cpu", "2.13.0")
                records.append(FactRecord(request, None if bad else plain(report), HUNG if bad else None, 21.0, 41.0))
                inside = request.params["rank"] not in absent
                events += in_a_collective(request, 22.0, 41.0, enters=inside) if bad else ()
            if bad:
                events.append(EventRecord(ranks[0].key, "node0", 40.0, "head", {"event": rank_events.DECIDED}))
        seen = Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))
    return seen, limit


def test_halves_are_tried_with_their_own_ranks() -> None:
    requests = list(plan_trials(JOB, fleet(4), hung()))
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    assert sorted([r.node for r in ranks] for ranks in groups.values()) == [["node0", "node1"], ["node2", "node3"]]
    for ranks in groups.values():
        assert [r.params["rank"] for r in ranks] == [0, 1] and {r.params["world_size"] for r in ranks} == {2}
        assert {r.params["master_addr"] for r in ranks} == {ranks[0].node}
        assert all(r.params["until"] == rank_events.EXACT and not r.required for r in ranks)
        assert {r.deadline_s for r in ranks} == {30.0}, "longer than the run took, which was 20 s"


def test_the_link_between_two_nodes_is_named() -> None:
    seen, waves = run_trials(hung(), lambda group: {"node1", "node2"} <= group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2") and waves == 2
    assert "node1 and node2 hang together, and each of them works with another node" in found.message


def test_a_node_that_hangs_with_all_others_is_named() -> None:
    seen, _ = run_trials(hung(8), lambda group: "node6" in group, 8)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert found.nodes == ("node6",) and "also with an otherwise healthy node" in found.message


def test_a_hang_of_only_all_nodes_is_reported() -> None:
    seen, _ = run_trials(hung(), lambda group: len(group) == 4)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert len(found.nodes) == 4 and "none of them hangs, and all nodes together hang again" in found.message


def test_a_stuck_rank_is_named_if_only_all_nodes_together_hang_and_both_runs_name_it() -> None:
    for absent, nodes in (((2,), ("node2",)), ((), ("node0", "node1", "node2", "node3"))):
        seen, _ = run_trials(hung(absent=(2,)), lambda group: len(group) == 4, absent=absent)
        found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
        assert found.nodes == nodes and "all nodes together hang again" in found.message


def test_at_the_deadline_the_smallest_group_is_reported() -> None:
    seen, _ = run_trials(hung(8), lambda group: "node6" in group, 8, limit=1)
    found = one(judge(rank_did_not_finish, JOB, fleet(8), seen), Status.FAIL)
    assert "not tried: node4 with node5, node6 with node7" in found.message and len(found.nodes) == 4


def test_a_trial_that_is_cut_off_shows_nothing() -> None:
    late = cut_off(hung(), entered_s=6.5)
    assert set(trials(JOB, late).values()) == {None}
    found = one(judge(rank_did_not_finish, JOB, fleet(4), late), Status.FAIL)
    assert "no trial of a smaller group ended" in found.message and "hang together" not in found.message
    assert "not finished: node0 with node1, node2 with node3; not tried: node0 with node3" in found.message


def test_nodes_that_completed_nothing_are_not_fit() -> None:
    late = cut_off(hung(absent=(2,)), entered_s=6.5)
    verdicts = judge(rank_did_not_finish, JOB, fleet(4), late)
    assert one(verdicts, Status.FAIL).nodes == ("node2",)
    left = one(verdicts, Status.UNKNOWN)
    assert left.required and left.nodes == ("node0", "node1", "node3")


def test_a_trial_goes_beyond_the_phase_in_which_the_run_hung() -> None:
    def asked(phase: str) -> dict[str, Any]:
        seen = hung()
        events = tuple(
            replace(event, data={**event.data, "phase": phase}) if "phase" in event.data else event
            for event in seen.events()
        )
        params = next(iter(plan_trials(JOB, fleet(4), Facts(seen.records, events)))).params
        return {name: params[name] for name in ("steps", "until") if name in params}

    assert asked(rank_events.RENDEZVOUS) == {"steps": 2, "until": rank_events.EXACT}
    assert asked(rank_events.GROUP) == {"steps": 10, "until": rank_events.EXACT}
    assert asked(rank_events.MEASURED) == {"steps": 10}


def test_a_stuck_rank_gets_a_trial() -> None:
    seen, _ = run_trials(hung(absent=(2,)), lambda group: "node2" in group)
    found = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "node2 hangs also with an otherwise healthy node" in found.message


def test_no_node_is_blamed_for_an_intermittent_fault() -> None:
    seen, _ = run_trials(hung(absent=(2,)), lambda group: False)
    said = one(judge(rank_did_not_finish, JOB, fleet(4), seen), Status.UNKNOWN)
    assert said.required and "all nodes together completed when tried again" in said.message


def test_a_suspect_that_completed_a_trial_is_not_blamed_if_time_ran_out() -> None:
    seen, waves = run_trials(hung(3, absent=(2,)), lambda group: False, 3, limit=2)
    said = one(judge(rank_did_not_finish, JOB, fleet(3), seen), Status.UNKNOWN)
    assert (
        waves == 2
        and said.required
        and "node0, node1, node2 completed one; not tried: node1 with node2" in said.message
    )


def test_no_trials_for_a_dead_rank_or_one_machine() -> None:
    seen = hung()
    died = tuple(
        FactRecord(
            r.request, None, Unavailable("crashed", "killed", "", -9) if i == 1 else HUNG, 0.0, 5.0 if i == 1 else 20.1
        )
        for i, r in enumerate(seen.records)
    )
    assert list(plan_trials(JOB, fleet(4), Facts(died, seen.events()))) == []
    assert list(plan_trials(JOB, local_fleet(4), seen)) == []
    assert list(plan_trials(JOB, fleet(4), facts())) == []


def test_a_trial_that_could_not_start_is_not_a_hang() -> None:
    first = list(plan_trials(JOB, fleet(4), hung()))
    missing = Unavailable("missing", "torch cannot be imported")
    seen = Facts((*hung().records, *(FactRecord(r, None, missing) for r in first)), hung().events())
    again = list(plan_trials(JOB, fleet(4), seen))
    assert again and {r.group for r in again}.isdisjoint({r.group for r in first})


def test_a_difference_of_protocol_is_named_instead_of_the_rank_that_hangs() -> None:
    seen = hung(absent=(2,))
    settings = [
        fact(environment, f"node{i}", Environment({"TORCH_GLOO_LAZY_INIT": "1"} if i == 1 else {}), context=True)
        for i in range(4)
    ]
    found = one(
        judge(rank_did_not_finish, JOB, fleet(4), Facts((*seen.records, *settings), seen.events())), Status.FAIL
    )
    assert found.nodes == ("node1",) and "rank 2 on node2 made no progress" in found.message
    assert "TORCH_GLOO_LAZY_INIT differs on node1 (ENV020), which is the likely cause" in found.message
