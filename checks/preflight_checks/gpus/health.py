"""Checks that GPUs are healthy, idle and configured in the same way: memory errors, repairs, throttling, MIG, compute
mode.
"""

from __future__ import annotations

import datetime
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from preflight._util.sequences import grouped
from preflight.model.findings import Command, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, root_command
from preflight_checks.gpus.presence import (
    Fault,
    NodeGpu,
    differing_devices,
    expected_gpus,
    gpu_check,
    judge_devices,
    known_fault,
    plan_gpus,
    visible_devices,
)
from preflight_checks.plans import table
from preflight_checks.probes.gpus import Gpu, GpuProcess, gpus
from preflight_checks.requirements import fold, known_text, largest_value, scopes

#: docs.nvidia.com/deploy/dynamic-page-retirement: a board with this many retired pages is replaced.
MAX_RETIRED_PAGES = 60
#: nvml.h, nvmlClocksEventReasons.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


@gpu_check("GPU013", "gpu-memory-uncorrectable", severity=Severity.ERROR)
def gpu_memory_uncorrectable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU has had an uncorrectable memory error since its driver was loaded, or a failed repair.

    What it checks: the volatile ECC count of uncorrected errors, and whether a row remapping has failed, on every GPU.

    Why it matters: a process on such a GPU dies at the bad address, takes the whole job with it, and does so again.

    Example: GPU 3 of node2 counts two uncorrected errors since yesterday.

    Fix: drain the node; reset the GPU when it is idle, and have it replaced if errors return or a repair failed.

    Known limits: consumer cards have no ECC; errors before the last reset or reload of the driver are not counted.
    """
    yield from judge_devices(job, facts, "GPU memory", ("ecc_uncorrected", "rows_remap_failed"), _find_memory_faults)


def _find_memory_faults(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        count = item.gpu.ecc_uncorrected
        if count:
            yield known_fault("uncorrectable memory errors", item, f"has {count}")
        if item.gpu.rows_remap_failed:
            yield known_fault("row remapping failed", item, "reports failed remapping")


@gpu_check("GPU014", "gpu-repair-pending", severity=Severity.WARNING)
def gpu_repair_pending(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU needs a reset to repair its memory.

    What it checks: pending row remappings, pending page retirements, and the number of retired pages.

    Why it matters: until the reset the bad row stays in use, and the next error there ends the job.

    Example: since its last error, GPU 1 of node4 has a row that is marked for remapping.

    Fix: reset the GPU (or reboot the node) before the job starts; nothing needs to be replaced yet.

    Known limits: the next reset repairs the memory, whatever its reason.
    """
    fields = ("rows_remap_pending", "pages_retirement_pending", "pages_retired")
    yield from judge_devices(job, facts, "memory repairs", fields, _find_pending_repairs)


