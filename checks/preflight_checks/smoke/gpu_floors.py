"""Checks of each GPU by itself: its speed compared with what its model reaches, and matrix products with known bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.gpus.health import (
    HW_SLOWDOWN,
    HW_THERMAL,
    POWER_BRAKE,
    SW_THERMAL,
    Floor,
    GpuModel,
    host_floor,
    memory_floor,
    model_of,
    peer_floor,
    product_floor,
)
from preflight_checks.requirements import fold
from preflight_checks.smoke.plan import FACT, complete_run, run_of, smoke_check
from reference_trainer.collective.gpu_speed import (
    MEMORY,
    PRODUCTS,
    TO_DEVICE,
    TO_HOST,
    TO_PEER,
    GpuReport,
    Speed,
    WrongProduct,
)
from reference_trainer.common.framework import GpuState

#: nvml.h, nvmlClocksEventReasons: clocks set by an administrator, a power limit in software, clocks of a group.
APPLICATION_CLOCKS, POWER_CAP, SYNC_BOOST = 0x2, 0x4, 0x10
#: Clocks below this share of the card's highest explain a low figure.
LOW_CLOCK = 0.85
_UNITS = {MEMORY: "GB/s", TO_DEVICE: "GB/s", TO_HOST: "GB/s", TO_PEER: "GB/s"}
_NAMES = {
    MEMORY: "copies within its memory",
    TO_DEVICE: "copies from the host",
    TO_HOST: "copies to the host",
    TO_PEER: "copies to the next GPU",
}
_COMMAND = "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE"


@dataclass(frozen=True, slots=True)
class RankGpu:
    """The GPU of one rank, on its node; `sharing` is the number of ranks that use it."""

    node: str
    rank: int
    device: str
    gpu: GpuReport
    sharing: int = 1

    @property
    def label(self) -> str:
        """The node, torch's number of the device, and its address."""
        number = self.device.split(" ")[0].removeprefix("cuda:")
        return f"{self.node} GPU {number}" + (f" ({self.gpu.pci})" if self.gpu.pci else "")


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A speed below its lower limit."""

    at: RankGpu
    speed: Speed
    floor: Floor
    by_pcie: bool


@smoke_check("SMK014", "gpu-slower-than-its-model", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def gpu_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each GPU multiplies matrices and moves its memory about as fast as its model can.

    What it checks: the best of several products of random matrices in fp32, TF32, bf16, fp16 and fp8, and of copies
    within the card's memory, on each GPU by itself; compared with a share of the model's published peak. Clocks and
    their reasons, power and temperature are read at the same time, and the finding quotes them.

    Why it matters: if all GPUs are equally slow, comparing them shows nothing. Clocks that are set low, or a power cap
    left over from a test, cost that share of every hour.

    Example: GPU 3 of node-b reaches 310 TFLOP/s in bf16, but an H100 reaches at least 494; its power is capped at 350 W
    of 700.

    Fix: compare clocks, power limit and cooling with the message, and reset settings that differ from the card's own.

    Known limits: the test lasts a second, and its limits are far below the peak: a loss of ten per cent is found by
    comparison with other ranks (SMK005). An unlisted card, or a card that others used at the same time, is unknown.
    """
    yield from _judge(job, fleet, facts, "GPU speed", (*PRODUCTS, MEMORY), _own_floor)


