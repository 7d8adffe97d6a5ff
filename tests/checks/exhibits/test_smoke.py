"""The training run for the eye: phases of every process by one clock, and the pace of every rank."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.exhibit import Bar, Bars, Lane, Span, Timeline
from preflight.outcome import Status
from preflight.recording import EventRecord, FactRecord, Facts, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.exhibits.smoke import MOST_LANES, step_times, steps, stragglers
from preflight_checks.smoke.stragglers import straggler
from reference_trainer import phases
from reference_trainer.collective import RankReport, rank
from reference_trainer.ps.report import WorkerReport
from reference_trainer.ps.server import server
from reference_trainer.ps.worker import worker
from tests.checks.build import fleet, job, judge
from tests.checks.test_stragglers import JOB, ran, slow_to_exchange, usual

GONE = Unavailable("crashed", "killed", "", -9)


def request(number: int, probe: Any = rank, **more: object) -> Request:
    """One process of the run, on a node of its own."""
    params = {"rank": number, "world_size": 2, **more}
    return Request(probe_name(probe), f"node{number}", params, context=True, group="smoke train")


def said(asked: Request, *reached: tuple[float, str]) -> list[EventRecord]:
    """When it said that it has which phase behind it."""
    return [
        EventRecord(asked.key, asked.node, at_s, "child", {"event": phases.PHASE, "phase": phase})
        for at_s, phase in reached
    ]


def ended(
    asked: Request, *, failure: Unavailable | None = None, started_s: float = 10.0, finished_s: float
) -> FactRecord:
    """What came of it; what a rank reports is of no interest here."""
    return FactRecord(asked, {}, failure, started_s=started_s, finished_s=finished_s)


def timeline(records: list[FactRecord], events: list[EventRecord]) -> Timeline:
    """The one timeline."""
    (found,) = steps(job(**JOB), fleet(2), Facts(tuple(records), tuple(events)))
    return found


def test_a_phase_lasts_until_the_next_one_and_time_begins_with_the_first_span() -> None:
    first, second = request(0), request(1)
    found = timeline(
        [ended(first, finished_s=15.0), ended(second, started_s=10.25, finished_s=15.0)],
        [
            *said(
                first, (10.5, phases.STARTED), (12.0, phases.IMPORTED), (12.25, phases.RENDEZVOUS), (14.0, phases.DONE)
            ),
            *said(second, (11.0, phases.STARTED), (12.5, phases.IMPORTED), (13.0, phases.DONE)),
        ],
    )
    assert found.lanes[0] == Lane(
        "rank 0",
        "node0",
        (
            Span(0.0, 0.5, "starting Python"),
            Span(0.5, 2.0, "importing torch"),
            Span(2.0, 2.25, "meeting the other ranks at the master's store"),
            Span(2.25, 4.0, "setting up the process group"),
        ),
    )
    assert found.lanes[1].spans[0] == Span(0.25, 1.0, "starting Python")
    assert found.note == "What 2 of the run's processes did, by one clock; 2 came to the end."


def test_the_last_phase_of_one_that_hangs_lasts_until_it_was_given_up() -> None:
    asked = request(0)
    beat = EventRecord(asked.key, asked.node, 30.0, "child", {"event": phases.BEAT, "progress": 3})
    found = timeline(
        [ended(asked, failure=GONE, finished_s=29.0), ended(request(1), failure=GONE, finished_s=29.0)],
        [*said(asked, (10.5, phases.GROUP)), beat],
    )
    (lane,) = found.lanes
    assert lane.spans[-1] == Span(0.5, 20.0, "summing tensors whose sums are known")
    assert found.note.startswith("What 2 of the run's processes did") and "; 0 came to the end" in found.note


def test_servers_and_workers_are_called_by_their_role() -> None:
    served = request(0, server, role="server", index=0)
    working = request(1, worker, role="worker", index=0)
    found = timeline(
        [ended(served, finished_s=14.0), ended(working, finished_s=14.0)],
        [
            *said(served, (11.0, phases.IMPORTED), (12.0, phases.JOINED)),
            *said(working, (11.0, phases.IMPORTED), (12.0, phases.DONE)),
        ],
    )
    assert [(lane.subject, lane.node) for lane in found.lanes] == [("server 0", "node0"), ("worker 0", "node1")]
    assert found.lanes[0].spans[1:] == (
        Span(1.0, 2.0, "connecting workers and servers"),
        Span(2.0, 4.0, "training with gradients that are known"),
    )


def test_of_very_many_ranks_those_that_did_not_end_are_shown_first() -> None:
    asked = [request(number) for number in range(400)]
    records = [ended(one, failure=GONE if n in (7, 390) else None, finished_s=12.0) for n, one in enumerate(asked)]
    found = timeline(records, [event for one in asked for event in said(one, (11.0, phases.STARTED))])
    subjects = [lane.subject for lane in found.lanes]
    assert len(subjects) == MOST_LANES and {"rank 7", "rank 390"} <= set(subjects)
    assert subjects == sorted(subjects, key=lambda name: int(name.split()[1]))
    assert f"{MOST_LANES} are shown" in found.note


def test_other_groups_and_silence_are_no_timeline() -> None:
    trial = replace(request(0), group="trial 1")
    seen = Facts((ended(trial, finished_s=3.0),), tuple(said(trial, (1.0, phases.STARTED))))
    assert list(steps(job(**JOB), fleet(2), seen)) == []
    assert list(steps(job(**JOB), fleet(2), Facts())) == []


# --- steps ---


def step_bars(*reports: Any, probe: Any = rank) -> list[Bars]:
    """What the steps of these ranks or workers come to."""
    records = [FactRecord(request(n, probe), asdict(report)) for n, report in enumerate(reports)]
    return list(step_times(job(**JOB), fleet(2), Facts(tuple(records))))


def test_steps_of_ranks_without_the_first_one() -> None:
    slow = RankReport(1, 2, "node1", "gloo", "cpu", "2.9.0", step_s=[9.0, 0.0123456, 0.011, 0.0987])
    (found,) = step_bars(RankReport(0, 2, "node0", "gloo", "cpu", "2.9.0", step_s=[9.0, 0.01, 0.01]), slow)
    assert (found.unit, found.bars) == ("ms", (Bar("rank 0", "node0", 10.0), Bar("rank 1", "node1", 12.35)))
    assert step_bars(replace(slow, step_s=[]), replace(slow, step_s=[9.0])) == []


def test_steps_of_workers_are_what_they_compute_push_and_wait_for() -> None:
    told = WorkerReport(
        *(2, 0, 1, 1, "node0", "sync", "cpu", "2.9.0"),
        pull_s=[9.0, 0.25, 0.25],
        compute_s=[9.0, 0.5, 0.5],
        push_s=[9.0, 0.125, 0.125],
    )
    (found,) = step_bars(told, probe=worker)
    assert found.bars == (Bar("worker 0", "node0", 875.0),)
    assert step_bars(replace(told, compute_s=[]), probe=worker) == []


# --- pace ---


def bars(seen: Facts) -> Bars:
    """The one set of bars."""
    (found,) = stragglers(job(**JOB), fleet(), seen)
    return found


def test_ranks_that_are_alike_have_a_bar_each_and_none_is_odd() -> None:
    found = bars(ran(usual))
    assert found.unit == "ms" and found.bars == tuple(Bar(f"rank {n}", f"node{n}", 1.04) for n in range(4))
    assert found.note.startswith("How long 4 ranks take for the same piece of work")


@pytest.mark.parametrize(
    ("seen", "odd"),
    [
        (ran(lambda r, i: usual(r, i, times=3.1 if r == 2 else 1.0)), {"rank 2": "computes 3.1 times"}),
        (ran(lambda r, i: usual(r, i, times=5.0 if r == 2 and i == 0 else 1.0)), {}),
        (ran(lambda r, i: usual(r, i, waited=0.7 if r == 1 else 0.01)), {"rank 1": "had no processor"}),
        (ran(lambda r, i: slow_to_exchange(r, i, 0.01)), {"rank 2": "exchanges"}),
        (ran(lambda r, i: slow_to_exchange(r, i, 0.5)), {}),
    ],
    ids=["slow", "slow once", "crowded", "exchanges", "all busy"],
)
def test_odd_is_whom_the_check_names(seen: Facts, odd: dict[str, str]) -> None:
    marked = {bar.label: bar for bar in bars(seen).bars if bar.odd}
    assert set(marked) == set(odd) and all(why in marked[label].why for label, why in odd.items())
    named = {node for v in judge(straggler, job(**JOB), fleet(), seen) if v.status is Status.FAIL for node in v.nodes}
    assert {bar.group for bar in marked.values()} == named


def test_two_ranks_are_shown_and_nobody_falls_behind() -> None:
    found = bars(ran(lambda r, i: usual(r, i, times=9.0 if r else 1.0), 2))
    assert [bar.value for bar in found.bars] == [1.04, 9.36] and not any(bar.odd for bar in found.bars)
    assert "fewer than 3 ranks" in found.note


def test_without_a_run_there_are_no_bars() -> None:
    assert list(stragglers(job(**JOB), fleet(), Facts())) == []


def test_the_order_in_which_answers_came_changes_nothing() -> None:
    seen = ran(usual)
    assert bars(seen) == bars(Facts(tuple(reversed(seen.records))))
