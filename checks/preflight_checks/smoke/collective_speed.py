"""Checks that collectives are as fast as the network allows, and that no rank is slower than the others."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.sequences import deviation_from
from preflight.model.findings import Confidence, Evidence, Severity, Status
from preflight.model.job import Job, Scope
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.context.copies import odd_sizes
from preflight_checks.gpus.health import expected_speeds, model_of
from preflight_checks.host.processors import usable_cores
from preflight_checks.links.fleet_comparison import format_rate, format_time, slowest_direction
from preflight_checks.plans import gated_by, split
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.limits import limits
from preflight_checks.probes.rdma import rdma
from preflight_checks.rdma.devices import ports_by_node
from preflight_checks.requirements import fold, is_multi_node, known_int, scopes
from preflight_checks.smoke.gpu_floors import gpus_of
from preflight_checks.smoke.plan import FACT, SmokeRun, complete_run, count, smoke_check
from preflight_checks.smoke.ranks import may_fail_by_injection
from preflight_checks.smoke.transport import uses_sockets
from preflight_checks.storage.paths import too_few_data_files
from reference_trainer.collective.bandwidth import Window
from reference_trainer.collective.rank import RankReport
from reference_trainer.common.messages import ALL_REDUCE, OPERATIONS

#: Fewer ranks than this have no majority to compare with.
MIN_RANKS = 3
#: A rank is slow if it takes this many times as long as the median rank. NVIDIA's resiliency extension suspects
#: below three quarters of the best rank's speed on GPUs; two threads of one core halve each other's.
ON_GPU, ON_CPU, EXCHANGING = 1.33, 2.0, 4.0
#: It must also be this many deviations (1.4826 MAD) longer, and for an exchange at least this much longer.
DEVIATIONS, EXCHANGE_S = 5.0, 0.002
#: A rank that waited for a processor for this share of its computing time is crowded out.
CROWDED_SHARE = 0.4
#: With most ranks above this share, times of exchanges mean nothing, and a crowded rank is no exception.
BUSY_SHARE = 0.2
#: A control group that throttled a rank for this share of the time explains its slowness.
THROTTLED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slower than the others in both windows: its minimum factor, and the slow operation."""

    node: str
    rank: int
    factor: float
    cause: str


@dataclass(frozen=True, slots=True)
class Paces:
    """The ranks with a measured speed, the slow ones among them, and slow exchanges on busy hosts.

    If most ranks wait for a processor (`busy`), the times of exchanges are meaningless.
    """

    reports: tuple[tuple[str, RankReport], ...]
    named: tuple[Straggler, ...]
    busy: bool
    inconclusive: tuple[Straggler, ...]


def paces_of(reports: Iterable[tuple[str, RankReport]]) -> Paces:
    """Return the speed of these ranks, each with its node; without a majority, none is slow."""
    timed = [(node, report) for node, report in reports if len(report.windows) >= 2]
    if len(timed) < MIN_RANKS:
        return Paces(tuple(timed), (), False, ())
    busy = statistics.median(_waited_share(report) for _, report in timed) > BUSY_SHARE
    slow = _stragglers(timed, computing_s, "computes", lambda report: ON_GPU if "cuda" in report.device else ON_CPU)
    exchanging = _stragglers(timed, _exchanging_s, "exchanges", lambda report: EXCHANGING, least_s=EXCHANGE_S)
    crowded = [] if busy else [Straggler(n, r.rank, 0.0, "waits") for n, r in timed if _waited_share(r) > CROWDED_SHARE]
    known = {item.rank for item in slow}
    others = (item for item in (*crowded, *(() if busy else exchanging)) if item.rank not in known)
    return Paces(tuple(timed), (*slow, *others), busy, tuple(exchanging) if busy else ())


