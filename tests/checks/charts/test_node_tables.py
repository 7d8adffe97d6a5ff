"""The table of nodes: reported values, differences, and nodes that were not reached."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from preflight.engine.report import Report, report_on, to_json
from preflight.model.charts import Cell, Chart, Layout, Matrix, Table, Timeline
from preflight.model.recording import FactRecord, Facts, Fleet, Recording
from preflight.model.recording_io import load, save
from preflight.plugins import registry
from preflight_checks.charts.node_tables import nodes, versions
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, Memory, machine
from preflight_checks.probes.packages import Framework, Packages, installed, packages
from preflight_checks.probes.stack import Build, Stack, stack
from tests.builders import assert_follows_schema, make_recording
from tests.checks.charts.test_run_charts import SIZED, phase_events
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job
from tests.checks.context.test_context import GOOD
from tests.checks.links.test_reachability import network
from tests.checks.links.test_slow_links import measured
from tests.checks.servers.test_placement import SPREAD
from tests.checks.smoke.test_speed import run_facts, usual_window
from tests.checks.software.test_software import packages_node as listed

GIB = 2**30
MACHINE = Machine("5.15.0-91-generic", "x86_64", online_cpus=64, memory=Memory(512 * GIB))
CARDS = Gpus("550.54.15", "550.54.15", "12.4", [Gpu(i, "NVIDIA H100", f"GPU-{i}") for i in range(8)])
JOB = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth0")


def node(index: int, *, kernel: str = "", memory_bytes: int = 512 * GIB, cores: int = 64, nic: str = "eth0") -> Facts:
    """The facts of one node."""
    name = f"node{index}"
    here = replace(MACHINE, kernel=kernel or MACHINE.kernel, memory=Memory(memory_bytes))
    card = Interface(nic, True, True, False, [Address(f"10.0.0.{index + 1}", 24)], 1500, 25000, "physical")
    return facts(
        fact(machine, name, here),
        fact(limits, name, Limits(1024, 1024, None, usable_cpus=list(range(cores)), online_cpus=64), context=True),
        fact(interfaces, name, Interfaces([card], "ioctl")),
        fact(gpus, name, CARDS),
    )


def merged(*several: Facts) -> Facts:
    """The facts of all nodes."""
    records: list[FactRecord] = [record for one in several for record in one.records]
    return facts(*records)


def node_table(seen: Facts, among: Fleet) -> Table:
    """The only table."""
    (found,) = nodes(JOB, among, seen)
    return found


def column(table: Table, name: str) -> list[Cell]:
    """The cells of one column, by node."""
    (place,) = [number for number, column in enumerate(table.columns) if column.name == name]
    return [row.cells[place] for row in table.rows]


def test_equal_nodes_have_a_row_each_without_marks() -> None:
    found = node_table(merged(*(node(i) for i in range(3))), fleet(3))
    assert [row.subject for row in found.rows] == ["node0", "node1", "node2"]
    assert [(c.name, c.unit) for c in found.columns] == [
        ("agent", ""),
        ("kernel", ""),
        ("cores", ""),
        ("memory", "GiB"),
        ("GPUs", ""),
        ("GPU model", ""),
        ("driver", ""),
        ("network card", ""),
    ]
    assert [cell.value for cell in found.rows[0].cells] == [
        *("answered", "5.15.0-91-generic", 64, 512.0, 8, "NVIDIA H100", "550.54.15", "eth0, 25 Gbit/s"),
    ]
    assert not [cell for row in found.rows for cell in row.cells if cell.odd or cell.why]
    assert found.note == "Properties of 3 of 3 nodes; values that differ from most nodes are marked."


def test_rare_values_are_marked_but_not_slightly_less_memory() -> None:
    odd = node(2, kernel="6.8.0", cores=4, memory_bytes=448 * GIB)
    found = node_table(merged(node(0), node(1, memory_bytes=511 * GIB), odd), fleet(3))
    assert [cell.odd for cell in column(found, "kernel")] == [False, False, True]
    assert column(found, "cores")[2] == Cell(4, odd=True)
    assert column(found, "memory") == [Cell(512.0), Cell(511.0), Cell(448.0, odd=True)]


def test_lost_gpus_are_not_counted_and_a_silent_driver_has_a_reason() -> None:
    lost = fact(gpus, "node1", replace(CARDS, gpus=[*CARDS.gpus[:7], Gpu(7, problem="it fell off the bus")]))
    dead = fact(gpus, "node2", Gpus(problem="no-driver", detail="NVML: Driver Not Loaded"))
    found = node_table(facts(fact(gpus, "node0", CARDS), lost, dead), fleet(3))
    assert column(found, "GPUs") == [Cell(8), Cell(7, odd=True), Cell(None, why="NVML: Driver Not Loaded")]
    assert column(found, "driver")[2].why == "NVML: Driver Not Loaded"


def test_an_unreached_node_is_marked_with_the_reason() -> None:
    there = Fleet(
        tuple(
            replace(record, problem_kind="timeout") if record.node.name == "node1" else record
            for record in fleet(3, node1="node1: no agent within 15 s", node2="Permission denied").records
        )
    )
    found = node_table(node(0), there)
    assert column(found, "agent") == [
        Cell("answered"),
        Cell("silent", odd=True, why="node1: no agent within 15 s"),
        Cell("failed", odd=True, why="Permission denied"),
    ]
    assert column(found, "kernel")[1] == Cell(None, why="no agent")
    assert found.note.startswith("Properties of 1 of 3 nodes")


def test_a_missing_fact_leaves_its_reason_in_the_cell() -> None:
    found = node_table(facts(fact(machine, "node0", MACHINE), fact(machine, "node1", TIMEOUT)), fleet(2))
    assert column(found, "kernel") == [Cell("5.15.0-91-generic"), Cell(None, why=TIMEOUT.reason)]


def test_columns_without_values_are_omitted() -> None:
    found = node_table(facts(fact(machine, "node0", Machine("6.8.0", "x86_64"))), fleet(1))
    assert [c.name for c in found.columns] == ["agent", "kernel"]
    assert list(nodes(JOB, fleet(4), facts())) == []
    assert list(nodes(JOB, Fleet(), facts())) == []
    assert len(list(nodes(JOB, fleet(2, node1="refused"), facts()))) == 1, "that a node failed is something to show"


def test_the_order_of_facts_does_not_matter() -> None:
    several = [node(0, kernel="6.8.0"), node(1, cores=8), node(2, nic="eth1")]
    assert node_table(merged(*several), fleet(3)) == node_table(merged(*reversed(several)), fleet(3))


# The table of versions: frameworks always, other packages where they differ, up to a limit.


VERSIONS_JOB = job(backend="nccl")


def ranks(name: str, torch: str = "2.7.1", *, cuda: str = "12.8", nccl: str = "2.26.2") -> FactRecord:
    """The facts about the frameworks in the ranks' interpreter."""
    found = {"torch": torch, "nccl": nccl}
    return fact(packages, name, Packages("3.11.7", "/env/bin/python", found, Framework(torch, cuda)), context=True)


