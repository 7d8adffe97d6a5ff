"""The nodes at a glance: what each of them is, and who differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from preflight.exhibit import Cell, Column, Table
from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet, NodeRecord
from preflight_checks.exhibits.telling import Told, brief, cells_of, equal, many, table, told_by
from preflight_checks.host.host_memory import SHARE
from preflight_checks.host.processors import usable_cores
from preflight_checks.links.quality import spoken_rate
from preflight_checks.network.interface_used import used_interfaces
from preflight_checks.per_node import GIB
from preflight_checks.probes.gpus import Gpus, gpus
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, machine

#: What a node's agent did, by words for a person.
_ANSWERED, _SILENT, _FAILED = "answered", "silent", "failed"


def nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """A row a node: its agent, kernel, cores, memory, GPUs, driver and network card, as far as anybody told them."""
    columns = [(Column("agent"), tuple(map(_agent, fleet.records)))]
    for quantity in _QUANTITIES:
        cells = cells_of(fleet, quantity.told(job, facts), alike=quantity.alike)
        if cells is not None:
            columns.append((Column(quantity.name, quantity.unit), cells))
    if len(columns) == 1 and len(fleet.reached) == len(fleet.records):
        return
    told = f"What {len(fleet.reached)} of {many(len(fleet.records), 'node')} told"
    note = f"{told}; what differs from most of them is marked."
    yield table("nodes", "Nodes", note, fleet, columns)


def _agent(record: NodeRecord) -> Cell:
    if not record.problem:
        return Cell(_ANSWERED)
    silent = record.problem_kind == "timeout"
    return Cell(_SILENT if silent else _FAILED, odd=True, why=brief(record.problem))


@dataclass(frozen=True, slots=True)
class _Quantity:
    """One column: its name and unit, what nodes told, and when two values count as the same."""

    name: str
    told: Callable[[Job, Facts], Mapping[str, Told]]
    unit: str = ""
    alike: Callable[[Any, Any], bool] = equal


def _kernel(value: Machine) -> Told:
    return Told(value.kernel or None, "the system does not say")


def _memory(value: Machine) -> Told:
    total = value.memory.total_bytes
    return Told(None if total is None else round(total / GIB, 1), "the system does not say")


def _alike_in_memory(one: float, other: float) -> bool:
    """Whether no module of memory can be missing, as the check of it has it."""
    return min(one, other) >= SHARE * max(one, other)


def _cores(job: Job, facts: Facts) -> Mapping[str, Told]:
    """Those that ranks may use; where nobody asked in their context, those that are online."""

    def usable(value: Limits) -> Told:
        cores = usable_cores(value)
        if cores is None:
            return Told(None, "the system does not say")
        return Told(int(cores) if cores.is_integer() else cores)

    def online(value: Machine) -> Told:
        return Told(value.online_cpus, "the system does not say")

    return {**told_by(facts, machine, online), **told_by(facts, limits, usable)}


def _count(value: Gpus) -> Told:
    if value.problem:
        return Told(None, value.detail or value.problem)
    return Told(sum(not gpu.problem for gpu in value.gpus))


def _model(value: Gpus) -> Told:
    return Told(", ".join(sorted({gpu.name for gpu in value.gpus if gpu.name})) or None, "no GPU says it")


def _driver(value: Gpus) -> Told:
    return Told(value.driver or None, value.detail or value.problem or "the driver does not say")


def _card(job: Job, facts: Facts) -> Mapping[str, Told]:
    """The interface that the node's processes use, and its speed."""
    uses = used_interfaces(job, facts)
    asked = told_by(facts, interfaces, lambda _: Told(None, "which one is used cannot be told"))
    spoken = {
        node: f"{use.interface.name}, {spoken_rate(use.interface.speed_mbps)}"
        if use.interface.speed_mbps
        else use.interface.name
        for node, use in uses.items()
    }
    return {**asked, **{node: Told(text) for node, text in spoken.items()}}


_QUANTITIES = (
    _Quantity("kernel", lambda job, facts: told_by(facts, machine, _kernel)),
    _Quantity("cores", _cores),
    _Quantity("memory", lambda job, facts: told_by(facts, machine, _memory), "GiB", _alike_in_memory),
    _Quantity("GPUs", lambda job, facts: told_by(facts, gpus, _count)),
    _Quantity("GPU model", lambda job, facts: told_by(facts, gpus, _model)),
    _Quantity("driver", lambda job, facts: told_by(facts, gpus, _driver)),
    _Quantity("network card", _card),
)
