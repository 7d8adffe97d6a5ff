"""Charts of nodes (their properties and differences), and the cells that all charts share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from preflight.model.charts import Cell, Column, Row, Table
from preflight.model.job import Job
from preflight.model.measurements import Measurements, Quantity
from preflight.model.recording import Facts, Fleet, NodeRecord, Observed
from preflight.plugins.claim_text import counted
from preflight_checks.context.copies import computed_in_step
from preflight_checks.host.processors import MIN_MEMORY_SHARE, usable_cores
from preflight_checks.links.fleet_comparison import format_rate
from preflight_checks.network.nic_health import states_in_use
from preflight_checks.network.nics import used_interfaces
from preflight_checks.plans import GIB, split
from preflight_checks.plans import table as data_table
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, machine
from preflight_checks.probes.packages import DISTRIBUTIONS, Installed, Packages, installed, packages
from preflight_checks.probes.rdma import rdma
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.software.frameworks import build_of

T = TypeVar("T")
Value = str | float | int
#: A cell holds a few words; findings, outcomes and facts hold the full text.
_MAX_LENGTH = 80
NO_AGENT = "no agent"


@dataclass(frozen=True, slots=True)
class CellValue:
    """One value of one node, or the reason why it is unknown (the value is then None)."""

    value: Value | None
    why: str = ""


def are_equal(first: Value, second: Value) -> bool:
    """Return whether two values are the same."""
    return first == second


def cells_of(
    fleet: Fleet, values: Mapping[str, CellValue], *, is_equal: Callable[[Any, Any], bool] = are_equal
) -> tuple[Cell, ...] | None:
    """Return one cell per node; values other than the most common one are marked. None if all are unknown."""
    division = split({node.name: value for node in fleet.nodes if (value := _value(values, node.name)) is not None})
    if division is None:
        return None
    cells: list[Cell] = []
    for record in fleet.records:
        reported = values.get(record.node.name) or CellValue(None, NO_AGENT if record.problem else "not reported")
        if reported.value is None:
            cells.append(Cell(None, why=cell_text(reported.why)))
        else:
            shown = cell_text(reported.value) if isinstance(reported.value, str) else reported.value
            cells.append(Cell(shown, odd=not is_equal(reported.value, division.common)))
    return tuple(cells)


def _value(values: Mapping[str, CellValue], node: str) -> Value | None:
    value = values.get(node)
    return None if value is None else value.value


def values_by_node(facts: Facts, probe: Callable[..., T], read: Callable[[T], CellValue]) -> dict[str, CellValue]:
    """Return the result of `read` for each requested node's fact, or why the fact is missing."""
    found: dict[str, CellValue] = {}
    for row in facts.each(probe):
        value = read(row.fact.value) if isinstance(row.fact, Observed) else CellValue(None, row.fact.reason)
        if row.node not in found or (found[row.node].value is None and value.value is not None):
            found[row.node] = value
    return found


def cell_text(text: str) -> str:
    """Return the first line of a text, cut to the width of a cell."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3].rstrip() + "..."


def table(id: str, title: str, note: str, fleet: Fleet, columns: Sequence[tuple[Column, Sequence[Cell]]]) -> Table:
    """Return one row per node, in rank order, built from columns with one cell per node."""
    rows = (Row(node.name, tuple(cells[number] for _, cells in columns)) for number, node in enumerate(fleet.nodes))
    return Table(id, title, note, tuple(column for column, _ in columns), tuple(rows))


def sample_of(items: Sequence[T], limit: int, keep: Callable[[T], bool]) -> tuple[T, ...]:
    """Return at most `limit` of the items, in order: those to `keep`, and an even sample of the others."""
    if len(items) <= limit:
        return tuple(items)
    kept = [index for index, item in enumerate(items) if keep(item)]
    used = set(kept)
    others = [index for index in range(len(items)) if index not in used]
    chosen = [*_evenly_spaced(kept, limit), *_evenly_spaced(others, limit - min(limit, len(kept)))]
    return tuple(items[index] for index in sorted(chosen))


def _evenly_spaced(indices: Sequence[int], limit: int) -> Iterable[int]:
    count = len(indices)
    return indices if count <= limit else [indices[number * count // limit] for number in range(limit)]


def round_digits(value: float, digits: int = 4) -> float | None:
    """Return a measured number rounded to its significant digits; None for anything that is not a number."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