def version_table(*records: FactRecord, count: int) -> Table:
    """The only table."""
    (found,) = versions(VERSIONS_JOB, fleet(count), facts(*records))
    return found


def names(table: Table) -> list[str]:
    """The names of the columns."""
    return [column.name for column in table.columns]


def test_frameworks_are_always_listed() -> None:
    found = version_table(ranks("node0"), ranks("node1"), count=2)
    assert names(found) == ["python", "torch", "CUDA runtime", "NCCL"]
    assert [cell.value for cell in found.rows[1].cells] == ["3.11.7", "2.7.1", "12.8", "2.26.2"]
    assert not [cell for row in found.rows for cell in row.cells if cell.odd]


def test_odd_and_missing_frameworks_are_marked() -> None:
    lacking = fact(packages, "node3", Packages("3.11.7", "/env/bin/python"), context=True)
    found = version_table(ranks("node0"), ranks("node1"), ranks("node2", "2.3.0"), lacking, count=4)
    assert column(found, "torch") == [
        *(Cell("2.7.1"), Cell("2.7.1"), Cell("2.3.0", odd=True), Cell("not installed", odd=True)),
    ]
    assert column(found, "NCCL")[3] == Cell(None, why="not reported")


def test_a_build_without_cuda_is_listed_beside_builds_with_it() -> None:
    assert column(version_table(ranks("node0"), ranks("node1"), ranks("node2", cuda=""), count=3), "CUDA runtime") == [
        *(Cell("12.8"), Cell("12.8"), Cell("none", odd=True)),
    ]
    assert "CUDA runtime" not in names(version_table(ranks("node0", cuda=""), ranks("node1", cuda=""), count=2))