def _find_pending_repairs(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        gpu = item.gpu
        if gpu.rows_remap_pending:
            yield known_fault("row remapping pending", item, "has a pending row remapping")
        if gpu.pages_retirement_pending:
            yield known_fault("page retirement pending", item, "has pending page retirements")
        if gpu.pages_retired is not None and gpu.pages_retired >= MAX_RETIRED_PAGES:
            yield known_fault("many retired pages", item, f"has {gpu.pages_retired}", limit=MAX_RETIRED_PAGES)


@gpu_check("GPU015", "gpu-throttled", severity=Severity.ERROR)
def gpu_throttled(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU is throttled by heat or by its power supply before the job starts.

    What it checks: the reasons that NVML gives for the current clocks in several consecutive samples, and the
    temperature, compared with the card's throttling threshold.

    Why it matters: all ranks wait for the slowest, so one card at half its clock halves the job.

    Example: the power brake of node3 is asserted because one of its power supplies has failed.

    Fix: check the node's cooling and power; a slowdown that persists while the node is idle is a hardware fault.

    Known limits: the GPUs are idle, so faults that appear only under load are not seen. A software power cap is normal
    for a busy card and not reported. The general slowdown bit and a slowdown by the driver are warnings.
    """
    yield from judge_devices(job, facts, "GPU clocks", ("clock_reasons", "temperature_c"), _find_throttled)


def _find_throttled(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        gpu, bits = item.gpu, item.gpu.clock_reasons or 0
        clocks = f"runs at {gpu.clock_mhz} of {gpu.clock_max_mhz} MHz"
        at = f"at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
        threshold = gpu.temperature_slowdown_c
        hot = threshold is not None and gpu.temperature_c is not None and gpu.temperature_c >= threshold
        if bits & POWER_BRAKE:
            yield known_fault("power brake", item, clocks)
        if bits & HW_THERMAL or hot:
            limit = f", its limit is {threshold} °C" if threshold is not None else ""
            yield known_fault("thermal slowdown", item, f"{at}{limit}".strip())
        elif bits & SW_THERMAL:
            yield known_fault("thermal slowdown by the driver", item, at)
        if bits & HW_SLOWDOWN and not bits & (POWER_BRAKE | HW_THERMAL) and not hot:
            yield known_fault("hardware slowdown", item, clocks)


@gpu_check("GPU028", "gpu-wants-recovery", severity=Severity.ERROR)
def gpu_wants_recovery(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU driver requests a reset or a reboot.

    What it checks: the recovery action that the driver reports for each GPU.

    Why it matters: the driver has seen an error that only this action clears; until then, programs fail on the GPU.

    Example: GPU 4 of node2 has requested a reset since its firmware stopped responding (Xid 119, then 154).

    Fix: drain the node, and perform the action.

    Known limits: drivers before 565 do not report it.
    """
    yield from judge_devices(job, facts, "recovery actions", ("recovery_action",), _find_requested_recovery)


def _find_requested_recovery(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        action = item.gpu.recovery_action
        if action:
            wanted = f"requests {table('gpu_driver')['recovery_actions'].get(str(action), f'action {action}')}"
            yield replace(known_fault("recovery action", item, wanted), kind=f"recovery action {action}")


MIB, GIB = 2**20, 2**30
#: Memory that an idle GPU uses beyond its driver's reserve (contexts of monitors, firmware logs). Drivers before 510
#: count their reserve as used, which is up to 1.2 GiB on cards of 80 GiB.
IDLE_BYTES = 2 * GIB
#: Processes below this hold a context and no tensors.
CONTEXT_ONLY_BYTES = 512 * MIB
#: Daemons that belong on a GPU node and may have a context.
DAEMONS = ("nv-hostengine", "dcgm-exporter", "nvidia-cuda-mps-server", "nvidia-cuda-mps", "nvidia-persiste", "dcgmi")
#: nvml.h, nvmlComputeMode_t.
EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = 1, 2, 3


@gpu_check("GPU018", "gpu-mig-enabled", severity=Severity.ERROR)
def gpu_mig_enabled(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU is partitioned into MIG instances if the job expects whole GPUs.

    What it checks: the MIG mode of every GPU if the job uses several GPUs, or whether at least one instance exists if
    it uses one.

    Why it matters: a process sees only one MIG instance, or no device at all if there are no instances; instances
    cannot reach each other over NVLink or PCIe.

    Example: node2 was partitioned for notebooks, and torch finds one device although the job starts eight ranks.

    Fix: `nvidia-smi -mig 0` (and a reset) on the node, or request whole GPUs from the scheduler.

    Known limits: a job that names its instances (CUDA_VISIBLE_DEVICES=MIG-...) is not judged.
    """
    named = any((known_text(job, "env.CUDA_VISIBLE_DEVICES", scope) or "").startswith("MIG") for scope in scopes(job))
    wanted = expected_gpus(job)
    several = wanted is None or wanted[0] > 1 or len(fleet.nodes) > 1

    def find_partitioned(devices: list[NodeGpu]) -> Iterable[Fault]:
        for item in devices:
            gpu = item.gpu
            if gpu.mig_enabled and not named and (several or gpu.mig_instances == 0):
                instances = "no instance" if gpu.mig_instances == 0 else f"{gpu.mig_instances or 'some'} instances"
                yield known_fault(
                    "MIG enabled", item, f"{'is partitioned into' if gpu.mig_instances else 'has'} {instances}"
                )
            if gpu.mig_pending is not None and gpu.mig_pending != gpu.mig_enabled:
                yield known_fault(
                    "MIG change pending",
                    item,
                    f"will have MIG {'enabled' if gpu.mig_pending else 'disabled'} after a reset",
                )

    yield from judge_devices(job, facts, "MIG", ("mig_enabled",), find_partitioned)


@gpu_check("GPU019", "gpu-compute-mode", severity=Severity.ERROR)
def gpu_compute_mode(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU accepts as many compute processes as the job starts on it.

    What it checks: the compute mode is never `prohibited`, and not `exclusive` if a node has more ranks than GPUs.

    Why it matters: the second process on an exclusive GPU, and the first on a prohibited one, fails with "all
    CUDA-capable devices are busy or unavailable".

    Example: the prolog left node1 in exclusive mode, and the job starts two ranks for each GPU.

    Fix: `nvidia-smi -c 0` on the node, or one rank for each GPU.

    Known limits: the files do not show helper processes with their own context.
    """
    ranks = largest_value(job, "processes_per_node")

    def find_restricted(devices: list[NodeGpu]) -> Iterable[Fault]:
        each = Counter(item.node for item in devices)
        for item in devices:
            mode = item.gpu.compute_mode
            if mode == PROHIBITED:
                yield known_fault("compute mode prohibited", item, "is set to prohibited")
            elif mode in (EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD) and ranks and ranks[0] > each[item.node]:
                yield known_fault(
                    "compute mode exclusive", item, "is set to exclusive", ranks=ranks[0], gpus=each[item.node]
                )

    yield from judge_devices(job, facts, "compute modes", ("compute_mode",), find_restricted)


@check("GPU020", "gpu-busy", plan=plan_gpus, severity=Severity.ERROR)
def gpu_busy(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Before the job starts, enough GPUs of every node are free: without foreign processes and memory in use.

    What it checks: the compute processes that NVML lists on each GPU, and its used memory, before preflight uses it.

    Why it matters: the first large allocation runs out of memory on only that rank, or the rank is slow and all others
    wait.

    Example: a run that was killed yesterday has left a Python process with 60 GiB on GPU 0 of node3.

    Fix: end the process, or have the node drained; if no process is visible, reset the GPU.

    Known limits: monitoring daemons and small contexts are ignored. In a container that does not see the host's
    processes, the owner of the memory is unknown, so it is a warning there. On a node with spare GPUs, busy ones count
    only if too few are left.
    """
    needed_count = expected_gpus(job)
    values = facts.observed(gpus)

    def find_busy(devices: list[NodeGpu]) -> Iterable[Fault]:
        faults_by_node = grouped(
            (item.node, fault)
            for item in devices
            if (fault := _busy_finding(item, sees_all=values[item.node].host_processes)) is not None
        )
        counts = Counter(item.node for item in devices)
        for node, faults in faults_by_node.items():
            if visible_devices(job):
                yield from (fault for fault in faults if fault.at.used)
            elif needed_count is None or counts[node] - len(faults) < needed_count[0]:
                # Too few are left, so none is spare.
                yield from (replace(fault, at=NodeGpu(fault.at.node, fault.at.gpu)) for fault in faults)

    yield from judge_devices(job, facts, "free GPUs", ("processes", "memory_used_bytes"), find_busy)


def _busy_finding(item: NodeGpu, *, sees_all: bool) -> Fault | None:
    gpu = item.gpu
    strangers = [process for process in gpu.processes or () if not _is_harmless(process)]
    if strangers:
        shown = fold((_process_text(process) for process in strangers), 3)
        if not sees_all and not any(process.name for process in strangers):
            return known_fault("other users' processes are hidden", item, f"by {shown}")
        pids = " ".join(str(process.pid) for process in strangers[:3])
        remedy = f"End the process on {{node}} if it is a leftover (`kill {pids}`), or remove the node from the job."
        return known_fault("foreign processes", item, f"by {shown}", remedy=remedy)
    used, total = gpu.memory_used_bytes, gpu.memory_bytes or 0
    limit = max(IDLE_BYTES, total // 20)
    if used is not None and used > limit and not gpu.mig_enabled:
        return known_fault("memory in use", item, f"{used / GIB:.1f} of {total / GIB:.0f} GiB", limit=limit / GIB)
    return None


def _is_harmless(process: GpuProcess) -> bool:
    small = process.memory_bytes is not None and process.memory_bytes < CONTEXT_ONLY_BYTES
    return small or process.name in DAEMONS


def _process_text(process: GpuProcess) -> str:
    known = [f"{process.name} of {process.user}"] if process.name else []
    if process.memory_bytes is not None:
        known.append(f"{process.memory_bytes / GIB:.1f} GiB")
    return f"process {process.pid}" + (f" ({', '.join(known)})" if known else "")


@gpu_check("GPU021", "gpu-settings-differ", severity=Severity.WARNING)
def gpu_settings_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All GPUs of a model have the same settings.

    What it checks: power limit, application clock, ECC, persistence mode, and the versions of VBIOS and GSP firmware,
    each compared with what most GPUs of the model have.

    Why it matters: a card with a lower limit is the straggler in every step, and a card with ECC disabled silently
    corrupts data.

    Example: node4's cards were capped at 500 W when the rack was short of power, but the others have 700 W.

    Fix: configure the differing card like the others.

    Known limits: without a majority, nothing is reported. Persistence mode and firmware are only noted.
    """

    def find_odd(devices: list[NodeGpu]) -> Iterable[Fault]:
        for row in table("gpu_faults")["setting"]:
            kind, unit = row["kind"], row.get("unit", "")
            for item, value, common in differing_devices(devices, functools.partial(_setting, row["field"])):
                yield Fault(
                    kind,
                    item,
                    f"{kind} differs from that of the other GPUs ({common}{unit})",
                    f"has {value}{unit}",
                    f"{common}{unit}",
                    row["remedy"].replace("{common}", common),
                    severity=Severity(row.get("severity", "warning")),
                    run=_fix(row.get("fix", ""), item.gpu.index, common),
                )

    yield from judge_devices(job, facts, "GPU settings", ("power_limit_w", "ecc_enabled", "persistence"), find_odd)


def _setting(field: str, gpu: Gpu) -> str | None:
    value = getattr(gpu, field)
    if isinstance(value, bool):
        return "on" if value else "off"
    return (str(round(value)) if isinstance(value, float) else str(value)) if value not in (None, "") else None


def _fix(words: str, index: int, common: str) -> Command | None:
    """Return the command that sets a GPU to the common setting; None if no single command does."""
    arguments = words.format(common=common, switch=int(common == "on")).split()
    return root_command("nvidia-smi", "-i", str(index), *arguments) if arguments else None


# What a healthy GPU, link or fabric reaches: the table of peaks by model, and the share of a peak that is a floor.


#: GB/s (10^9 bytes) of one lane in each direction by PCIe generation, after line coding (PCI-SIG).
PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, slots=True)
class Floors:
    """Shares of a peak that healthy hardware exceeds in a short test."""

    products: float
    memory: float
    host: float
    peer: float
    all_reduce_in_node: float
    all_reduce_between_nodes: float
    rdma_write: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _require_share(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class OwnFloors:
    """Shares for one model that replace the common shares, and the reason."""

    reason: str
    products: float | None = None
    memory: float | None = None
    host: float | None = None
    peer: float | None = None

    def __post_init__(self) -> None:
        for name in ("products", "memory", "host", "peer"):
            _require_share(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class PcieConnector:
    """Generation and number of lanes of a card's connector."""

    generation: int
    lanes: int

    def __post_init__(self) -> None:
        if self.generation not in PCIE_LANE_GBPS or self.lanes not in (1, 2, 4, 8, 16):
            raise ValueError(f"PCIe generation {self.generation} with {self.lanes} lanes is unknown")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """The peak speeds of one model; the head of the table describes each field."""

    names: tuple[str, ...]
    tflops: Mapping[str, float]
    memory: float
    source: str
    date: datetime.date
    pcie: PcieConnector | None = None
    host: float | None = None
    nvlink: float | None = None
    achieved: float | None = None
    floors: OwnFloors | None = None

    def __post_init__(self) -> None:
        peaks = [self.memory, *self.tflops.values(), *(rate for rate in (self.host, self.nvlink) if rate is not None)]
        if not self.names or not self.tflops or min(peaks) <= 0:
            raise ValueError(f"{self.names}: a name is missing, or a peak is not above zero")
        if (self.pcie is None) == (self.host is None):
            raise ValueError(f"{self.names[0]}: expected one connection to the host, by `pcie` or by `host`")
        _require_share("achieved", self.achieved)


@dataclass(frozen=True, slots=True)
class ExpectedSpeeds:
    """The whole table."""

    floors: Floors
    sources: Mapping[str, str]
    gpu: tuple[GpuModel, ...]

    def __post_init__(self) -> None:
        names = [name for row in self.gpu for name in row.names]
        if len(names) != len(set(names)):
            raise ValueError("a model is listed twice")
        for row in self.gpu:
            if row.source not in self.sources:
                raise ValueError(f"{row.names[0]}: unknown source {row.source}")
            if row.achieved is not None and row.achieved < self.share(row, "products") * 1.2:
                raise ValueError(
                    f"{row.names[0]}: the lower limit for matrix products is too close to the measured speed"
                )

    def share(self, row: GpuModel, kind: str) -> float:
        """Return the floor for this model as a share of the peak of this kind (`products`, `memory`, `host`,
        `peer`).
        """
        own = getattr(row.floors, kind) if row.floors is not None else None
        return float(own if own is not None else getattr(self.floors, kind))


def _require_share(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"{name} is {value}; expected a fraction between 0 and 1")


def read_table(data: Mapping[str, Any]) -> ExpectedSpeeds:
    """Return the validated table. Raises ValueError or TypeError for an unknown, missing or impossible entry."""
    known = {"schema", "floors", "sources", "gpu"}
    if set(data) != known or data["schema"] != 1:
        raise ValueError(f"expected the keys {sorted(known)} and schema 1")
    return ExpectedSpeeds(
        Floors(**data["floors"]), dict(data["sources"]), tuple(_read_model(dict(row)) for row in data["gpu"])
    )


def _read_model(row: dict[str, Any]) -> GpuModel:
    row["names"] = tuple(row["names"])
    row["date"] = datetime.date.fromisoformat(row["date"])
    for name, kind in (("pcie", PcieConnector), ("floors", OwnFloors)):
        if name in row:
            row[name] = kind(**row[name])
    return GpuModel(**row)


@functools.cache
def expected_speeds() -> ExpectedSpeeds:
    """Return the validated table."""
    return read_table(table("expected_speed"))


@functools.cache
def _models_by_name() -> dict[str, GpuModel]:
    return {name: row for row in expected_speeds().gpu for name in row.names}


def model_of(name: str) -> GpuModel | None:
    """Return the row of the card that NVML calls `name`; None if it is not listed or is a MIG slice."""
    return _models_by_name().get(name.strip().removeprefix("NVIDIA "))


@dataclass(frozen=True, slots=True)
class Floor:
    """The smallest speed of a healthy device, the peak of which it is a share, and the source of the peak."""

    least: float
    peak: float
    source: str

    @property
    def share(self) -> float:
        """The floor as a share of the peak."""
        return self.least / self.peak


def product_floor(row: GpuModel, precision: str) -> Floor | None:
    """Return the floor in TFLOP/s for matrix products in this precision; None if the card does not support it."""
    peak = row.tflops.get(precision)
    return _floor(row, "products", peak) if peak is not None else None


def memory_floor(row: GpuModel) -> Floor:
    """Return the floor in GB/s for a copy within the card's memory, counting both bytes read and bytes written."""
    return _floor(row, "memory", row.memory)


def host_floor(row: GpuModel, generation: int | None, lanes: int | None) -> Floor:
    """Return the floor in GB/s for copies to or from the host; generation and lanes are NVML's maxima or None."""
    if row.host is not None:
        return _floor(row, "host", row.host)
    assert row.pcie is not None
    peak = pcie_gbps(
        min(row.pcie.generation, generation or row.pcie.generation), min(row.pcie.lanes, lanes or row.pcie.lanes)
    )
    return _floor(row, "host", peak)


def peer_floor(row: GpuModel, links: int) -> Floor | None:
    """Return the floor in GB/s for copies to a peer over this many NVLinks; None without NVLinks."""
    return _floor(row, "peer", row.nvlink * links) if row.nvlink is not None and links else None


def pcie_gbps(generation: int, lanes: int) -> float:
    """Return the GB/s in each direction of a PCIe link. A newer generation than the table's counts as its newest."""
    return PCIE_LANE_GBPS[min(max(1, generation), max(PCIE_LANE_GBPS))] * lanes


def _floor(row: GpuModel, kind: str, peak: float) -> Floor:
    whole = expected_speeds()
    return Floor(peak * whole.share(row, kind), peak, whole.sources[row.source])
