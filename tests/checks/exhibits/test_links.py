"""The ways between nodes as matrices: a word for each failure, values with a unit, nothing where nothing was tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.exhibit import Mark, Matrix
from preflight.outcome import Status
from preflight.recording import Facts
from preflight_checks.exhibits.links import MOST_MARKS, links
from preflight_checks.links.dialling import FREE
from preflight_checks.links.link_quality import link_slow
from preflight_checks.links.links import port_unreachable
from preflight_checks.probes.link_quality import Quality, Way, measure
from preflight_checks.probes.links import Dialled, Target, dial
from tests.checks.build import TIMEOUT, fact, facts, fleet, job, judge, stand_ins
from tests.checks.test_link_quality import GOOD, measured
from tests.checks.test_links import JOB, MASTER, dialled, network
from tests.checks.test_neighbours import STRANGER, hardware
from tests.checks.test_neighbours import network as neighbourhood


def shown(seen: Facts, count: int = 4) -> dict[str, Matrix]:
    """The matrices by id."""
    return {one.id: one for one in links(job(**JOB), fleet(count), seen)}


def marks(matrix: Matrix) -> dict[tuple[str, str], Mark]:
    """The marks by the names of their row and column."""
    return {(matrix.rows[mark.row], matrix.columns[mark.column]): mark for mark in matrix.marks}


def test_who_reaches_whom_where_all_is_well() -> None:
    (found,) = shown(network(lambda source, peer, label: "ok")).values()
    assert found.id == "links.reach" and found.rows == found.columns == ("node0", "node1", "node2", "node3")
    assert len(found.marks) == 12 and {(mark.state, mark.value, mark.why) for mark in found.marks} == {("ok", None, "")}
    assert found.note == (
        "Of 12 ways between 4 nodes 12 were tried over TCP: 12 are open, 0 are not, 0 could not be told."
    )


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        ("refused", "bad", "refused"),
        ("filtered", "bad", "filtered"),
        ("unresolved", "bad", "unresolved"),
        ("reset", "bad", "reset"),
        ("stalled", "bad", "stalled"),
        ("slow", "bad", "slow"),
        ("no-route", "bad", "no route"),
        ("stranger", "bad", "another program answers"),
        ("silent", "bad", "accepted, then silence"),
        ("unbound", "unknown", "nobody could listen there"),
        ("untried", "unknown", "not tried in time"),
    ],
)
def test_each_failure_has_its_word(status: str, state: str, why: str) -> None:
    seen = network(lambda source, peer, label: status if (source, peer) == ("node1", "node3") else "ok")
    found = marks(shown(seen)["links.reach"])
    assert found["node1", "node3"] == Mark(1, 3, None, state, why)  # type: ignore[arg-type]
    assert [pair for pair, mark in found.items() if mark.state != "ok"] == [("node1", "node3")]


def test_a_port_that_fails_beside_one_that_works_is_named() -> None:
    seen = network(lambda source, peer, label: "refused" if label == MASTER and source == "node2" else "ok")
    assert marks(shown(seen)["links.reach"])["node2", "node0"].why == f"refused on {MASTER}"


def test_both_ports_of_a_closed_node_are_one_word() -> None:
    found = marks(shown(network(lambda source, peer, label: "filtered" if peer == "node0" else "ok"))["links.reach"])
    assert {pair: mark.why for pair, mark in found.items() if mark.state == "bad"} == {
        (f"node{number}", "node0"): "filtered" for number in (1, 2, 3)
    }


def test_what_another_machine_answers_for_is_not_known_as_for_the_check() -> None:
    seen = neighbourhood(answers={(0, 2): [hardware(2), STRANGER]}, status={(0, 2): "refused"})
    found = marks(shown(seen)["links.reach"])["node0", "node2"]
    assert (found.state, found.why) == ("unknown", "another machine answers for the address")
    assert {verdict.status for verdict in judge(port_unreachable, job(**JOB), fleet(), seen)} >= {Status.UNKNOWN}


def test_a_node_that_could_not_dial_is_not_known_and_one_that_is_not_there_was_not_tried() -> None:
    records = dialled(lambda source, peer, label: "ok", ["node0", "node1"])
    seen = facts(*records, fact(dial, "node2", TIMEOUT, peers=("node0", "node1")))
    found = marks({one.id: one for one in links(job(**JOB), fleet(4, node3="refused"), seen)}["links.reach"])
    assert found["node2", "node0"] == Mark(2, 0, None, "unknown", TIMEOUT.reason)
    assert not [pair for pair in found if "node3" in pair]


def test_round_trips_and_rates_have_one_unit_each_in_every_run() -> None:
    found = shown(measured(looks=1))
    assert set(found) == {"links.latency", "links.bandwidth"}
    trips, rates = found["links.latency"], found["links.bandwidth"]
    assert (trips.unit, rates.unit) == ("µs", "Gbit/s")
    assert marks(trips)["node0", "node1"] == Mark(0, 1, 60.0, "ok")
    assert marks(rates)["node1", "node0"] == Mark(1, 0, 9.4, "ok")
    assert "measured between 6 of 6 pairs of nodes" in trips.note
    far = Quality("", "", "", 0.02, 0.0213579, 0.03, 1e-4, 200, 0)
    slow = replace(GOOD, single_mbps=90.0, several_mbps=94.0)
    late = shown(measured(lambda s, p, look: slow, trips=lambda a, b: far))
    assert (late["links.latency"].unit, late["links.bandwidth"].unit) == ("µs", "Gbit/s")
    assert marks(late["links.latency"])["node2", "node3"].value == 21360.0
    assert marks(late["links.bandwidth"])["node2", "node3"].value == 0.094


def test_a_mark_is_bad_exactly_where_the_check_says_so() -> None:
    slow = replace(GOOD, single_mbps=9.0, several_mbps=11.0)

    def ways(source: str, peer: str, look: int) -> Way:
        return slow if {source, peer} == {"node1", "node2"} else GOOD

    seen = measured(ways)
    found = marks(shown(seen)["links.bandwidth"])
    bad = {pair: mark for pair, mark in found.items() if mark.state == "bad"}
    assert set(bad) == {("node1", "node2"), ("node2", "node1")} and {mark.why for mark in bad.values()} == {"slow"}
    (finding,) = [v for v in judge(link_slow, job(**JOB), fleet(), seen) if v.status is Status.FAIL]
    assert set(finding.nodes) == {name for pair in bad for name in pair}


def test_a_way_that_was_slow_once_or_while_a_node_was_busy_is_not_known() -> None:
    once = measured(
        lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0) if s == "node3" else GOOD, looks=1
    )
    assert marks(shown(once)["links.bandwidth"])["node3", "node0"].why == "out of line once, not measured again"
    busy = measured(
        lambda s, p, look: replace(GOOD, single_mbps=9.0, several_mbps=9.0, busy=0.7) if s == "node3" else GOOD
    )
    assert marks(shown(busy)["links.bandwidth"])["node3", "node0"].why == "inconclusive: host busy"


def test_a_measurement_that_failed_is_marked_with_its_reason() -> None:
    records = [
        record
        for record in measured(looks=1).records
        if (record.request.node, *record.request.peers) != ("node0", "node1")
    ]
    seen = facts(*records, fact(measure, "node0", TIMEOUT, peers=("node1",)))
    for matrix in shown(seen).values():
        assert marks(matrix)["node0", "node1"] == Mark(0, 1, None, "unknown", TIMEOUT.reason)


def test_of_very_many_ways_some_good_ones_are_left_out_and_no_other() -> None:
    names = [f"node{number}" for number in range(1000)]
    records = []
    for number, name in enumerate(names):
        peers = [names[(number + step) % 1000] for step in range(1, 25)]
        targets = [
            Target(peer, FREE, peer, 0, "refused" if peer == "node7" else "ok", "10.0.0.1", "", 0.1) for peer in peers
        ]
        records.append(fact(dial, name, Dialled(targets), peers=tuple(peers)))
    found = shown(facts(*records), 1000)["links.reach"]
    assert len(found.marks) == MOST_MARKS
    assert sum(mark.state == "bad" for mark in found.marks) == 24
    assert f"{MOST_MARKS} of these 24000 are marked" in found.note
    rows = [sum(mark.row == number for mark in found.marks[:3000]) for number in range(10)]
    assert min(rows) > 10, "what is left out is spread over all nodes"


def test_nothing_tried_is_no_matrix() -> None:
    assert shown(facts()) == {}
    assert list(links(job(**JOB), stand_ins(2), facts())) == []


def test_the_order_in_which_answers_came_changes_nothing() -> None:
    records = [*network(lambda source, peer, label: "ok").records, *measured(looks=1).records]
    assert shown(facts(*records)) == shown(facts(*reversed(records)))