@smoke_check("SMK015", "gpu-copies-slower-than-link", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def gpu_copies_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Copies between each GPU, its host and the next GPU are about as fast as the links between them.

    What it checks: copies of 128 MiB from and to page-locked memory, by one rank per node at a time, compared with half
    of what the card and slot support (PCIe generation and lanes according to NVML); copies to the next GPU, compared
    with half of the active NVLinks between the two.

    Why it matters: batches, offloaded optimizer states and checkpoints use this link. A card that came up with 8 of 16
    lanes, or in the wrong generation, keeps working.

    Example: copies to GPU 5 of node-c reach 6 GB/s: its link runs at PCIe generation 5 with 2 of 16 lanes.

    Fix: `nvidia-smi -q` shows the link under load; reseat the card or riser, and check whether the ranks run near it.

    Known limits: without NVML's data about the link, the card's own connector is the reference, and a lower speed is
    unknown. Copies between GPUs without NVLink depend on the board and are only reported.
    """
    yield from _judge(job, fleet, facts, "GPU copies", (TO_DEVICE, TO_HOST, TO_PEER), _copy_floor)


def gpus_of(job: Job, facts: Facts) -> list[RankGpu]:
    """Return the measured GPUs of all ranks; none in recordings of older versions, with paddle, or on processors."""
    measured = [
        (node, report, report.gpu)
        for node, report in run_of(job, facts).reports
        if report.gpu is not None and report.device.startswith("cuda")
    ]
    # Each rank may see one device only, so that a rank alone cannot know who else has the same. Pods, and names of this
    # machine, are several nodes that may share a card.
    users = Counter(key for node, _, gpu in measured if (key := _card(node, gpu)))
    return [
        RankGpu(node, report.rank, report.device, gpu, users[key] if (key := _card(node, gpu)) else gpu.shared_by)
        for node, report, gpu in measured
    ]


def _card(node: str, gpu: GpuReport) -> str:
    """Return the identity of the card: its unique name, or else its address on the node; empty if both are unknown."""
    return gpu.state.uuid or (f"{node} {gpu.pci}" if gpu.pci else "")


def _own_floor(item: RankGpu, row: GpuModel, what: str) -> Floor | None:
    return memory_floor(row) if what == MEMORY else product_floor(row, what)


def _copy_floor(item: RankGpu, row: GpuModel, what: str) -> Floor | None:
    state = item.gpu.state
    if what == TO_PEER:
        return peer_floor(row, item.gpu.peer_links or 0)
    return host_floor(row, state.pcie_generation_max, state.pcie_width_max)


def _judge(
    job: Job,
    fleet: Fleet,
    facts: Facts,
    subject: str,
    kinds: Sequence[str],
    floor_of: Callable[[RankGpu, GpuModel, str], Floor | None],
) -> Iterator[Verdict]:
    if (yield from complete_run(job, fleet, facts)) is None:
        return
    devices = gpus_of(job, facts)
    if not devices:
        yield not_applicable(subject, "no rank measured a GPU")
        return
    unknowns: dict[str, list[str]] = {}
    short: dict[str, list[Shortfall]] = {}
    good: list[RankGpu] = []
    for item in devices:
        gpu = item.gpu
        row = model_of(gpu.model)
        if gpu.skipped:
            unknowns.setdefault(f"nothing was measured: {gpu.skipped}", []).append(item.label)
            continue
        speeds = [speed for speed in gpu.speeds if speed.what in kinds]
        if row is None:
            reason = f"no expected speeds are known for {gpu.model}; it reached {_format_speeds(speeds)}"
            unknowns.setdefault(reason, []).append(item.label)
            continue
        floors = [(speed, floor) for speed in speeds if (floor := floor_of(item, row, speed.what)) is not None]
        by_pcie = row.host is None
        shortfalls = [Shortfall(item, speed, floor, by_pcie) for speed, floor in floors if speed.best < floor.least]
        missing = {what: note for what, note in gpu.notes.items() if what in kinds and what != TO_PEER}
        if shortfalls:
            reason = _excuse(item, shortfalls)
            if reason:
                unknowns.setdefault(reason, []).append(item.label)
            else:
                short.setdefault(gpu.model, []).extend(shortfalls)
        elif missing or not floors:
            notes = [f"{_product_name(what)}: {note}" for what, note in missing.items()]
            reason = "; ".join(notes) or "nothing was measured"
            unknowns.setdefault(reason, []).append(item.label)
        else:
            good.append(item)
    for reason, labels in unknowns.items():
        yield unknown(f"{subject} of {fold(labels)}", reason)
    for model, items in short.items():
        yield _finding(subject, model, items)
    if good and not short:
        yield passed(f"{subject} of {len(good)} {'GPU' if len(good) == 1 else 'GPUs'}: {_ranges(good, kinds)}")


def _excuse(item: RankGpu, shortfalls: Sequence[Shortfall]) -> str:
    """Return why speeds below the limit are not the card's fault; empty if they are."""
    gpu = item.gpu
    figures = _format_speeds([entry.speed for entry in shortfalls])
    if item.sharing > 1:
        return f"{item.sharing} ranks shared the GPU; it reached {figures}"
    if gpu.in_use:
        used = max(gpu.before.utilization_percent or 0, gpu.after.utilization_percent or 0)
        others = gpu.before.processes or gpu.after.processes or 0
        who = f"{others} other {'process' if others == 1 else 'processes'}" if others else "another program"
        return (
            f"the GPU was also used by {who} ({used} % busy while this rank was idle), so the speeds are only what "
            f"was left: {figures}"
        )
    if gpu.before.utilization_percent is None and gpu.after.utilization_percent is None:
        why = gpu.state.problem or "NVML does not report it"
        return f"whether others used the GPU is unknown ({why}); it reached {figures}"
    over_pcie = all(entry.speed.what in (TO_DEVICE, TO_HOST) and entry.by_pcie for entry in shortfalls)
    if over_pcie and None in (gpu.state.pcie_generation_max, gpu.state.pcie_width_max):
        return f"NVML does not show what the card and slot support; it reached {figures}"
    return ""


def _finding(subject: str, model: str, items: Sequence[Shortfall]) -> Verdict:
    labels = list(dict.fromkeys(entry.at.label for entry in items))
    nodes = tuple(dict.fromkeys(entry.at.node for entry in items))
    worst = min(items, key=lambda entry: entry.speed.best / entry.floor.least)
    state = worst.at.gpu.state
    cause, remedy = _cause(worst)
    shown = [entry for entry in items if entry.at is worst.at]
    figures = "; ".join(
        f"{_figure(entry.speed)}, expected at least {entry.floor.least:.4g} ({entry.floor.share:.0%} of the published "
        f"{entry.floor.peak:.4g})"
        for entry in shown
    )
    more = f"; {len(labels)} GPUs are that slow" if len(labels) > 1 else ""
    return failed(
        f"{subject} of {fold(labels)}",
        f"{worst.at.label}, {model}, reaches {figures}{more}; {cause}",
        at=_evidence(worst),
        also=[_evidence(entry) for entry in items if entry is not worst][:8],
        nodes=nodes,
        processes=[f"rank {number}" for number in dict.fromkeys(entry.at.rank for entry in items)],
        remedy=remedy + (f" Compare with `{_COMMAND}` under load." if state.problem == "" else ""),
    )


def _evidence(entry: Shortfall) -> Evidence:
    gpu = entry.at.gpu
    return Evidence(
        FACT,
        f"{entry.at.label} ({gpu.state.uuid or gpu.model}): {_product_name(entry.speed.what)} {_figure(entry.speed)}, "
        f"median "
        f"{entry.speed.median:.4g}, {entry.speed.runs} runs of size {entry.speed.size}; {_state(gpu.state)}",
        f">= {entry.floor.least:.4g} of {entry.floor.peak:.4g} {_unit(entry.speed.what)} ({entry.floor.source})",
        _COMMAND,
        entry.at.node,
    )


def _cause(entry: Shortfall) -> tuple[str, str]:
    """Return the explanation of the speed, from NVML's values during the measurement, and the remedy."""
    node, state = entry.at.node, entry.at.gpu.state
    if entry.speed.what in (TO_DEVICE, TO_HOST):
        return _link_cause(node, state)
    if entry.speed.what == TO_PEER:
        links = entry.at.gpu.peer_links
        return (
            f"{links} NVLinks are up to its peer {entry.at.gpu.peer}",
            f"On {node}: `nvidia-smi nvlink -s` and `nvidia-smi topo -p2p n`; check ACS and the IOMMU (PCI001).",
        )
    if state.problem or not state.samples:
        return f"its clocks are unknown ({state.problem or 'no sample'})", f"Check clocks and power on {node}."
    bits, held_bits = state.reasons or 0, state.held_reasons or 0
    heat = f" at {state.temperature_c} °C" if state.temperature_c is not None else ""
    clocks = f"it ran at {state.clock_mhz} of {state.clock_max_mhz} MHz"
    if bits & POWER_BRAKE:
        return f"{clocks} because of the power brake", f"Check the power supplies of {node}."
    if bits & (HW_THERMAL | SW_THERMAL):
        return f"{clocks} because of heat{heat}", f"Check fans and airflow of {node}."
    limit, own = state.power_limit_w, state.power_limit_default_w
    if limit is not None and own is not None and limit < 0.95 * own:
        return (
            f"{clocks} because its power is limited to {limit:.0f} W of {own:.0f} W",
            f"On {node}: `nvidia-smi -pl {own:.0f}`, unless the limit is intended.",
        )
    application, top = state.clock_application_mhz, state.clock_max_mhz
    if bits & APPLICATION_CLOCKS or (application is not None and top and application < LOW_CLOCK * top):
        return (
            f"{clocks} because application clocks are set to {application} MHz",
            f"On {node}: `nvidia-smi -rac` and `nvidia-smi -rgc`, unless these clocks are intended.",
        )
    if bits & HW_SLOWDOWN:
        return f"{clocks} because of a hardware slowdown", f"Check power and cooling of {node}."
    if held_bits & SYNC_BOOST:
        return f"{clocks}, limited to the clocks of its group", f"Find the slowest GPU of the group on {node}."
    if held_bits & POWER_CAP and state.clock_mhz is not None and top and state.clock_mhz < LOW_CLOCK * top:
        return (
            f"{clocks}, at its power limit of {limit or 0:.0f} W",
            f"Compare power and cooling of {node} with a faster node.",
        )
    if state.clock_mhz is not None and top and state.clock_mhz < LOW_CLOCK * top:
        return (
            f"{clocks}, and NVML gives no reason: the clocks may be locked",
            f"On {node}: `nvidia-smi -rgc`, then measure again.",
        )
    return (
        f"clocks ({state.clock_mhz} of {state.clock_max_mhz} MHz) and temperature{heat} are normal",
        f"Compare the driver and torch of {node} with those of a faster node; if they are equal, have the card tested.",
    )


def _link_cause(node: str, state: GpuState) -> tuple[str, str]:
    now, most = (state.pcie_generation, state.pcie_width), (state.pcie_generation_max, state.pcie_width_max)
    known = f"PCIe generation {now[0]} with {now[1]} lanes"
    if None in now or None in most:
        return "its PCIe link is unknown", f"Run `nvidia-smi -q` on {node} while data is copied."
    if now != most:
        return (
            f"its link ran at {known}, but the card and slot support generation {most[0]} with {most[1]} lanes",
            f"Reseat the card and riser of {node}, and compare the slot's firmware settings.",
        )
    return (
        f"its link ran at {known}, as expected",
        f"On {node}, check whether the rank runs on a processor near the card (`nvidia-smi topo -m`), and check the "
        "IOMMU and ACS (PCI001).",
    )


def _state(state: GpuState) -> str:
    if state.problem or not state.samples:
        return state.problem or "no samples of the clocks"
    return (
        f"{state.clock_mhz} of {state.clock_max_mhz} MHz, {state.power_w or 0:.0f} of {state.power_limit_w or 0:.0f} "
        f"W, {state.temperature_c} °C, clock reasons 0x{state.reasons or 0:x}, PCIe generation "
        f"{state.pcie_generation or 'unknown'}, {state.pcie_width or 'unknown'} lanes"
    )


def _unit(what: str) -> str:
    return _UNITS.get(what, "TFLOP/s")


def _product_name(what: str) -> str:
    return _NAMES.get(what, f"products in {what}")


def _figure(speed: Speed) -> str:
    return f"{speed.best:.4g} {_unit(speed.what)} in {_product_name(speed.what)}"


def _format_speeds(speeds: Sequence[Speed]) -> str:
    return ", ".join(_figure(speed) for speed in speeds) or "nothing"


def _ranges(devices: Sequence[RankGpu], kinds: Sequence[str]) -> str:
    """Return the lowest and highest speed of each kind."""
    parts = []
    for what in kinds:
        seen = [speed.best for item in devices for speed in item.gpu.speeds if speed.what == what]
        if seen:
            low, high = f"{min(seen):.4g}", f"{max(seen):.4g}"
            parts.append(f"{what} {low if low == high else f'{low} to {high}'} {_unit(what)}")
    return ", ".join(parts)


@smoke_check("SMK016", "gpu-computes-wrongly", severity=Severity.ERROR)
def gpu_wrong(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Matrix multiplication on each GPU gives exactly the known bits every time.

    What it checks: products of integers in fp32, TF32, bf16 and fp16, whose sums are exact in any order, up to 40 times
    each; every element is compared with the value computed on the host.

    Why it matters: a GPU that computes wrong results raises no error. The loss drifts or spikes days later, and nothing
    points to the card.

    Example: in 2 of 40 bf16 products on GPU 6 of node-d, one element has a flipped bit.

    Fix: remove the node from the job, and run the vendor's diagnosis (`dcgmi diag -r 4`) on the card before using it
    again.

    Known limits: the test runs one pattern for a second. Faults that need heat, hours or other instructions may not
    show.
    """
    if (yield from complete_run(job, fleet, facts)) is None:
        return
    devices = gpus_of(job, facts)
    if not devices:
        yield not_applicable("exact products", "no rank measured a GPU")
        return
    open_reasons: dict[str, list[str]] = {}
    good: list[RankGpu] = []
    for item in devices:
        exact = item.gpu.exact
        if exact.wrong:
            yield _wrong_product_finding(item, exact.wrong)
        elif exact.notes or not exact.turns:
            reason = "; ".join(f"{name}: {note}" for name, note in exact.notes.items())
            open_reasons.setdefault(reason or item.gpu.skipped or "nothing was computed", []).append(item.label)
        else:
            good.append(item)
    for reason, labels in open_reasons.items():
        yield unknown(f"exact matrix products of {fold(labels)}", reason)
    if good:
        count = sum(item.gpu.exact.elements for item in good)
        yield passed(
            f"exact matrix products of {len(good)} {'GPU' if len(good) == 1 else 'GPUs'}: {count} elements compared"
        )


def _wrong_product_finding(item: RankGpu, products: Sequence[WrongProduct]) -> Verdict:
    first = products[0]
    turns = item.gpu.exact.turns.get(first.precision, 0)
    others = list(dict.fromkeys(entry.precision for entry in products if entry.precision != first.precision))
    return failed(
        f"exact matrix products of {item.label}",
        f"{item.label} computes wrong results: in repetition {first.turn} of {turns} of a matrix product in "
        f"{first.precision}, element ({first.row}, {first.column}) is {first.got}, expected exactly "
        f"{first.expected}; {first.wrong} of {first.elements} elements are wrong"
        + (f" (also in {fold(others)})" if others else ""),
        at=Evidence(
            FACT,
            f"{first.got} (bits {first.flipped_bits} differ), {item.gpu.model} {item.gpu.state.uuid}",
            first.expected,
            "dcgmi diag -r 4",
            item.node,
        ),
        also=[
            Evidence(FACT, f"{entry.precision}, repetition {entry.turn}: {entry.got}", entry.expected, node=item.node)
            for entry in products[1:6]
        ],
        processes=(f"rank {item.rank}",),
        remedy=f"Remove {item.node} from the job, and run `dcgmi diag -r 4` on GPU {item.gpu.pci or item.label}; "
        "replace the card if that finds a fault or if this recurs.",
    )
