"""All exhibits of the pack together: of one recording, saved and read again, in any order of its answers."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from preflight import catalog
from preflight.exhibit import Exhibit, Layout, Matrix, Table, Timeline
from preflight.recording import FactRecord, Recording
from preflight.report import Report, report_on, to_json
from preflight.saved import load, save
from tests.building import a_recording, assert_follows_schema
from tests.checks.build import fleet, job
from tests.checks.exhibits.test_nodes import node
from tests.checks.exhibits.test_servers import SIZED
from tests.checks.exhibits.test_smoke import said
from tests.checks.exhibits.test_versions import ranks
from tests.checks.test_link_quality import measured
from tests.checks.test_links import network
from tests.checks.test_placement import SPREAD
from tests.checks.test_stragglers import ran, usual

COLLECTIVE = job(backend="nccl", master_addr="node0", master_port=29500)


def recording() -> Recording:
    """Four nodes of which everything was observed that an exhibit shows; the job has ranks and servers."""
    paces = ran(usual).records
    records: list[FactRecord] = [
        *(record for number in range(4) for record in node(number).records),
        *(ranks(f"node{number}") for number in range(4)),
        *network(lambda source, peer, label: "refused" if peer == "node3" else "ok").records,
        *measured(looks=1).records,
        *SPREAD,
        *(replace(pace, started_s=10.0, finished_s=15.0) for pace in paces),
    ]
    events = [event for pace in paces for event in said(pace.request, (11.0, "started"), (12.0, "imported"))]
    both = replace(SIZED, claims=(*SIZED.claims, *COLLECTIVE.claims))
    nodes = fleet(4).records
    made = a_recording(both, verb="check", nodes=nodes, stages=("node", "link", "smoke"), facts=tuple(records))
    return replace(made, events=tuple(events))


def judged(made: Recording) -> Report:
    """The report that `judge` would make of the saved recording."""
    found, broken = catalog.exhibitors()
    return report_on(load(save(made), to_judge=True), (), (), exhibitors=found, unshown=broken)


@pytest.fixture(scope="module")
def report() -> Report:
    """The report on all of it."""
    return judged(recording())


def test_everything_that_was_observed_is_shown_once(report: Report) -> None:
    assert report.coverage.broken == ()
    assert [one.id for one in report.exhibits] == [
        *("nodes", "versions", "links.reach", "links.latency", "links.bandwidth"),
        *("smoke.steps", "smoke.stragglers", "servers.placement", "servers.bytes"),
    ]
    assert_follows_schema(to_json(report))


def test_each_tells_in_one_sentence_what_it_shows_of_how_many(report: Report) -> None:
    for one in report.exhibits:
        assert one.title and re.search(r"\d", one.note) and one.note.endswith("."), one.id
        assert one.note.count(". ") == 0, one.id


def test_each_speaks_of_nodes_of_the_job(report: Report) -> None:
    names = {f"node{number}" for number in range(4)}
    for one in report.exhibits:
        assert _nodes(one) <= names, one.id


def _nodes(one: Exhibit) -> set[str]:
    match one:
        case Table():
            return {row.subject for row in one.rows}
        case Matrix():
            return {*one.rows, *one.columns}
        case Timeline():
            return {lane.node for lane in one.lanes}
        case Layout():
            return {place.node for place in one.places}
    return {bar.group for bar in one.bars}


def test_the_same_answers_in_another_order_give_the_same_bytes(report: Report) -> None:
    made = recording()
    for seed in range(3):
        facts = list(made.facts)
        random.Random(seed).shuffle(facts)
        assert to_json(judged(replace(made, facts=tuple(facts)))) == to_json(report)


def test_in_json_each_is_one_line(report: Report) -> None:
    lines = to_json(report).decode().splitlines()
    first = lines.index('  "exhibits": [') + 1
    shown = lines[first : first + len(report.exhibits)]
    assert [json.loads(line.rstrip(","))["id"] for line in shown] == [one.id for one in report.exhibits]
    assert lines[first + len(report.exhibits) :] == ["  ]", "}"]


def test_nothing_observed_is_nothing_shown() -> None:
    made = a_recording(COLLECTIVE, verb="check", nodes=fleet(4).records, stages=("node",))
    assert judged(made).exhibits == ()
