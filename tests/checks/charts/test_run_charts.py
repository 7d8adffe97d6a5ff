"""Matrices of links: a text for each failure, values with a unit, no matrix without connections."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.charts import Bar, Bars, Lane, Layout, Mark, Matrix, Piece, Place, Span, Timeline
from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import EventRecord, FactRecord, Facts, Fleet, Unavailable
from preflight.model.requests import Request, probe_name
from preflight_checks.charts.link_matrices import MAX_MARKS, links
from preflight_checks.charts.rank_timelines import MAX_LANES, step_times, steps, stragglers
from preflight_checks.charts.server_bars import NOWHERE, holdings, placement, traffic
from preflight_checks.links.dial_requests import FREE
from preflight_checks.links.reachability import port_unreachable
from preflight_checks.links.slow_links import link_slow
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.smoke.collective_speed import straggler
from preflight_checks.smoke.server_results import server_load_uneven
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.ps.partition import bytes_held, overloaded
from reference_trainer.ps.run_report import WorkerReport, WorkerStats
from reference_trainer.ps.server import server
from reference_trainer.ps.worker import worker
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, local_fleet
from tests.checks.check_builders import job as built
from tests.checks.links.test_link_state import STRANGER, hardware
from tests.checks.links.test_link_state import network as neighbourhood
from tests.checks.links.test_reachability import JOB, MASTER, dialled, network
from tests.checks.links.test_slow_links import GOOD, measured
from tests.checks.servers.test_placement import SPREAD, node, table
from tests.checks.servers.test_placement import placement_job as server_job
from tests.checks.smoke.test_completion import JOB as COLLECTIVE
from tests.checks.smoke.test_server_runs import HEALTHY, recorded
from tests.checks.smoke.test_server_runs import JOB as SERVER_JOB
from tests.checks.smoke.test_server_runs import server as server_server
from tests.checks.smoke.test_server_runs import worker as server_worker
from tests.checks.smoke.test_speed import JOB as TIMELINE_JOB
from tests.checks.smoke.test_speed import run_facts, slow_to_exchange, usual_window


def matrices_of(seen: Facts, count: int = 4) -> dict[str, Matrix]:
    """The matrices by id."""
    return {one.id: one for one in links(job(**JOB), fleet(count), seen)}


def marks(matrix: Matrix) -> dict[tuple[str, str], Mark]:
    """The marks by the names of their row and column."""
    return {(matrix.rows[mark.row], matrix.columns[mark.column]): mark for mark in matrix.marks}


def test_reachability_of_a_healthy_fleet() -> None:
    (found,) = matrices_of(network(lambda source, peer, label: "ok")).values()
    assert found.id == "links.reach" and found.rows == found.columns == ("node0", "node1", "node2", "node3")
    assert len(found.marks) == 12 and {(mark.state, mark.value, mark.why) for mark in found.marks} == {("ok", None, "")}
    assert found.note == (
        "Of 12 directions between 4 nodes, 12 were tried over TCP: 12 are open, 0 are not, 0 are unknown."
    )


@pytest.mark.parametrize(
    ("status", "state", "text"),
    [
        ("refused", "bad", "refused"),
        ("filtered", "bad", "filtered"),
        ("unresolved", "bad", "unresolved"),
        ("reset", "bad", "reset"),
        ("stalled", "bad", "stalled"),
        ("slow", "bad", "slow"),
        ("no-route", "bad", "no route"),
        ("stranger", "bad", "another program responds"),
        ("silent", "bad", "connected, then no response"),
        ("unbound", "unknown", "the listener could not start"),
        ("untried", "unknown", "not tried within the time limit"),
    ],
)
def test_each_failure_has_a_text(status: str, state: str, text: str) -> None:
    seen = network(lambda source, peer, label: status if (source, peer) == ("node1", "node3") else "ok")
    found = marks(matrices_of(seen)["links.reach"])
    assert found["node1", "node3"] == Mark(1, 3, None, state, text)  # type: ignore[arg-type]
    assert [pair for pair, mark in found.items() if mark.state != "ok"] == [("node1", "node3")]


def test_a_failing_port_beside_a_working_one_is_named() -> None:
    seen = network(lambda source, peer, label: "refused" if label == MASTER and source == "node2" else "ok")
    assert marks(matrices_of(seen)["links.reach"])["node2", "node0"].why == f"refused on {MASTER}"


def test_ports_with_one_failure_are_one_entry() -> None:
    found = marks(
        matrices_of(network(lambda source, peer, label: "filtered" if peer == "node0" else "ok"))["links.reach"]
    )
    assert {pair: mark.why for pair, mark in found.items() if mark.state == "bad"} == {
        (f"node{number}", "node0"): "filtered" for number in (1, 2, 3)
    }


def test_a_conflicting_address_is_unknown() -> None:
    seen = neighbourhood(answers={(0, 2): [hardware(2), STRANGER]}, status={(0, 2): "refused"})
    found = marks(matrices_of(seen)["links.reach"])["node0", "node2"]
    assert (found.state, found.why) == ("unknown", "a different machine responds at this address")
    assert {verdict.status for verdict in judge(port_unreachable, job(**JOB), fleet(), seen)} >= {Status.UNKNOWN}


def test_a_node_that_cannot_dial_is_unknown_and_an_unreached_one_untried() -> None:
    records = dialled(lambda source, peer, label: "ok", ["node0", "node1"])
    seen = facts(*records, fact(dial, "node2", TIMEOUT, peers=("node0", "node1")))
    found = marks({one.id: one for one in links(job(**JOB), fleet(4, node3="refused"), seen)}["links.reach"])
    assert found["node2", "node0"] == Mark(2, 0, None, "unknown", TIMEOUT.reason)
    assert not [pair for pair in found if "node3" in pair]


def test_units_are_the_same_in_every_run() -> None:
    found = matrices_of(measured(looks=1))
    assert set(found) == {"links.latency", "links.bandwidth"}
    trips, rates = found["links.latency"], found["links.bandwidth"]
    assert (trips.unit, rates.unit) == ("µs", "Gbit/s")
    assert marks(trips)["node0", "node1"] == Mark(0, 1, 60.0, "ok")
    assert marks(rates)["node1", "node0"] == Mark(1, 0, 9.4, "ok")
    assert "measured between 6 of 6 pairs of nodes" in trips.note
    far = Quality("", "", "", 0.02, 0.0213579, 0.03, 1e-4, 200, 0)
    slow = replace(GOOD, single_mbps=90.0, several_mbps=94.0)
    late = matrices_of(measured(lambda s, p, look: slow, trips=lambda a, b: far))
    assert (late["links.latency"].unit, late["links.bandwidth"].unit) == ("µs", "Gbit/s")
    assert marks(late["links.latency"])["node2", "node3"].value == 21360.0
    assert marks(late["links.bandwidth"])["node2", "node3"].value == 0.094


def test_marks_agree_with_the_check() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=11.0)

    def quality(source: str, peer: str, look: int) -> Direction:
        return slow if {source, peer} == {"node1", "node2"} else GOOD

    seen = measured(quality)
    found = marks(matrices_of(seen)["links.bandwidth"])
    bad = {pair: mark for pair, mark in found.items() if mark.state == "bad"}
    assert set(bad) == {("node1", "node2"), ("node2", "node1")} and {mark.why for mark in bad.values()} == {"slow"}
    (finding,) = [v for v in judge(link_slow, job(**JOB), fleet(), seen) if v.status is Status.FAIL]
    assert set(finding.nodes) == {name for pair in bad for name in pair}


def test_a_link_that_was_slow_once_or_on_a_busy_node_is_unknown() -> None:
    once = measured(
        lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0) if s == "node3" else GOOD, looks=1
    )
    assert marks(matrices_of(once)["links.bandwidth"])["node3", "node0"].why == "an outlier that was not measured again"
    busy = measured(
        lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0, busy=0.7) if s == "node3" else GOOD
    )
    assert marks(matrices_of(busy)["links.bandwidth"])["node3", "node0"].why == "inconclusive: host busy"


def test_a_failed_measurement_is_marked_with_its_reason() -> None:
    records = [
        record
        for record in measured(looks=1).records
        if (record.request.node, *record.request.peers) != ("node0", "node1")
    ]
    seen = facts(*records, fact(measure, "node0", TIMEOUT, peers=("node1",)))
    for matrix in matrices_of(seen).values():
        assert marks(matrix)["node0", "node1"] == Mark(0, 1, None, "unknown", TIMEOUT.reason)


def test_large_fleets_omit_only_good_links() -> None:
    names = [f"node{number}" for number in range(1000)]
    records = []
    for number, name in enumerate(names):
        peers = [names[(number + step) % 1000] for step in range(1, 25)]
        targets = [
            Target(peer, FREE, peer, 0, "refused" if peer == "node7" else "ok", "10.0.0.1", "", 0.1) for peer in peers
        ]
        records.append(fact(dial, name, Dialled(targets), peers=tuple(peers)))
    found = matrices_of(facts(*records), 1000)["links.reach"]
    assert len(found.marks) == MAX_MARKS
    assert sum(mark.state == "bad" for mark in found.marks) == 24
    assert f"{MAX_MARKS} of these 24000 are shown" in found.note
    rows = [sum(mark.row == number for mark in found.marks[:3000]) for number in range(10)]
    assert min(rows) > 10, "what is left out is spread over all nodes"


def test_no_matrix_without_connections() -> None:
    assert matrices_of(facts()) == {}
    assert list(links(job(**JOB), local_fleet(2), facts())) == []


def test_the_order_of_facts_does_not_matter() -> None:
    records = [*network(lambda source, peer, label: "ok").records, *measured(looks=1).records]
    assert matrices_of(facts(*records)) == matrices_of(facts(*reversed(records)))


# Charts of the training run: phases of every process by one clock, and the pace of every rank.


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
    (found,) = steps(job(**TIMELINE_JOB), fleet(2), Facts(tuple(records), tuple(events)))
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
            Span(2.0, 2.25, "joining the other ranks at the master's store"),
            Span(2.25, 4.0, "setting up the process group"),
        ),
    )
    assert found.lanes[1].spans[0] == Span(0.25, 1.0, "starting Python")
    assert found.note == "Activities of 2 processes of the run on a common time axis; 2 completed."


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
    assert lane.spans[-1] == Span(0.5, 20.0, "summing tensors with known sums")
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
    assert list(steps(job(**TIMELINE_JOB), fleet(2), seen)) == []
    assert list(steps(job(**TIMELINE_JOB), fleet(2), Facts())) == []


# --- steps ---


def step_bars(*reports: Any, probe: Any = rank) -> list[Bars]:
    """The bars for the steps of these ranks or workers."""
    records = [FactRecord(request(n, probe), asdict(report)) for n, report in enumerate(reports)]
    return list(step_times(job(**TIMELINE_JOB), fleet(2), Facts(tuple(records))))


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
    (found,) = stragglers(job(**TIMELINE_JOB), fleet(), seen)
    return found


def test_equal_ranks_have_no_odd_bar() -> None:
    found = bars(run_facts(usual_window))
    assert found.unit == "ms" and found.bars == tuple(Bar(f"rank {n}", f"node{n}", 1.04) for n in range(4))
    assert found.note.startswith("Time that 4 ranks need for the same work")


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
    named = {
        node
        for v in judge(straggler, job(**TIMELINE_JOB), fleet(), seen)
        if v.status is Status.FAIL
        for node in v.nodes
    }
    assert {bar.group for bar in marked.values()} == named


def test_two_ranks_have_no_straggler() -> None:
    found = bars(run_facts(lambda r, i: usual_window(r, i, times=9.0 if r else 1.0), 2))
    assert [bar.value for bar in found.bars] == [1.04, 9.36] and not any(bar.odd for bar in found.bars)
    assert "fewer than 3 ranks" in found.note


def test_without_a_run_there_are_no_bars() -> None:
    assert list(stragglers(job(**TIMELINE_JOB), fleet(), Facts())) == []


def test_timeline_the_order_of_facts_does_not_matter() -> None:
    seen = run_facts(usual_window)
    assert bars(seen) == bars(Facts(tuple(reversed(seen.records))))


# Charts of servers: their nodes, the bytes they will hold by the trainer's partition, and the bytes they moved.


SIZED = server_job("a:6170,b:6170", "c:6171,d:6171", *table(1001, 8), claim("optimizer", "Adam"))


def layout_of(job_: Job, seen: Facts, nodes: Fleet | None = None) -> Layout:
    """The only placement chart."""
    (found,) = placement(job_, nodes or fleet(4), seen)
    return found


def server_bars(job_: Job, seen: Facts) -> Bars:
    """The bars of held bytes."""
    (found,) = holdings(job_, fleet(4), seen)
    return found


def test_servers_and_trainers_are_placed_by_address() -> None:
    held = bytes_held((), [(1001, 8)], 2, slots=2)
    found = layout_of(SIZED, facts(*SPREAD))
    assert found.unit == "bytes" and found.places == (
        Place("node0", (Piece("server 0", "server", float(held[0])),)),
        Place("node1", (Piece("server 1", "server", float(held[1])),)),
        Place("node2", (Piece("trainer 0", "trainer", None),)),
        Place("node3", (Piece("trainer 1", "trainer", None),)),
    )
    assert found.note == (
        "Where 2 servers and 2 workers are, according to the node addresses; "
        "bytes are what a server will hold, according to the sizes in the files, with 2 optimizer values for each "
        "parameter."
    )


def test_two_names_of_one_machine_are_one_node() -> None:
    found = layout_of(server_job(), facts(node(0, "a", "b"), node(1), node(2, "c"), node(3)))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("node0", ["server 0", "server 1"]),
        ("node2", ["trainer 0"]),
        (NOWHERE, ["trainer 1"]),
    ]
    assert found.places[0].pieces[0].why == "the files do not give the parameter sizes"
    assert "address belongs to no node" in found.places[2].pieces[0].why


def test_on_one_machine_placement_follows_the_run() -> None:
    found = layout_of(built(ps_mode=True, ps_servers=1, ps_workers=2), Facts(), local_fleet(3))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("local0", ["server 0"]),
        ("local1", ["worker 0"]),
        ("local2", ["worker 1"]),
    ]
    assert "as started by the training run" in found.note


def test_held_bytes_match_the_trainers_partition() -> None:
    held = bytes_held((), [(1001, 8)], 2, slots=2)
    found = server_bars(SIZED, facts(*SPREAD))
    assert found.bars == (Bar("server 0", "node0", float(held[0])), Bar("server 1", "node1", float(held[1])))
    assert "2 optimizer values for each parameter" in found.note


def test_without_sizes_the_run_gives_the_held_bytes() -> None:
    seen = recorded(server_server(0, table_bytes=64), server_server(1), server_worker(0), server_worker(1))
    (found,) = holdings(SERVER_JOB, fleet(4), seen)
    assert [(bar.group, bar.value) for bar in found.bars] == [("node0", 5064.0), ("node1", 5000.0)]
    assert found.note == "What each server held in the training run with a small model, for 2 servers."
    (places,) = placement(SERVER_JOB, fleet(4), seen)
    assert places.places[0].pieces == (Piece("server 0", "server", 5064.0),)
    lost = recorded(server_server(0), Unavailable("crashed", "killed", "", -9), server_worker(0), server_worker(1))
    assert list(holdings(SERVER_JOB, fleet(4), lost)) == []


def test_an_overloaded_server_is_odd() -> None:
    uncut = server_job(*("a:1,b:1,a:2,b:2", "c:1"), *table(2**20, 8, sparse=False), claim("slice_var_up", False))
    found = server_bars(uncut, facts(*SPREAD))
    assert [(bar.value, bar.odd) for bar in found.bars] == [(2.0**25, True), (0.0, False), (0.0, False), (0.0, False)]
    assert overloaded([2**25, 0, 0, 0]) == (0,) and overloaded([]) == overloaded([2000, 0, 0]) == ()


def test_traffic_is_odd_where_the_check_reports_it() -> None:
    busy = [WorkerStats(w, f"node{w + 2}", 1, "10.0.0.9", pushes=40, bytes_in=90000, bytes_out=9000) for w in (0, 1)]
    seen = recorded(server_server(0), server_server(1, seen=busy), server_worker(0), server_worker(1))
    (found,) = traffic(SERVER_JOB, fleet(4), seen)
    assert [(bar.label, bar.group, bar.value, bar.odd) for bar in found.bars] == [
        ("server 0", "node0", 4000.0, False),
        ("server 1", "node1", 198000.0, True),
    ]
    failing = [v for v in server_load_uneven.judge(SERVER_JOB, fleet(4), seen) if v.status is Status.FAIL]
    assert [v.nodes for v in failing] == [("node1",)]
    (healthy,) = traffic(SERVER_JOB, fleet(4), recorded(*HEALTHY))
    assert not any(bar.odd for bar in healthy.bars)


@pytest.mark.parametrize("make", [placement, holdings, traffic])
def test_no_chart_without_servers_or_nodes(make: object) -> None:
    assert callable(make)
    assert list(make(COLLECTIVE, fleet(2), Facts())) == []
    assert list(make(built(ps_mode=True), Fleet(), Facts())) == []


def test_server_the_order_of_facts_does_not_matter() -> None:
    assert layout_of(SIZED, facts(*SPREAD)) == layout_of(SIZED, facts(*reversed(SPREAD)))
