"""Measurements of the node stage: GPUs, clocks, network cards and memory.

A node has one number for each quantity. Counters are summed over its devices; of temperatures the warmest device
counts, of clocks the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from preflight.model.job import Job
from preflight.model.measurements import Measurements, Quantity
from preflight.model.recording import Facts, Fleet
from preflight_checks.network.nic_health import states_in_use
from preflight_checks.probes.gpus import Gpu, gpus
from preflight_checks.probes.machine import machine
from preflight_checks.probes.rdma import rdma

ROUND_TRIP = Quantity("agent_round_trip", "round trip to the agent", "seconds", least=0.005, share=1.0)
CLOCK_OFFSET = Quantity("clock_offset", "clock offset", "seconds", least=0.05)
OUT_OF_MEMORY = Quantity("processes_killed_for_memory", "processes killed for lack of memory", kind="counter")
TEMPERATURE = Quantity("gpu_temperature", "temperature of the warmest GPU", "celsius", least=4.0)
CLOCK_LIMIT = Quantity("gpu_clock_limit", "highest clock of the slowest GPU", "hertz", better="higher", share=0.02)
POWER_LIMIT = Quantity("gpu_power_limit", "power limit of the lowest GPU", "watts", better="higher", share=0.02)
DRIVER_TIME = Quantity("gpu_driver_response", "response time of the slowest GPU", "seconds", least=0.1, share=0.5)

_GPU_COUNTERS: tuple[tuple[Quantity, Callable[[Gpu], int | None]], ...] = (
    (
        Quantity("gpu_ecc_corrected", "corrected memory errors of the GPUs", kind="counter"),
        lambda gpu: gpu.ecc_corrected_ever,
    ),
    (
        Quantity("gpu_ecc_uncorrected", "uncorrected memory errors of the GPUs", kind="counter"),
        lambda gpu: gpu.ecc_uncorrected_ever,
    ),
    (
        Quantity("gpu_rows_remapped", "memory rows remapped after uncorrectable errors", kind="counter"),
        lambda gpu: gpu.rows_remapped_uncorrectable,
    ),
    (Quantity("gpu_pages_retired", "retired memory pages of the GPUs", kind="counter"), lambda gpu: gpu.pages_retired),
    (Quantity("gpu_pcie_replays", "PCIe replays of the GPUs", kind="counter"), lambda gpu: gpu.pcie_replays),
    (
        Quantity("gpu_nvlink_errors", "NVLink errors of the GPUs", kind="counter"),
        lambda gpu: sum(gpu.nvlink_errors.values()) if gpu.nvlinks else None,
    ),
)
_CARRIER = Quantity("nic_carrier_changes", "carrier changes of the interface in use", kind="counter")
_CARD_ERRORS = Quantity("nic_errors", "errors of the interface in use", kind="counter")
_RDMA_COUNTERS = {
    "link_downed": Quantity("rdma_link_downed", "RDMA links that went down", kind="counter"),
    "link_error_recovery": Quantity("rdma_link_recoveries", "recoveries of RDMA links", kind="counter"),
    "symbol_error": Quantity("rdma_symbol_errors", "symbol errors of RDMA ports", kind="counter"),
}


def of_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """The measurements of each node alone. A quantity that no node could tell is left out."""
    records = [record for record in fleet.records if not record.problem]
    yield from _known(
        ROUND_TRIP, {record.node.name: record.round_trip_s for record in records if record.round_trip_s is not None}
    )
    offsets = {record.node.name: record.clock_offset_s for record in records if record.clock_offset_s is not None}
    yield from _known(CLOCK_OFFSET, {node: abs(offset) for node, offset in offsets.items()})
    yield from _known(OUT_OF_MEMORY, {node: value.killed_for_memory for node, value in facts.observed(machine).items()})
    yield from _of_gpus(facts)
    yield from _of_cards(job, facts)


def _of_gpus(facts: Facts) -> Iterator[Measurements]:
    # A GPU that does not answer says nothing: a sum without it would look like a counter that was reset.
    answered = {
        node: value.gpus
        for node, value in facts.observed(gpus).items()
        if value.gpus and not value.problem and not any(gpu.problem for gpu in value.gpus)
    }
    for quantity, read in _GPU_COUNTERS:
        yield from _known(quantity, {node: _sum([read(gpu) for gpu in cards]) for node, cards in answered.items()})
    gauges: tuple[tuple[Quantity, Callable[[Gpu], float | None], Callable[..., float]], ...] = (
        (TEMPERATURE, lambda gpu: gpu.temperature_c, max),
        (CLOCK_LIMIT, lambda gpu: None if gpu.clock_max_mhz is None else gpu.clock_max_mhz * 1e6, min),
        (POWER_LIMIT, lambda gpu: gpu.power_limit_w, min),
        (DRIVER_TIME, lambda gpu: gpu.took_s, max),
    )
    for quantity, value_of, worst in gauges:
        found = {node: [value_of(gpu) for gpu in cards] for node, cards in answered.items()}
        yield from _known(
            quantity,
            {node: worst([v for v in values if v is not None]) for node, values in found.items() if None not in values},
        )


def _of_cards(job: Job, facts: Facts) -> Iterator[Measurements]:
    states = {node: state for node, (_, state) in states_in_use(job, facts).items()}
    yield from _known(_CARRIER, {node: state.carrier_changes for node, state in states.items()})
    errors = {
        node: sum(count for name, count in state.counters.items() if name.endswith("_errors"))
        for node, state in states.items()
        if any(name.endswith("_errors") for name in state.counters)
    }
    yield from _known(_CARD_ERRORS, errors)
    devices = {
        node: value.devices
        for node, value in facts.observed(rdma).items()
        if value.devices and not any(device.problem for device in value.devices)
    }
    for name, quantity in _RDMA_COUNTERS.items():
        counts = {
            node: [port.counters[name] for device in found for port in device.ports if name in port.counters]
            for node, found in devices.items()
        }
        yield from _known(quantity, {node: sum(values) for node, values in counts.items() if values})


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _known(quantity: Quantity, values: Mapping[str, float | None]) -> Iterator[Measurements]:
    found = {node: float(value) for node, value in values.items() if value is not None}
    if found:
        yield Measurements(quantity, tuple(found), tuple(found.values()))