#: The state of a node's agent, in words for a reader.
_ANSWERED, _SILENT, _FAILED = "answered", "silent", "failed"


def nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """Yield one row per node: agent, kernel, cores, memory, GPUs, driver and network card, as far as they are known."""
    columns = [(Column("agent"), tuple(map(_agent, fleet.records)))]
    for quantity in _QUANTITIES:
        cells = cells_of(fleet, quantity.values(job, facts), is_equal=quantity.is_equal)
        if cells is not None:
            columns.append((Column(quantity.name, quantity.unit), cells))
    if len(columns) == 1 and len(fleet.reached) == len(fleet.records):
        return
    values = f"Properties of {len(fleet.reached)} of {counted(len(fleet.records), 'node')}"
    note = f"{values}; values that differ from most nodes are marked."
    yield table("nodes", "Nodes", note, fleet, columns)


def _agent(record: NodeRecord) -> Cell:
    if not record.problem:
        return Cell(_ANSWERED)
    silent = record.problem_kind == "timeout"
    return Cell(_SILENT if silent else _FAILED, odd=True, why=cell_text(record.problem))


@dataclass(frozen=True, slots=True)
class _Quantity:
    """One column: its name and unit, the values of the nodes, and when two values count as equal."""

    name: str
    values: Callable[[Job, Facts], Mapping[str, CellValue]]
    unit: str = ""
    is_equal: Callable[[Any, Any], bool] = are_equal


def _kernel(value: Machine) -> CellValue:
    return CellValue(value.kernel or None, "not reported by the system")


def _memory(value: Machine) -> CellValue:
    total = value.memory.total_bytes
    return CellValue(None if total is None else round(total / GIB, 1), "not reported by the system")


def _equal_memory(first: float, second: float) -> bool:
    """Return whether two sizes are too close for a missing memory module, by the same margin as the memory check."""
    return min(first, second) >= MIN_MEMORY_SHARE * max(first, second)


def _cores(job: Job, facts: Facts) -> Mapping[str, CellValue]:
    """Return the cores that ranks may use, or the online cores if the ranks' context was not examined."""

    def usable_cores_cell(value: Limits) -> CellValue:
        cores = usable_cores(value)
        if cores is None:
            return CellValue(None, "not reported by the system")
        return CellValue(int(cores) if cores.is_integer() else cores)

    def online(value: Machine) -> CellValue:
        return CellValue(value.online_cpus, "not reported by the system")

    return {**values_by_node(facts, machine, online), **values_by_node(facts, limits, usable_cores_cell)}


def _count(value: Gpus) -> CellValue:
    if value.problem:
        return CellValue(None, value.detail or value.problem)
    return CellValue(sum(not gpu.problem for gpu in value.gpus))


def _model(value: Gpus) -> CellValue:
    return CellValue(", ".join(sorted({gpu.name for gpu in value.gpus if gpu.name})) or None, "not reported by any GPU")


def _driver(value: Gpus) -> CellValue:
    return CellValue(value.driver or None, value.detail or value.problem or "not reported by the driver")


def _card(job: Job, facts: Facts) -> Mapping[str, CellValue]:
    """Return the name and the speed of the interface that the node's processes use."""
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


#: A node with its own environment differs in hundreds of packages: at most this many cells are shown, but some columns
#: of any fleet, and no more columns than for a small one.
_MAX_CELLS, _MIN_COLUMNS, _MAX_COLUMNS = 8_000, 6, 24
_ABSENT = "not installed"
_NOT_REPORTED = "not reported"


