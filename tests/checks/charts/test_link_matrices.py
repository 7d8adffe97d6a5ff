"""Matrices of links: a text for each failure, values with a unit, no matrix without connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.charts import Mark, Matrix
from preflight.model.findings import Status
from preflight.model.recording import Facts
from preflight_checks.charts.link_matrices import MAX_MARKS, links
from preflight_checks.links.dial_requests import FREE
from preflight_checks.links.reachability import port_unreachable
from preflight_checks.links.slow_links import link_slow
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.links import Dialled, Target, dial
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet
from tests.checks.links.test_arp_conflicts import STRANGER, hardware
from tests.checks.links.test_arp_conflicts import network as neighbourhood
from tests.checks.links.test_reachability import JOB, MASTER, dialled, network
from tests.checks.links.test_slow_links import GOOD, measured


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
        "Of 12 directions between 4 nodes 12 were tried over TCP: 12 are open, 0 are not, 0 are unknown."
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
    assert (found.state, found.why) == ("unknown", "another machine responds to this address")
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
    assert marks(matrices_of(once)["links.bandwidth"])["node3", "node0"].why == "an outlier once, not measured again"
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
