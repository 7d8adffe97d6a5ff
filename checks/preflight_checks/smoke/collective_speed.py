"""Checks that the collectives of the smoke run are as fast as the links between the nodes allow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.host.processors import usable_cores
from preflight_checks.links.fleet_comparison import format_rate, format_time, slowest_direction
from preflight_checks.probes.limits import limits
from preflight_checks.requirements import fold, is_multi_node
from preflight_checks.smoke.group_run import FACT, complete_run, count
from preflight_checks.smoke.plan import smoke_check
from reference_trainer.collective.rank import RankReport
from reference_trainer.common.messages import ALL_REDUCE, OPERATIONS

#: An all-reduce is slow below this share of the rate of the slowest link, measured just before.
SLOW_FACTOR = 4.0
#: Rings pass a part of the message at each step; below this many bytes a step is mostly latency.
MIN_PART_BYTES = 1 << 18
#: If the threads of most ranks wait for a processor for this share of the time, times do not reflect the network.
BUSY_SHARE = 0.3

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


@smoke_check(
    "SMK011",
    "collectives-slower-than-links",
    cost="times five collectives at 4 KiB and at 1 to 16 MiB (256 MiB between GPUs); about half a second",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("all-reduce far below what the network carries", "NVIDIA/nccl#489"),
        ("the formula is that of nccl-tests", "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"),
    ),
)
def collectives_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Collectives reach the bandwidth of the links between the nodes.

    What it checks: bus bandwidth (by nccl-tests' formula) of all-reduce, all-gather, reduce-scatter, all-to-all and
    broadcast at a small and a large message, the median of several calls; that of a large all-reduce compared with the
    slowest link, measured over TCP in the link stage.

    Why it matters: training steps wait for collectives, which may use another network card or transport than the link
    measurements.

    Example: all_reduce of 16 MiB runs at 0.11 GB/s; the slowest link carried 9.2 Gbit/s.

    Fix: see SMK013 first (the card that carried the bytes), then choose the interface (GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME) and compare with nccl-tests.

    Known limits: a short test of one message size; with more ranks than cores, or on busy nodes, it is inconclusive.
    Without a measurement between nodes, and for groups too large for the message, the numbers are only reported.
    """
    run = yield from complete_run(job, fleet, facts)
    if run is None:
        return
    measured = [(node, report) for node, report in run.reports if report.sweep.timed]
    speeds = speeds_of(measured)
    if not speeds:
        yield not_applicable("bus bandwidth", _missing_reason(run.reports))
        return
    summary = _summary(speeds, measured)
    reason = _inconclusive(measured, facts)
    if reason:
        yield unknown("bus bandwidth", f"inconclusive: {reason}; {summary}")
        return
    large = max((s for s in speeds if s.operation == ALL_REDUCE), key=lambda s: s.message_bytes, default=None)
    slowest = slowest_direction(facts, {node for node, _ in measured}) if is_multi_node(fleet) else None
    world_size = measured[0][1].world_size
    if large is None or slowest is None or large.message_bytes // world_size < MIN_PART_BYTES:
        yield passed(f"bus bandwidth, not judged: {summary}")
        return
    mbps, pair = slowest
    reached = large.bytes_per_s * 8 / 1e6
    if reached * SLOW_FACTOR >= mbps:
        yield passed(f"bus bandwidth: {summary}; the slowest link carried {format_rate(mbps)}")
        return
    nodes = tuple(dict.fromkeys(node for node, _ in measured))
    yield failed(
        f"bus bandwidth of {count(world_size)}",
        f"an all_reduce of {_size(large.message_bytes)} moves {format_rate(reached)} over each link, though the "
        f"slowest link between two nodes ({pair[0]} to {pair[1]}) carried {format_rate(mbps)} over TCP; expected "
        f"at least {format_rate(mbps / SLOW_FACTOR)}",
        at=Evidence(FACT, summary, f">= {format_rate(mbps / SLOW_FACTOR)} for all_reduce", node=measured[0][0]),
        nodes=nodes,
        remedy="See SMK013 for the network card that carried it; choose the interface with GLOO_SOCKET_IFNAME or "
        "NCCL_SOCKET_IFNAME, and compare with nccl-tests or the link checks between single nodes.",
    )


def speeds_of(reports: Reports) -> tuple[CollectiveSpeed, ...]:
    """Each collective at each size, from the slowest rank, which the others wait for."""
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
    """All measurements, in one line."""
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


def _inconclusive(reports: Reports, facts: Facts) -> str:
    """Why times do not reflect the network; empty if they do."""
    if reports[0][1].backend != "gloo":
        return ""
    cores = {node: _cores(node, report, facts) for node, report in reports}
    crowded: Mapping[str, RankReport] = {n: r for n, r in reports if 0 < cores[n] < r.sweep.local_ranks}
    if crowded:
        node, report = next(iter(crowded.items()))
        return f"host busy: {report.sweep.local_ranks} ranks on {cores[node]:g} cores of {fold(crowded)}"
    waits = [report.sweep.waited for _, report in reports if report.sweep.waited is not None]
    if waits and statistics.median(waits) > BUSY_SHARE:
        load = max(report.sweep.load for _, report in reports)
        return (
            f"host busy: half of the ranks waited {statistics.median(waits):.0%} of the time or more (load {load:.1f})"
        )
    return ""


def _cores(node: str, report: RankReport, facts: Facts) -> float:
    """The cores that the ranks of a node may use, by affinity mask and CPU quota."""
    seen = facts.of(limits, node)
    allowed = usable_cores(seen.value) if isinstance(seen, Observed) else None
    return min(report.sweep.cores, allowed) if allowed else report.sweep.cores


def _format_rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def _size(message_bytes: int) -> str:
    mib = message_bytes / 2**20
    return f"{mib:.3g} MiB" if mib >= 0.5 else f"{message_bytes / 1024:.3g} KiB"