@smoke_check("SMK005", "straggler", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@may_fail_by_injection("delay")
@gated_by(complete_run)
def straggler(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """No rank computes or communicates far more slowly than the others.

    What it checks: before and after the training steps, every rank times local work, excluding waits for a processor
    that others used, and exchanges with changing partners. A rank is named if it is an outlier in both windows:
    compared with the median of all ranks and its deviation (MAD). The work is the same for all, so a larger batch or
    shard does not make a rank slow here; findings mention unequal work in the job's files and data.

    Why it matters: all ranks wait for the slowest at every step. A node that is half as fast makes the whole job half
    as fast, and because every rank's step takes the same time, none stands out.

    Example: rank 5 on node-f takes 3.1 times as long as the median rank for the same work; a control group throttled it
    for 62 % of the time.

    Fix: compare clocks, power limits, cooling and CPU limits on the named node with another node.

    Known limits: a short test of one size; three ranks or more. If most ranks wait for a processor, exchanges are
    inconclusive.
    """
    paces = paces_of(run.reports)
    reports, straggling = paces.reports, paces.named
    if len(reports) < MIN_RANKS:
        yield not_applicable("speed of the ranks", f"{len(reports)} ranks are too few for a comparison")
        return
    if paces.inconclusive:
        waits = statistics.median(_waited_share(report) for _, report in reports)
        yield unknown(
            f"exchanges of {fold(item.node for item in paces.inconclusive)}",
            f"inconclusive: hosts busy (half of the ranks waited for a processor {waits:.0%} of the time or more)",
        )
    by_rank = {report.rank: report for _, report in reports}
    uneven = unequal_work(job, fleet, facts)
    for node in dict.fromkeys(item.node for item in straggling):
        yield _straggler_finding(node, [item for item in straggling if item.node == node], by_rank, uneven)
    if not straggling:
        times = sorted(computing_s(report.windows[0]) or 0.0 for _, report in reports)
        yield passed(
            f"speed of {len(reports)} ranks: {times[0] * 1e3:.2g} to {times[-1] * 1e3:.2g} ms for the same work"
            + (
                f"; the machines are equally fast, but the job's own work is uneven: {'; '.join(uneven)}"
                if uneven
                else ""
            )
        )


def computing_s(window: Window) -> float | None:
    """Return the median time, in seconds, of a unit of local work in this window."""
    return statistics.median(window.compute_s) if window.compute_s else None


def _exchanging_s(window: Window) -> float | None:
    return statistics.median(window.exchange_s) if window.exchange_s else None


def _waited_share(report: RankReport) -> float:
    """Return the share of time that the rank waited for a busy processor, in the window where it is smaller."""
    return min((w.waited or 0.0) - (w.held_back or 0.0) for w in report.windows)


def _stragglers(
    reports: list[tuple[str, RankReport]],
    pace: Callable[[Window], float | None],
    cause: str,
    factor: Callable[[RankReport], float],
    *,
    least_s: float = 0.0,
) -> list[Straggler]:
    """Return the ranks whose speed is an outlier in every window."""
    times: dict[int, list[float]] = {}
    odd: dict[int, int] = {}
    windows = min(len(report.windows) for _, report in reports)
    for index in range(windows):
        known = {r.rank: value for _, r in reports if (value := pace(r.windows[index])) is not None}
        if len(known) < MIN_RANKS:
            return []
        middle = statistics.median(known.values())
        deviation = deviation_from(middle, known.values())
        for _, report in reports:
            value = known.get(report.rank)
            if value is None or middle <= 0:
                continue
            beyond = value > middle + max(DEVIATIONS * deviation, least_s)
            if beyond and value > factor(report) * middle:
                odd[report.rank] = odd.get(report.rank, 0) + 1
                times.setdefault(report.rank, []).append(value / middle)
    return [
        Straggler(node, report.rank, min(times[report.rank]), cause)
        for node, report in reports
        if odd.get(report.rank, 0) == windows
    ]


def _straggler_finding(
    node: str, items: list[Straggler], by_rank: Mapping[int, RankReport], uneven: tuple[str, ...]
) -> Verdict:
    first = items[0]
    ranks = ("rank " if len(items) == 1 else "ranks ") + fold(str(item.rank) for item in items)
    report = by_rank[first.rank]
    least_held_back = min(window.held_back or 0.0 for window in report.windows)
    waiting_share = _waited_share(report)
    if first.cause == "waits":
        cause = f"waited for a processor for {waiting_share:.0%} of the time in both windows, unlike most others"
    elif first.cause == "exchanges":
        partners = fold(str(window.partner) for window in report.windows)
        cause = f"took {first.factor:.1f} times as long as the median rank to exchange with others (ranks {partners})"
    else:
        cause = f"took {first.factor:.1f} times as long as the median rank for the same work, in both windows"
    if least_held_back > THROTTLED_SHARE:
        cause += f"; a control group's CPU quota throttled it for {least_held_back:.0%} of the time"
    paces = ", ".join(f"{(computing_s(window) or 0.0) * 1e3:.3g} ms" for window in report.windows)
    return failed(
        f"{ranks} on {node}",
        f"{ranks} on {node} {cause}; every step of the job would wait for it"
        + (f". The job's own work is uneven for another reason: {'; '.join(uneven)}" if uneven else ""),
        at=Evidence(
            FACT,
            f"{paces} for the same work on {report.device}, {waiting_share:.0%} of the time without a processor",
            "as long as on the other ranks",
            node=node,
        ),
        remedy=f"On {node}: `nvidia-smi -q -d CLOCK,PERFORMANCE`, `cat /sys/fs/cgroup/cpu.max`, `uptime`, "
        "`cpupower frequency-info`; compare with another node.",
    )


#: Sizes that determine the work of one rank in a step.
_STEP_SIZES = re.compile(r"batch|accumulat|seq.*len", re.IGNORECASE)
_QUANTITIES = ("micro_batch_size_per_gpu", "gradient_accumulation_steps")


def unequal_work(job: Job, fleet: Fleet, facts: Facts) -> tuple[str, ...]:
    """Return one sentence (without a full stop) per cause of unequal work."""
    return tuple(
        dict.fromkeys((*_unequal_claims(job, fleet), *_unequal_copies(job, facts), *_unequal_data(job, fleet, facts)))
    )


def _unequal_claims(job: Job, fleet: Fleet) -> Iterator[str]:
    """Yield the claims about sizes of a step that the linted files set differently for different nodes."""
    for quantity in _QUANTITIES:
        for scope in scopes(job):
            stated = {
                node.name: value
                for node in fleet.nodes
                if node.name in job.named_nodes
                and (value := known_int(job, quantity, Scope(scope.launch, scope.role, node.name))) is not None
            }
            who = split(stated)
            if who is not None and who.odd:
                yield f"the job's files set {quantity} to {who.description}"


def _unequal_copies(job: Job, facts: Facts) -> Iterator[str]:
    for file, name, who in odd_sizes(job, facts):
        if _STEP_SIZES.search(name.rpartition(".")[2]):
            yield f"{name} in the nodes' copies of {file} is {who.description} (BAT030)"


def _unequal_data(job: Job, fleet: Fleet, facts: Facts) -> Iterator[str]:
    for verdict in too_few_data_files.judge(job, fleet, facts):
        if verdict.status is Status.FAIL and verdict.severity is not Severity.INFO:
            yield f"{verdict.message} (DAT014)"


#: An all-reduce is slow below this share of the rate of the slowest link, measured just before.
SLOW_FACTOR = 4.0
#: Rings pass a part of the message at each step; below this many bytes a step is mostly latency.
MIN_PART_BYTES = 1 << 18
#: If the threads of most ranks wait for a processor for this share of the time, times do not reflect the network.
BUSY_COLLECTIVE_SHARE = 0.3

Reports = Sequence[tuple[str, RankReport]]


@dataclass(frozen=True, slots=True)
class CollectiveSpeed:
    """One collective at one size, as timed by the slowest rank."""

    operation: str
    message_bytes: int
    seconds: float
    bytes_per_s: float

    @property
    def description(self) -> str:
        """`all_reduce 1.2 GB/s`."""
        return f"{self.operation} {_format_rate(self.bytes_per_s)}"


@smoke_check("SMK011", "collectives-slower-than-links", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@gated_by(complete_run)
def collectives_slow(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """Collectives reach the bandwidth of the links between the nodes.

    What it checks: bus bandwidth (by nccl-tests' formula) of all-reduce, all-gather, reduce-scatter, all-to-all and
    broadcast with a small and a large message, as the median of several calls; that of a large all-reduce is compared
    with the slowest link, which the link stage measures over TCP.

    Why it matters: training steps wait for collectives, which may use another network card or transport than the link
    measurements.

    Example: all_reduce of 16 MiB runs at 0.11 GB/s, but the slowest link carried 9.2 Gbit/s.

    Fix: see SMK013 first (the network card that was used), then select the interface (GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME) and compare with nccl-tests.

    Known limits: a short test of one message size; with more ranks than cores, or on busy nodes, it is inconclusive.
    Without a measurement between nodes, and for groups too large for the message, the numbers are only reported.
    """
    measured = [(node, report) for node, report in run.reports if report.sweep.timed]
    speeds = speeds_of(measured)
    if not speeds:
        yield not_applicable("bus bandwidth", _missing_reason(run.reports))
        return
    summary = _summary(speeds, measured)
    reason = _inconclusive_reason(measured, facts)
    if reason:
        yield unknown("bus bandwidth", f"inconclusive: {reason}; {summary}")
        return
    large = max((s for s in speeds if s.operation == ALL_REDUCE), key=lambda s: s.message_bytes, default=None)
    slowest = slowest_direction(facts, {node for node, _ in measured}) if is_multi_node(fleet) else None
    world_size = measured[0][1].world_size
    if large is None or slowest is None or large.message_bytes // world_size < MIN_PART_BYTES:
        yield passed(f"bus bandwidth, for information: {summary}")
        return
    mbps, pair = slowest
    reached = large.bytes_per_s * 8 / 1e6
    if reached * SLOW_FACTOR >= mbps:
        yield passed(f"bus bandwidth: {summary}; the slowest link carried {format_rate(mbps)}")
        return
    nodes = tuple(dict.fromkeys(node for node, _ in measured))
    yield failed(
        f"bus bandwidth of {count(world_size)}",
        f"an all_reduce of {_size(large.message_bytes)} moves only {format_rate(reached)} over each link, although "
        f"the slowest link between two nodes ({pair[0]} to {pair[1]}) carried {format_rate(mbps)} over TCP; expected "
        f"at least {format_rate(mbps / SLOW_FACTOR)}",
        at=Evidence(FACT, summary, f">= {format_rate(mbps / SLOW_FACTOR)} for all_reduce", node=measured[0][0]),
        nodes=nodes,
        remedy="See SMK013 for the network card that was used; select the interface with GLOO_SOCKET_IFNAME or "
        "NCCL_SOCKET_IFNAME, and compare with nccl-tests or the link checks between single nodes.",
    )


def speeds_of(reports: Reports) -> tuple[CollectiveSpeed, ...]:
    """Return each collective at each size, from the slowest rank, for which the others wait."""
    found: dict[tuple[str, int], CollectiveSpeed] = {}
    for _, report in reports:
        for timed in report.sweep.timed:
            key = (timed.operation, timed.message_bytes)
            if key not in found or timed.bytes_per_s < found[key].bytes_per_s:
                seconds = statistics.median(timed.times_s) if timed.times_s else 0.0
                found[key] = CollectiveSpeed(timed.operation, timed.message_bytes, seconds, timed.bytes_per_s)
    order = {name: index for index, name in enumerate(OPERATIONS)}
    return tuple(sorted(found.values(), key=lambda s: (s.message_bytes, order.get(s.operation, len(order)))))


def _summary(speeds: Sequence[CollectiveSpeed], reports: Reports) -> str:
    sizes = sorted({speed.message_bytes for speed in speeds})
    parts = []
    if len(sizes) > 1:
        large = [speed.description for speed in speeds if speed.message_bytes > sizes[0]]
        parts.append(f"{', '.join(large)} at {_size(sizes[-1])}")
    small = [f"{s.operation} {format_time(s.seconds)}" for s in speeds if s.message_bytes == sizes[0]]
    parts.append(f"{', '.join(small)} at {_size(sizes[0])}")
    report = reports[0][1]
    parts.append(f"{count(report.world_size)} over {report.backend}")
    if report.sweep.unsupported:
        parts.append(f"{report.backend} has no {fold(report.sweep.unsupported)}")
    if report.sweep.skipped:
        parts.append(report.sweep.skipped)
    return "; ".join(parts)


def _missing_reason(reports: Reports) -> str:
    skipped = dict.fromkeys(report.sweep.skipped for _, report in reports if report.sweep.skipped)
    return fold(skipped) or "no collective was timed"


def _inconclusive_reason(reports: Reports, facts: Facts) -> str:
    """Return why the times do not reflect the network; empty if they do."""
    if reports[0][1].backend != "gloo":
        return ""
    cores = {node: _cores(node, report, facts) for node, report in reports}
    crowded: Mapping[str, RankReport] = {n: r for n, r in reports if 0 < cores[n] < r.sweep.local_ranks}
    if crowded:
        node, report = next(iter(crowded.items()))
        return f"host busy: {report.sweep.local_ranks} ranks on {cores[node]:g} cores of {fold(crowded)}"
    waits = [report.sweep.waited for _, report in reports if report.sweep.waited is not None]
    if waits and statistics.median(waits) > BUSY_COLLECTIVE_SHARE:
        load = max(report.sweep.load for _, report in reports)
        return (
            f"host busy: half of the ranks waited for a processor {statistics.median(waits):.0%} of the time or more "
            f"(load {load:.1f})"
        )
    return ""


def _cores(node: str, report: RankReport, facts: Facts) -> float:
    """Return the cores that the ranks of a node may use, by affinity mask and CPU quota."""
    seen = facts.of(limits, node)
    allowed = usable_cores(seen.value) if isinstance(seen, Observed) else None
    return min(report.sweep.cores, allowed) if allowed else report.sweep.cores


def _format_rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def _size(message_bytes: int) -> str:
    mib = message_bytes / 2**20
    return f"{mib:.3g} MiB" if mib >= 0.5 else f"{message_bytes / 1024:.3g} KiB"


#: NCCL's sockets do not fill faster cards than this, in Gbit/s.
MAX_SOCKET_GBPS = 40.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The fabric that carried the collectives: its peak in bytes per second on the weakest node or GPU, and the
    required share.

    `unknown` is why there is no peak.
    """

    what: str
    peak: float = 0.0
    share: float = 0.0
    weakest: str = ""
    unknown: str = ""


@smoke_check(
    "SMK017",
    "collectives-slower-than-fabric",
    reads=(rdma, interfaces),
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
)
@gated_by(complete_run)
def collectives_below_fabric(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Iterator[Verdict]:
    """An all-reduce over NCCL reaches a share of what NVSwitch or the network cards can carry.

    What it checks: bus bandwidth of a large all-reduce. On one node it is compared with the NVLinks of each GPU to its
    NVSwitches, between nodes with the line rates that the node's ports report, for the ports in NCCL's log, at most one
    per rank. A quarter and a fifth of the peak must be reached, respectively.

    Why it matters: if every link is equally slow, nothing stands out. A fabric at a tenth of its speed makes every step
    wait, on all nodes.

    Example: all_reduce of 256 MiB moves 9 GB/s over eight 400 Gbit/s ports of each node, which carry 400 GB/s.

    Fix: SMK012 names the transport; then compare with nccl-tests, and check the speed of ports and switches (RDM003).

    Known limits: only one short message is used. GPUs that are connected without NVSwitch, groups too large for the
    message, and virtual cards that report no speed are not judged.
    """
    measured = [(node, report) for node, report in run.reports if report.sweep.timed]
    if not measured or {report.backend for _, report in measured} != {"nccl"}:
        yield not_applicable("collective bandwidth of the fabric", "no collective was timed over NCCL")
        return
    speeds = [speed for speed in speeds_of(measured) if speed.operation == ALL_REDUCE]
    large = max(speeds, key=lambda speed: speed.message_bytes, default=None)
    world_size = measured[0][1].world_size
    if large is None or large.message_bytes // world_size < MIN_PART_BYTES:
        yield not_applicable(
            "collective bandwidth of the fabric", "no message was large enough for its number of ranks"
        )
        return
    fabric = _fabric(job, facts, measured)
    shown = f"all_reduce of {large.message_bytes / 2**20:.3g} MiB moves {large.bytes_per_s / 1e9:.3g} GB/s"
    if fabric.unknown:
        yield unknown("collective bandwidth of the fabric", f"{fabric.unknown}; {shown} over {fabric.what}")
        return
    least = fabric.peak * fabric.share
    if large.bytes_per_s >= least:
        yield passed(
            f"collective bandwidth of the fabric: {shown} over {fabric.what}, peak {fabric.peak / 1e9:.4g} GB/s"
        )
        return
    yield _finding(measured, fabric, least, shown)


def _finding(measured: Reports, fabric: Fabric, least: float, shown: str) -> Verdict:
    nodes = tuple(dict.fromkeys(node for node, _ in measured))
    via = fold(dict.fromkeys(kind for _, report in measured for kind in report.transport.nccl.via)) or "unknown"
    return failed(
        f"fabric of {count(measured[0][1].world_size)}",
        f"an {shown} over {fabric.what}, but {fabric.weakest} can carry {fabric.peak / 1e9:.4g} GB/s; expected at "
        f"least {least / 1e9:.3g} GB/s ({fabric.share:.0%})",
        at=Evidence(
            FACT,
            f"{shown}; NCCL's channels: {via}",
            f">= {least / 1e9:.3g} GB/s",
            "all_reduce_perf -b 256M -e 1G -f 2",
            nodes[0],
        ),
        nodes=nodes,
        remedy="See SMK012 and SMK013 for the transport and network cards that were used, and RDM003 for slow "
        "ports; compare with `all_reduce_perf` of nccl-tests, first on one node, then on two.",
    )


def _fabric(job: Job, facts: Facts, measured: Reports) -> Fabric:
    nodes = list(dict.fromkeys(node for node, _ in measured))
    if any(item.sharing > 1 for item in gpus_of(job, facts)):
        return Fabric("a shared GPU", unknown="several ranks share a GPU")
    if len(nodes) == 1:
        return _node_fabric(job, facts)
    sockets = {uses_sockets(report) for _, report in measured}
    if sockets == {False}:
        return _rdma_fabric(job, facts, measured, nodes)
    if sockets == {True}:
        return _socket_fabric(facts, measured, nodes)
    return Fabric("an unknown network", unknown="neither NCCL nor a counter shows which network was used")


def _node_fabric(job: Job, facts: Facts) -> Fabric:
    """Return NVLink as the fabric, measured by the links of the GPU that has the fewest."""
    devices = gpus_of(job, facts)
    weakest, peak = "", 0.0
    for item in devices:
        row, links = model_of(item.gpu.model), item.gpu.switch_links
        if row is None or row.nvlink is None or not links:
            return Fabric("the links within the node", unknown=f"no NVSwitch is known for {item.label}")
        rate = row.nvlink * links * 1e9
        if not weakest or rate < peak:
            weakest, peak = f"{item.label} ({links} links)", rate
    if not devices:
        return Fabric("the links within the node", unknown="no rank measured a GPU")
    return Fabric("NVSwitch", peak, expected_speeds().floors.all_reduce_in_node, weakest)


def _rdma_fabric(job: Job, facts: Facts, measured: Reports, nodes: Sequence[str]) -> Fabric:
    """Return the ports in NCCL's log as the fabric, at their reported rates; each rank uses at most one port."""
    ports = ports_by_node(job, facts)
    limits: list[tuple[float, str, str]] = []
    for node in nodes:
        ranks = [report for name, report in measured if name == node]
        used = set().union(*(report.transport.nccl.devices for report in ranks))
        rates = sorted(
            port.port.rate_gbps
            for port in ports.get(node, ())
            if port.is_usable and port.port.rate_gbps and (port.name in used or not used)
        )[: len(ranks)]
        if not rates:
            return Fabric("RDMA", unknown=f"the rate of the ports of {node} is unknown")
        limits.append((sum(rates) / 8 * 1e9, node, f"{len(rates)} RDMA ports of {format_rate(rates[0] * 1e3)}"))
    peak, node, what = min(limits)
    return Fabric(what, peak, expected_speeds().floors.all_reduce_between_nodes, node)


def _socket_fabric(facts: Facts, measured: Reports, nodes: Sequence[str]) -> Fabric:
    """Return the physical interfaces in NCCL's log as the fabric, with the speed that each reports."""
    limits: list[tuple[float, str, str]] = []
    for node in nodes:
        used = set().union(*(report.transport.nccl.devices for name, report in measured if name == node))
        fact = facts.of(interfaces, node)
        listed = fact.value.interfaces if isinstance(fact, Observed) else []
        speeds = [i.speed_mbps for i in listed if i.name in used and i.kind == "physical" and i.speed_mbps]
        if not speeds:
            return Fabric("sockets", unknown=f"the interfaces of {node} that NCCL used report no speed")
        rate = min(MAX_SOCKET_GBPS, min(speeds) / 1e3)
        limits.append((rate / 8 * 1e9, node, f"sockets on {fold(sorted(used))}"))
    peak, node, what = min(limits)
    return Fabric(what, peak, expected_speeds().floors.all_reduce_between_nodes, node)
