"""All charts of one recording, saved and read again, with its facts in any order."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from preflight.engine.report import Report, report_on, to_json
from preflight.model.charts import Chart, Layout, Matrix, Table, Timeline
from preflight.model.recording import FactRecord, Recording
from preflight.model.recording_io import load, save
from preflight.plugins import registry
from tests.builders import assert_follows_schema, make_recording
from tests.checks.charts.test_node_tables import node
from tests.checks.charts.test_rank_timelines import phase_events
from tests.checks.charts.test_server_bars import SIZED
from tests.checks.charts.test_version_tables import ranks
from tests.checks.check_builders import fleet, job
from tests.checks.links.test_reachability import network
from tests.checks.links.test_slow_links import measured
from tests.checks.servers.test_placement import SPREAD
from tests.checks.smoke.test_stragglers import run_facts, usual_window

COLLECTIVE = job(backend="nccl", master_addr="node0", master_port=29500)


def recording() -> Recording:
    """A recording of four nodes with a fact for every chart; the job has ranks and servers."""
    paces = run_facts(usual_window).records
    records: list[FactRecord] = [
        *(record for number in range(4) for record in node(number).records),
        *(ranks(f"node{number}") for number in range(4)),
        *network(lambda source, peer, label: "refused" if peer == "node3" else "ok").records,
        *measured(looks=1).records,
        *SPREAD,
        *(replace(pace, started_s=10.0, finished_s=15.0) for pace in paces),
    ]
    events = [event for pace in paces for event in phase_events(pace.request, (11.0, "started"), (12.0, "imported"))]
    both = replace(SIZED, claims=(*SIZED.claims, *COLLECTIVE.claims))
    nodes = fleet(4).records
    made = make_recording(both, verb="check", nodes=nodes, stages=("node", "link", "smoke"), facts=tuple(records))
    return replace(made, events=tuple(events))


def judged(made: Recording) -> Report:
    """The report that `judge` would make of the saved recording."""
    found, broken = registry.chart_makers()
    return report_on(load(save(made), to_judge=True), (), (), chart_makers=found, missing_charts=broken)


@pytest.fixture(scope="module")
def report() -> Report:
    """The report on this recording."""
    return judged(recording())


def test_every_chart_occurs_once(report: Report) -> None:
    assert report.coverage.broken == ()
    assert [one.id for one in report.charts] == [
        *("nodes", "versions", "links.reach", "links.latency", "links.bandwidth"),
        *("smoke.steps", "smoke.stragglers", "servers.placement", "servers.bytes"),
    ]
    assert_follows_schema(to_json(report))


def test_each_note_is_one_sentence_with_a_count(report: Report) -> None:
    for one in report.charts:
        assert one.title and re.search(r"\d", one.note) and one.note.endswith("."), one.id
        assert one.note.count(". ") == 0, one.id


def test_charts_name_only_nodes_of_the_job(report: Report) -> None:
    names = {f"node{number}" for number in range(4)}
    for one in report.charts:
        assert _nodes(one) <= names, one.id


def _nodes(one: Chart) -> set[str]:
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


def test_facts_in_another_order_give_the_same_bytes(report: Report) -> None:
    made = recording()
    for seed in range(3):
        facts = list(made.facts)
        random.Random(seed).shuffle(facts)
        assert to_json(judged(replace(made, facts=tuple(facts)))) == to_json(report)


def test_each_chart_is_one_line_of_json(report: Report) -> None:
    lines = to_json(report).decode().splitlines()
    first = lines.index('  "charts": [') + 1
    shown = lines[first : first + len(report.charts)]
    assert [json.loads(line.rstrip(","))["id"] for line in shown] == [one.id for one in report.charts]
    assert lines[first + len(report.charts)] == "  ],"


def test_no_charts_without_facts() -> None:
    made = make_recording(COLLECTIVE, verb="check", nodes=fleet(4).records, stages=("node",))
    assert judged(made).charts == ()
