"""The nodes at a glance: the properties of each, with differences marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from preflight.model.charts import Cell, Column, Table
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, NodeRecord
from preflight_checks.charts.cells import CellValue, brief, cells_of, equal, plural, table, values_by_node
from preflight_checks.comparison import GIB
from preflight_checks.host.memory import MIN_SHARE
from preflight_checks.host.processors import usable_cores
from preflight_checks.links.fleet_comparison import format_rate
from preflight_checks.network.interface_used import used_interfaces
from preflight_checks.probes.gpus import Gpus, gpus
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, machine

#: The state of a node's agent, in words for a reader.
_ANSWERED, _SILENT, _FAILED = "answered", "silent", "failed"


def nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """One row per node: agent, kernel, cores, memory, GPUs, driver and network card, as far as they are known."""
    columns = [(Column("agent"), tuple(map(_agent, fleet.records)))]
    for quantity in _QUANTITIES:
        cells = cells_of(fleet, quantity.values(job, facts), is_equal=quantity.is_equal)
        if cells is not None:
            columns.append((Column(quantity.name, quantity.unit), cells))
    if len(columns) == 1 and len(fleet.reached) == len(fleet.records):
        return
    values = f"Properties of {len(fleet.reached)} of {plural(len(fleet.records), 'node')}"
    note = f"{values}; values that differ from most nodes are marked."
    yield table("nodes", "Nodes", note, fleet, columns)


def _agent(record: NodeRecord) -> Cell:
    if not record.problem:
        return Cell(_ANSWERED)
    silent = record.problem_kind == "timeout"
    return Cell(_SILENT if silent else _FAILED, odd=True, why=brief(record.problem))


@dataclass(frozen=True, slots=True)
class _Quantity:
    """One column: its name and unit, the values of the nodes, and when two values count as equal."""

    name: str
    values: Callable[[Job, Facts], Mapping[str, CellValue]]
    unit: str = ""
    is_equal: Callable[[Any, Any], bool] = equal


def _kernel(value: Machine) -> CellValue:
    return CellValue(value.kernel or None, "not reported by the system")


def _memory(value: Machine) -> CellValue:
    total = value.memory.total_bytes
    return CellValue(None if total is None else round(total / GIB, 1), "not reported by the system")


def _equal_memory(first: float, second: float) -> bool:
    """Whether two sizes are too close for a missing memory module, by the same margin as the memory check."""
    return min(first, second) >= MIN_SHARE * max(first, second)


def _cores(job: Job, facts: Facts) -> Mapping[str, CellValue]:
    """The cores that ranks may use, or those that are online if the ranks' context was not examined."""

    def usable(value: Limits) -> CellValue:
        cores = usable_cores(value)
        if cores is None:
            return CellValue(None, "not reported by the system")
        return CellValue(int(cores) if cores.is_integer() else cores)

    def online(value: Machine) -> CellValue:
        return CellValue(value.online_cpus, "not reported by the system")

    return {**values_by_node(facts, machine, online), **values_by_node(facts, limits, usable)}


def _count(value: Gpus) -> CellValue:
    if value.problem:
        return CellValue(None, value.detail or value.problem)
    return CellValue(sum(not gpu.problem for gpu in value.gpus))


def _model(value: Gpus) -> CellValue:
    return CellValue(", ".join(sorted({gpu.name for gpu in value.gpus if gpu.name})) or None, "not reported by any GPU")


def _driver(value: Gpus) -> CellValue:
    return CellValue(value.driver or None, value.detail or value.problem or "not reported by the driver")


def _card(job: Job, facts: Facts) -> Mapping[str, CellValue]:
    """The interface that the node's processes use, and its speed."""
    uses = used_interfaces(job, facts)
    values = values_by_node(facts, interfaces, lambda _: CellValue(None, "which interface is used is unknown"))
    describe = {
        node: f"{use.interface.name}, {format_rate(use.interface.speed_mbps)}"
        if use.interface.speed_mbps
        else use.interface.name
        for node, use in uses.items()
    }
    return {**values, **{node: CellValue(text) for node, text in describe.items()}}


_QUANTITIES = (
    _Quantity("kernel", lambda job, facts: values_by_node(facts, machine, _kernel)),
    _Quantity("cores", _cores),
    _Quantity("memory", lambda job, facts: values_by_node(facts, machine, _memory), "GiB", _equal_memory),
    _Quantity("GPUs", lambda job, facts: values_by_node(facts, gpus, _count)),
    _Quantity("GPU model", lambda job, facts: values_by_node(facts, gpus, _model)),
    _Quantity("driver", lambda job, facts: values_by_node(facts, gpus, _driver)),
    _Quantity("network card", _card),
)
