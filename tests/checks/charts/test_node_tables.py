"""The table of nodes: reported values, differences, and nodes that were not reached."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.charts import Cell, Table
from preflight.model.recording import FactRecord, Facts, Fleet
from preflight_checks.charts.node_tables import nodes
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, Memory, machine
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job

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
