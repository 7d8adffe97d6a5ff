"""Charts of the training run: phases of every process by one clock, and the pace of every rank."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.charts import Bar, Bars, Lane, Span, Timeline
from preflight.model.findings import Status
from preflight.model.recording import EventRecord, FactRecord, Facts, Unavailable
from preflight.model.requests import Request, probe_name
from preflight_checks.charts.rank_timelines import MAX_LANES, step_times, steps, stragglers
from preflight_checks.smoke.collective_speed import straggler
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.ps.run_report import WorkerReport
from reference_trainer.ps.server import server
from reference_trainer.ps.worker import worker
from tests.checks.check_builders import fleet, job, judge
from tests.checks.smoke.test_stragglers import JOB, run_facts, slow_to_exchange, usual_window

GONE = Unavailable("crashed", "killed", "", -9)


def request(number: int, probe: Any = rank, **more: object) -> Request:
    """One process of the run, on a node of its own."""
    params = {"rank": number, "world_size": 2, **more}
    return Request(probe_name(probe), f"node{number}", params, context=True, group="smoke train")


def phase_events(request: Request, *phases: tuple[float, str]) -> list[EventRecord]:
    """The events of one process: a time for each phase that it has reached."""
    return [
        EventRecord(request.key, request.node, at_s, "child", {"event": rank_events.PHASE, "phase": phase})
        for at_s, phase in phases
    ]


def process_record(
    request: Request, *, failure: Unavailable | None = None, started_s: float = 10.0, finished_s: float
) -> FactRecord:
    """The result of one process; the report of a rank does not matter here."""
    return FactRecord(request, {}, failure, started_s=started_s, finished_s=finished_s)


def timeline(records: list[FactRecord], events: list[EventRecord]) -> Timeline:
    """The only timeline of the run."""
    (found,) = steps(job(**JOB), fleet(2), Facts(tuple(records), tuple(events)))
    return found


def test_a_phase_lasts_until_the_next_and_time_starts_with_the_first() -> None:
    first, second = request(0), request(1)
    found = timeline(
        [process_record(first, finished_s=15.0), process_record(second, started_s=10.25, finished_s=15.0)],
        [
            *phase_events(
                first,
                (10.5, rank_events.STARTED),
                (12.0, rank_events.IMPORTED),
                (12.25, rank_events.RENDEZVOUS),
                (14.0, rank_events.DONE),
            ),
            *phase_events(second, (11.0, rank_events.STARTED), (12.5, rank_events.IMPORTED), (13.0, rank_events.DONE)),
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
    assert found.note == "Activities of 2 processes of the run, on one clock; 2 completed."


def test_the_last_phase_of_a_hanging_rank_lasts_until_its_end() -> None:
    hanging = request(0)
    beat = EventRecord(hanging.key, hanging.node, 30.0, "child", {"event": rank_events.BEAT, "progress": 3})
    found = timeline(
        [
            process_record(hanging, failure=GONE, finished_s=29.0),
            process_record(request(1), failure=GONE, finished_s=29.0),
        ],
        [*phase_events(hanging, (10.5, rank_events.GROUP)), beat],
    )
    (lane,) = found.lanes
    assert lane.spans[-1] == Span(0.5, 20.0, "summing tensors whose sums are known")
    assert found.note.startswith("Activities of 2 processes of the run") and "; 0 completed" in found.note


def test_servers_and_workers_are_named_by_role() -> None:
    served = request(0, server, role="server", index=0)
    working = request(1, worker, role="worker", index=0)
    found = timeline(
        [process_record(served, finished_s=14.0), process_record(working, finished_s=14.0)],
        [
            *phase_events(served, (11.0, rank_events.IMPORTED), (12.0, rank_events.JOINED)),
            *phase_events(working, (11.0, rank_events.IMPORTED), (12.0, rank_events.DONE)),
        ],
    )
    assert [(lane.subject, lane.node) for lane in found.lanes] == [("server 0", "node0"), ("worker 0", "node1")]
    assert found.lanes[0].spans[1:] == (
        Span(1.0, 2.0, "connecting workers and servers"),
        Span(2.0, 4.0, "training with known gradients"),
    )


def test_large_runs_show_failed_ranks_first() -> None:
    requests = [request(number) for number in range(400)]
    records = [
        process_record(one, failure=GONE if n in (7, 390) else None, finished_s=12.0) for n, one in enumerate(requests)
    ]
    found = timeline(records, [event for one in requests for event in phase_events(one, (11.0, rank_events.STARTED))])
    subjects = [lane.subject for lane in found.lanes]
    assert len(subjects) == MAX_LANES and {"rank 7", "rank 390"} <= set(subjects)
    assert subjects == sorted(subjects, key=lambda name: int(name.split()[1]))
    assert f"{MAX_LANES} are shown" in found.note


def test_no_timeline_for_other_groups_or_without_events() -> None:
    trial = replace(request(0), group="trial 1")
    seen = Facts((process_record(trial, finished_s=3.0),), tuple(phase_events(trial, (1.0, rank_events.STARTED))))
    assert list(steps(job(**JOB), fleet(2), seen)) == []
    assert list(steps(job(**JOB), fleet(2), Facts())) == []


# --- steps ---


def step_bars(*reports: Any, probe: Any = rank) -> list[Bars]:
    """The bars for the steps of these ranks or workers."""
    records = [FactRecord(request(n, probe), asdict(report)) for n, report in enumerate(reports)]
    return list(step_times(job(**JOB), fleet(2), Facts(tuple(records))))


def test_steps_of_ranks_without_the_first_one() -> None:
    slow = RankReport(1, 2, "node1", "gloo", "cpu", "2.9.0", step_s=[9.0, 0.0123456, 0.011, 0.0987])
    (found,) = step_bars(RankReport(0, 2, "node0", "gloo", "cpu", "2.9.0", step_s=[9.0, 0.01, 0.01]), slow)
    assert (found.unit, found.bars) == ("ms", (Bar("rank 0", "node0", 10.0), Bar("rank 1", "node1", 12.35)))
    assert step_bars(replace(slow, step_s=[]), replace(slow, step_s=[9.0])) == []


def test_worker_steps_include_compute_push_and_wait() -> None:
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
    """The only set of bars."""
    (found,) = stragglers(job(**JOB), fleet(), seen)
    return found


def test_equal_ranks_have_no_odd_bar() -> None:
    found = bars(run_facts(usual_window))
    assert found.unit == "ms" and found.bars == tuple(Bar(f"rank {n}", f"node{n}", 1.04) for n in range(4))
    assert found.note.startswith("Time that 4 ranks take for the same work")


@pytest.mark.parametrize(
    ("seen", "odd"),
    [
        (run_facts(lambda r, i: usual_window(r, i, times=3.1 if r == 2 else 1.0)), {"rank 2": "computes 3.1 times"}),
        (run_facts(lambda r, i: usual_window(r, i, times=5.0 if r == 2 and i == 0 else 1.0)), {}),
        (
            run_facts(lambda r, i: usual_window(r, i, waited=0.7 if r == 1 else 0.01)),
            {"rank 1": "did not get enough CPU time"},
        ),
        (run_facts(lambda r, i: slow_to_exchange(r, i, 0.01)), {"rank 2": "exchanges"}),
        (run_facts(lambda r, i: slow_to_exchange(r, i, 0.5)), {}),
    ],
    ids=["slow", "slow once", "crowded", "exchanges", "all busy"],
)
def test_a_bar_is_odd_where_the_check_names_the_rank(seen: Facts, odd: dict[str, str]) -> None:
    marked = {bar.label: bar for bar in bars(seen).bars if bar.odd}
    assert set(marked) == set(odd) and all(why in marked[label].why for label, why in odd.items())
    named = {node for v in judge(straggler, job(**JOB), fleet(), seen) if v.status is Status.FAIL for node in v.nodes}
    assert {bar.group for bar in marked.values()} == named


def test_two_ranks_have_no_straggler() -> None:
    found = bars(run_facts(lambda r, i: usual_window(r, i, times=9.0 if r else 1.0), 2))
    assert [bar.value for bar in found.bars] == [1.04, 9.36] and not any(bar.odd for bar in found.bars)
    assert "fewer than 3 ranks" in found.note


def test_without_a_run_there_are_no_bars() -> None:
    assert list(stragglers(job(**JOB), fleet(), Facts())) == []


def test_the_order_of_facts_does_not_matter() -> None:
    seen = run_facts(usual_window)
    assert bars(seen) == bars(Facts(tuple(reversed(seen.records))))