def test_build_and_driver_are_listed_for_gpu_jobs() -> None:
    build = Build("torch", "2.7.1", "12.8", "", "9.7.1", "2.26.2")
    found = version_table(
        *(fact(stack, f"node{i}", Stack("/env/bin/python", [build])) for i in range(2)),
        fact(stack, "node2", Stack("/env/bin/python", [replace(build, cudnn="8.9.7")])),
        *(fact(gpus, f"node{i}", Gpus("550.54.15" if i else "535.104.5", gpus=[Gpu(0)])) for i in range(3)),
        count=3,
    )
    assert names(found) == ["CUDA runtime", "cuDNN", "NCCL", "driver"]
    assert column(found, "cuDNN")[2] == Cell("8.9.7", odd=True)
    assert column(found, "driver")[0] == Cell("535.104.5", odd=True)


def test_equal_packages_are_only_counted() -> None:
    odd = {"numpy": "2.1.0", "tqdm": ""}
    found = version_table(listed("node0"), listed("node1"), listed("node2", odd), count=4)
    assert names(found) == ["python", "numpy", "tqdm"], "first what ranks compute with in step"
    assert column(found, "numpy")[2] == Cell("2.1.0", odd=True)
    assert column(found, "tqdm")[2:] == [Cell("not installed", odd=True), Cell(None, why="not reported")]
    assert found.note == (
        "0 more packages of 3 of 4 nodes are the same everywhere; versions that differ from most nodes are marked."
    )
    same = version_table(listed("node0"), listed("node1"), count=2)
    assert names(same) == ["python"] and same.note.startswith("2 more packages of 2 of 2 nodes are the same")


def test_a_node_with_its_own_environment_does_not_flood_the_table() -> None:
    odd = {f"package-{number:03}": "1.0" for number in range(400)}
    found = version_table(listed("node0"), listed("node1"), listed("node2", odd), count=3)
    assert len(found.columns) == 1 + 24
    assert "376 more differ and are not listed" in found.note
    large = [listed(f"node{number}", odd if number == 7 else None) for number in range(1000)]
    assert len(version_table(*large, count=1000).columns) == 1 + 8


def test_a_differing_digest_is_noted() -> None:
    summed = [fact(installed, f"node{i}", replace(GOOD, distributions={}, digest=str(i // 2))) for i in range(3)]
    assert "that nodes report only as a digest" in version_table(*summed, count=3).note


def test_a_missing_fact_has_its_reason_and_no_facts_give_no_table() -> None:
    found = version_table(ranks("node0"), fact(packages, "node1", TIMEOUT, context=True), count=2)
    assert column(found, "python")[1] == Cell(None, why=TIMEOUT.reason)
    assert list(versions(VERSIONS_JOB, fleet(2), facts())) == []
    assert list(versions(VERSIONS_JOB, fleet(1), facts(fact(packages, "node0", TIMEOUT)))) == []


def test_versions_the_order_of_facts_does_not_matter() -> None:
    several = [ranks("node0"), listed("node0"), ranks("node1", "2.3.0"), listed("node1", {"numpy": "2.1.0"})]
    assert version_table(*several, count=2) == version_table(*reversed(several), count=2)


# All charts of one recording, saved and read again, with its facts in any order.


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