def versions(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """Yield one row per node: Python, frameworks, CUDA, cuDNN, NCCL, driver, and packages that differ between nodes."""
    observed = facts.observed(installed)
    unlike, equal_count = _differing_packages(observed)
    most = min(_MAX_COLUMNS, max(_MIN_COLUMNS, _MAX_CELLS // max(1, len(fleet.nodes))))
    packages = ((name, values_by_node(facts, installed, partial(_version, name))) for name in unlike[:most])
    columns = [
        (Column(name), cells)
        for name, values in (*_components(job, facts), *packages)
        if (cells := cells_of(fleet, values)) is not None
    ]
    if columns:
        note = _note(len(fleet.nodes), observed, equal_count, len(unlike) - most)
        yield table("versions", "Versions", note, fleet, columns)


def _note(nodes: int, observed: Mapping[str, Installed], equal_count: int, more: int) -> str:
    if not observed:
        return f"Versions on {counted(nodes, 'node')}; versions that differ from most nodes are marked."
    reporting = f"{len(observed)} of {counted(nodes, 'node')}"
    summary = f"{counted(equal_count, 'more package')} of {reporting} are the same everywhere"
    if more > 0:
        summary += f", {more} more differ and are not listed"
    elif len({value.digest for value in observed.values()}) > 1 and not _lists_all(observed):
        summary += ", and some differ that nodes report only as a digest"
    return f"{summary}; versions that differ from most nodes are marked."


def _lists_all(observed: Mapping[str, Installed]) -> bool:
    """Return whether the listed packages explain every difference between the digests of all packages."""
    lists = {tuple(sorted(value.distributions.items())) for value in observed.values()}
    return len(lists) == len({value.digest for value in observed.values()})


def _components(job: Job, facts: Facts) -> Iterator[tuple[str, Mapping[str, CellValue]]]:
    """Yield the components that get a column even if their version is the same on all nodes."""
    own = values_by_node(facts, installed, lambda value: CellValue(value.python))
    yield "python", {**own, **values_by_node(facts, packages, lambda value: CellValue(value.python))}
    listed = facts.observed(packages)
    for name in DISTRIBUTIONS:
        if name != "nccl" and any(name in value.versions for value in listed.values()):
            yield name, values_by_node(facts, packages, partial(_framework, name))
    yield (
        "CUDA runtime",
        _with_or_without({**values_by_node(facts, packages, _cuda), **_build_versions(job, facts, "cuda")}),
    )
    yield "cuDNN", _known_version(_build_versions(job, facts, "cudnn"))
    nccl = values_by_node(facts, packages, lambda value: CellValue(value.versions.get("nccl") or None, _NOT_REPORTED))
    built = _known_version(_build_versions(job, facts, "nccl"))
    yield "NCCL", {**nccl, **{node: values for node, values in built.items() if values.value or node not in nccl}}
    yield (
        "driver",
        values_by_node(facts, gpus, lambda value: CellValue(value.driver or None, value.detail or _NOT_REPORTED)),
    )


def _build_versions(job: Job, facts: Facts, part: str) -> dict[str, CellValue]:
    """Return the version of a component of the job's framework build; empty if the build lacks it."""

    def read(value: Stack) -> CellValue:
        build: Build | None = build_of(job, value)
        return CellValue(None, "no framework is installed") if build is None else CellValue(str(getattr(build, part)))

    return values_by_node(facts, stack, read)


def _cuda(value: Packages) -> CellValue:
    framework = value.torch or value.paddle
    return CellValue(None, "no framework is installed") if framework is None else CellValue(framework.cuda)


def _with_or_without(values: Mapping[str, CellValue]) -> dict[str, CellValue]:
    """Return the values, with `none` for builds that lack a component of other builds; empty if no build has it."""
    if not any(summary.value for summary in values.values()):
        return {}
    return {node: CellValue("none") if summary.value == "" else summary for node, summary in values.items()}


def _known_version(values: Mapping[str, CellValue]) -> dict[str, CellValue]:
    return {
        node: CellValue(None, _NOT_REPORTED) if summary.value == "" else summary for node, summary in values.items()
    }


def _version(name: str, value: Installed) -> CellValue:
    return CellValue(value.distributions.get(name, _ABSENT))


def _framework(name: str, value: Packages) -> CellValue:
    return CellValue(value.versions.get(name, _ABSENT))


def _differing_packages(observed: Mapping[str, Installed]) -> tuple[list[str], int]:
    """Return the packages that differ between nodes, those used in lockstep first, and the number of equal ones."""
    sets = {value.digest: value.distributions for value in observed.values()}.values()
    named = {name for names in DISTRIBUTIONS.values() for name in names}
    names = {name for held in sets for name in held} - named
    unlike = [name for name in names if len({held.get(name) for held in sets}) > 1]
    return sorted(unlike, key=lambda name: (not computed_in_step(name), name)), len(names) - len(unlike)


#: By name, as `data/measurements.toml` describes them.
QUANTITIES = {name: Quantity(name, **row) for name, row in data_table("measurements").items()}
_GPU_COUNTERS: dict[str, Callable[[Gpu], int | None]] = {
    "gpu_ecc_corrected": lambda gpu: gpu.ecc_corrected_ever,
    "gpu_ecc_uncorrected": lambda gpu: gpu.ecc_uncorrected_ever,
    "gpu_rows_remapped": lambda gpu: gpu.rows_remapped_uncorrectable,
    "gpu_pages_retired": lambda gpu: gpu.pages_retired,
    "gpu_pcie_replays": lambda gpu: gpu.pcie_replays,
    "gpu_nvlink_errors": lambda gpu: sum(gpu.nvlink_errors.values()) if gpu.nvlinks else None,
}
_GPU_GAUGES: dict[str, tuple[Callable[[Gpu], float | None], Callable[..., float]]] = {
    "gpu_temperature": (lambda gpu: gpu.temperature_c, max),
    "gpu_clock_limit": (lambda gpu: None if gpu.clock_max_mhz is None else gpu.clock_max_mhz * 1e6, min),
    "gpu_power_limit": (lambda gpu: gpu.power_limit_w, min),
    "gpu_driver_response": (lambda gpu: gpu.took_s, max),
}
_RDMA_COUNTERS = {
    "rdma_link_downed": "link_downed",
    "rdma_link_recoveries": "link_error_recovery",
    "rdma_symbol_errors": "symbol_error",
}


def measure_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """Yield the measurements of each node by itself. A quantity that no node reports is left out."""
    records = [record for record in fleet.records if not record.problem]
    yield from node_measurements("agent_round_trip", {record.node.name: record.round_trip_s for record in records})
    offsets = {record.node.name: record.clock_offset_s for record in records if record.clock_offset_s is not None}
    yield from node_measurements("clock_offset", {node: abs(offset) for node, offset in offsets.items()})
    killed = {node: value.killed_for_memory for node, value in facts.observed(machine).items()}
    yield from node_measurements("processes_killed_for_memory", killed)
    yield from _gpu_measurements(facts)
    yield from _nic_measurements(job, facts)


def _gpu_measurements(facts: Facts) -> Iterator[Measurements]:
    # A sum without the GPUs that do not answer would look like a counter that was reset.
    answered = {
        node: value.gpus
        for node, value in facts.observed(gpus).items()
        if value.gpus and not value.problem and not any(gpu.problem for gpu in value.gpus)
    }
    for name, read in _GPU_COUNTERS.items():
        yield from node_measurements(
            name, {node: _sum([read(gpu) for gpu in cards]) for node, cards in answered.items()}
        )
    for name, (value_of, worst) in _GPU_GAUGES.items():
        found = {node: [value_of(gpu) for gpu in cards] for node, cards in answered.items()}
        known = {node: [v for v in values if v is not None] for node, values in found.items() if None not in values}
        yield from node_measurements(name, {node: worst(values) for node, values in known.items()})


def _nic_measurements(job: Job, facts: Facts) -> Iterator[Measurements]:
    states = {node: state for node, (_, state) in states_in_use(job, facts).items()}
    yield from node_measurements("nic_carrier_changes", {node: state.carrier_changes for node, state in states.items()})
    errors = {
        node: sum(count for name, count in state.counters.items() if name.endswith("_errors"))
        for node, state in states.items()
        if any(name.endswith("_errors") for name in state.counters)
    }
    yield from node_measurements("nic_errors", errors)
    devices = {
        node: value.devices
        for node, value in facts.observed(rdma).items()
        if value.devices and not any(device.problem for device in value.devices)
    }
    for name, counter in _RDMA_COUNTERS.items():
        counts = {
            node: [port.counters[counter] for device in found for port in device.ports if counter in port.counters]
            for node, found in devices.items()
        }
        yield from node_measurements(name, {node: sum(values) for node, values in counts.items() if values})


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def node_measurements(name: str, values: Mapping[str, float | None]) -> Iterator[Measurements]:
    """Yield the known values of a quantity of nodes, if there are any."""
    found = {node: float(value) for node, value in values.items() if value is not None}
    if found:
        yield Measurements(QUANTITIES[name], tuple(found), tuple(found.values()))
