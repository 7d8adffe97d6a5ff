"""Charts of servers: their nodes, the bytes they will hold by the trainer's partition, and the bytes they moved."""

from __future__ import annotations

import pytest

from preflight.model.charts import Bar, Bars, Layout, Piece, Place
from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight_checks.charts.server_bars import NOWHERE, holdings, placement, traffic
from preflight_checks.smoke.server_traffic import server_load_uneven
from reference_trainer.ps.partition import bytes_held, overloaded
from reference_trainer.ps.run_report import WorkerStats
from tests.checks.check_builders import claim, facts, fleet, local_fleet
from tests.checks.check_builders import job as built
from tests.checks.servers.test_placement import SPREAD, job, node, table
from tests.checks.smoke.test_completion import JOB as COLLECTIVE
from tests.checks.smoke.test_servers import HEALTHY, JOB, recorded, server, worker

SIZED = job("a:6170,b:6170", "c:6171,d:6171", *table(1001, 8), claim("optimizer", "Adam"))


def layout_of(job_: Job, seen: Facts, nodes: Fleet | None = None) -> Layout:
    """The only placement chart."""
    (found,) = placement(job_, nodes or fleet(4), seen)
    return found


def bars(job_: Job, seen: Facts) -> Bars:
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
        "Where 2 servers and 2 workers are, according to the addresses of the nodes; "
        "bytes are what a server will hold, by the sizes in the files, with 2 optimizer values for each parameter."
    )


def test_two_names_of_one_machine_are_one_node() -> None:
    found = layout_of(job(), facts(node(0, "a", "b"), node(1), node(2, "c"), node(3)))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("node0", ["server 0", "server 1"]),
        ("node2", ["trainer 0"]),
        (NOWHERE, ["trainer 1"]),
    ]
    assert found.places[0].pieces[0].why == "the files do not state the sizes of the parameters"
    assert "address belongs to no node" in found.places[2].pieces[0].why


def test_on_one_machine_placement_follows_the_run() -> None:
    found = layout_of(built(ps_mode=True, ps_servers=1, ps_workers=2), Facts(), local_fleet(3))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("local0", ["server 0"]),
        ("local1", ["worker 0"]),
        ("local2", ["worker 1"]),
    ]
    assert "as the training run starts them" in found.note


def test_held_bytes_match_the_trainers_partition() -> None:
    held = bytes_held((), [(1001, 8)], 2, slots=2)
    found = bars(SIZED, facts(*SPREAD))
    assert found.bars == (Bar("server 0", "node0", float(held[0])), Bar("server 1", "node1", float(held[1])))
    assert "2 optimizer values for each parameter" in found.note


def test_without_sizes_the_run_gives_the_held_bytes() -> None:
    seen = recorded(server(0, table_bytes=64), server(1), worker(0), worker(1))
    (found,) = holdings(JOB, fleet(4), seen)
    assert [(bar.group, bar.value) for bar in found.bars] == [("node0", 5064.0), ("node1", 5000.0)]
    assert found.note == "What each server of the training run held of its small model, for each of 2 servers."
    (places,) = placement(JOB, fleet(4), seen)
    assert places.places[0].pieces == (Piece("server 0", "server", 5064.0),)
    lost = recorded(server(0), Unavailable("crashed", "killed", "", -9), worker(0), worker(1))
    assert list(holdings(JOB, fleet(4), lost)) == []


def test_an_overloaded_server_is_odd() -> None:
    uncut = job(*("a:1,b:1,a:2,b:2", "c:1"), *table(2**20, 8, sparse=False), claim("slice_var_up", False))
    found = bars(uncut, facts(*SPREAD))
    assert [(bar.value, bar.odd) for bar in found.bars] == [(2.0**25, True), (0.0, False), (0.0, False), (0.0, False)]
    assert overloaded([2**25, 0, 0, 0]) == (0,) and overloaded([]) == overloaded([2000, 0, 0]) == ()


def test_traffic_is_odd_where_the_check_reports_it() -> None:
    busy = [WorkerStats(w, f"node{w + 2}", 1, "10.0.0.9", pushes=40, bytes_in=90000, bytes_out=9000) for w in (0, 1)]
    seen = recorded(server(0), server(1, seen=busy), worker(0), worker(1))
    (found,) = traffic(JOB, fleet(4), seen)
    assert [(bar.label, bar.group, bar.value, bar.odd) for bar in found.bars] == [
        ("server 0", "node0", 4000.0, False),
        ("server 1", "node1", 198000.0, True),
    ]
    failing = [v for v in server_load_uneven.judge(JOB, fleet(4), seen) if v.status is Status.FAIL]
    assert [v.nodes for v in failing] == [("node1",)]
    (healthy,) = traffic(JOB, fleet(4), recorded(*HEALTHY))
    assert not any(bar.odd for bar in healthy.bars)


@pytest.mark.parametrize("make", [placement, holdings, traffic])
def test_no_chart_without_servers_or_nodes(make: object) -> None:
    assert callable(make)
    assert list(make(COLLECTIVE, fleet(2), Facts())) == []
    assert list(make(built(ps_mode=True), Fleet(), Facts())) == []


def test_the_order_of_facts_does_not_matter() -> None:
    assert layout_of(SIZED, facts(*SPREAD)) == layout_of(SIZED, facts(*reversed(SPREAD)))
