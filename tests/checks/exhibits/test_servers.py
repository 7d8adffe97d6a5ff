"""Who is on which node, what each server will hold by the trainer's own arithmetic, and what it moved."""

from __future__ import annotations

import pytest

from preflight.exhibit import Bar, Bars, Layout, Piece, Place
from preflight.job import Job
from preflight.outcome import Status
from preflight.recording import Facts, Fleet, Unavailable
from preflight_checks.exhibits.servers import NOWHERE, holdings, placement, traffic
from preflight_checks.smoke.server_load import server_load_uneven
from reference_trainer.ps.report import WorkerSeen
from reference_trainer.ps.sharding import bytes_held, overloaded
from tests.checks.build import claim, facts, fleet, stand_ins
from tests.checks.build import job as built
from tests.checks.test_placement import SPREAD, job, node, table
from tests.checks.test_server_smoke import HEALTHY, JOB, recorded, server, worker
from tests.checks.test_smoke import JOB as COLLECTIVE

SIZED = job("a:6170,b:6170", "c:6171,d:6171", *table(1001, 8), claim("optimizer", "Adam"))


def laid_out(job_: Job, seen: Facts, among: Fleet | None = None) -> Layout:
    """The one layout."""
    (found,) = placement(job_, among or fleet(4), seen)
    return found


def bars(job_: Job, seen: Facts) -> Bars:
    """What servers will hold."""
    (found,) = holdings(job_, fleet(4), seen)
    return found


def test_servers_and_trainers_stand_on_the_nodes_that_have_their_addresses() -> None:
    held = bytes_held((), [(1001, 8)], 2, slots=2)
    found = laid_out(SIZED, facts(*SPREAD))
    assert found.unit == "bytes" and found.places == (
        Place("node0", (Piece("server 0", "server", float(held[0])),)),
        Place("node1", (Piece("server 1", "server", float(held[1])),)),
        Place("node2", (Piece("trainer 0", "trainer", None),)),
        Place("node3", (Piece("trainer 1", "trainer", None),)),
    )
    assert found.note == (
        "Where 2 servers and 2 workers are, as the nodes know their addresses; "
        "bytes are what a server will hold, by the sizes in the files, with 2 further values of the optimizer for each."
    )


def test_two_names_of_one_machine_are_one_place_and_an_unknown_host_is_none() -> None:
    found = laid_out(job(), facts(node(0, "a", "b"), node(1), node(2, "c"), node(3)))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("node0", ["server 0", "server 1"]),
        ("node2", ["trainer 0"]),
        (NOWHERE, ["trainer 1"]),
    ]
    assert found.places[0].pieces[0].why == "the files do not spell out the sizes of the parameters"
    assert "address is that of no node" in found.places[2].pieces[0].why


def test_where_one_machine_plays_all_nodes_they_stand_where_a_run_starts_them() -> None:
    found = laid_out(built(ps_mode=True, ps_servers=1, ps_workers=2), Facts(), stand_ins(3))
    assert [(place.node, [piece.label for piece in place.pieces]) for place in found.places] == [
        ("local0", ["server 0"]),
        ("local1", ["worker 0"]),
        ("local2", ["worker 1"]),
    ]
    assert "as a training run starts them" in found.note


def test_what_servers_will_hold_is_the_trainers_own_arithmetic() -> None:
    held = bytes_held((), [(1001, 8)], 2, slots=2)
    found = bars(SIZED, facts(*SPREAD))
    assert found.bars == (Bar("server 0", "node0", float(held[0])), Bar("server 1", "node1", float(held[1])))
    assert "2 further values of the optimizer for each" in found.note


def test_where_the_files_say_no_sizes_it_is_what_the_training_run_held() -> None:
    seen = recorded(server(0, table_bytes=64), server(1), worker(0), worker(1))
    (found,) = holdings(JOB, fleet(4), seen)
    assert [(bar.group, bar.value) for bar in found.bars] == [("node0", 5064.0), ("node1", 5000.0)]
    assert found.note == "What a server of the training run held of its small model, for each of 2 servers."
    (places,) = placement(JOB, fleet(4), seen)
    assert places.places[0].pieces == (Piece("server 0", "server", 5064.0),)
    lost = recorded(server(0), Unavailable("crashed", "killed", "", -9), worker(0), worker(1))
    assert list(holdings(JOB, fleet(4), lost)) == []


def test_a_server_that_holds_far_more_than_its_share_is_odd() -> None:
    uncut = job(*("a:1,b:1,a:2,b:2", "c:1"), *table(2**20, 8, sparse=False), claim("slice_var_up", False))
    found = bars(uncut, facts(*SPREAD))
    assert [(bar.value, bar.odd) for bar in found.bars] == [(2.0**25, True), (0.0, False), (0.0, False), (0.0, False)]
    assert overloaded([2**25, 0, 0, 0]) == (0,) and overloaded([]) == overloaded([2000, 0, 0]) == ()


def test_what_servers_moved_is_odd_where_the_check_says_so() -> None:
    busy = [WorkerSeen(w, f"node{w + 2}", 1, "10.0.0.9", pushes=40, bytes_in=90000, bytes_out=9000) for w in (0, 1)]
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
def test_a_job_without_servers_or_nodes_has_none(make: object) -> None:
    assert callable(make)
    assert list(make(COLLECTIVE, fleet(2), Facts())) == []
    assert list(make(built(ps_mode=True), Fleet(), Facts())) == []


def test_the_order_in_which_answers_came_changes_nothing() -> None:
    assert laid_out(SIZED, facts(*SPREAD)) == laid_out(SIZED, facts(*reversed(SPREAD)))
