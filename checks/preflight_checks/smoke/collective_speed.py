"""How fast the collectives of the smoke run were, and whether that is what the ways between the nodes carry."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import fold
from preflight_checks.host.processors import usable_cores
from preflight_checks.links.quality import spoken_rate, spoken_time, tries
from preflight_checks.network.nic_choice import apart
from preflight_checks.probes.limits import limits
from preflight_checks.smoke.smoke_plan import plan_smoke
from preflight_checks.smoke.smoke_run import FACT, count, incomplete, run_of
from reference_trainer.collective import RankReport
from reference_trainer.collective import rank as run_rank
from reference_trainer.messages import ALL_REDUCE, OPERATIONS

#: An all-reduce is slow below this part of what the slowest way between two nodes carried a moment before.
SLOW = 4.0
#: Rings pass a part of the message at each step; below so many bytes a step is mostly delay.
LEAST_PART_BYTES = 1 << 18
#: Where the threads of most ranks wait for a processor for this share of the time, times say nothing of a network.
BUSY = 0.3

Reports = Sequence[tuple[str, RankReport]]


@dataclass(frozen=True, slots=True)
class Speed:
    """One collective at one size, as the slowest rank saw it."""

    operation: str
    message_bytes: int
    seconds: float
    bytes_per_s: float

    @property
    def spoken(self) -> str:
        """`all_reduce 1.2 GB/s`."""
        return f"{self.operation} {_spoken(self.bytes_per_s)}"


@check(
    "SMK011",
    "collectives-slower-than-links",
    plan=plan_smoke,
    probes=(run_rank,),
    cost="times five collectives at 4 KiB and at 1 to 16 MiB (256 MiB between GPUs); about half a second",
    when="smoke",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#489", "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"),
)
def collectives_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Collectives reach what the ways between the nodes carry.

    What it checks: bus bandwidth (by nccl-tests' formula) of all-reduce, all-gather, reduce-scatter, all-to-all and
    broadcast at a small and a large message, the median of several calls; that of a large all-reduce against the
    slowest way between two nodes, measured over TCP in the stage before.

    Why it matters: what a training step waits for is the collective. It may take another network card, or another
    transport, than what was measured between the nodes.

    Example: all_reduce of 16 MiB runs at 0.11 GB/s; the slowest way between two nodes carried 9.2 Gbit/s.

    Fix: look at SMK013 first (the card that carried the bytes), then choose the interface (GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME) and compare with nccl-tests.

    Known limits: a short test of one message size; with more ranks than cores, or on busy nodes, it is inconclusive.
    Without a measurement between nodes, and for groups too large for the message, the numbers are only told.

    Evidence: NVIDIA/nccl#489 (all-reduce far below what the network carries); the formula is that of nccl-tests.
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    measured = [(node, report) for node, report in run.reports if report.sweep.timed]
    speeds = speeds_of(measured)
    if not speeds:
        yield not_applicable("bus bandwidth", _why_none(run.reports))
        return
    told = _told(speeds, measured)
    reason = _inconclusive(measured, facts)
    if reason:
        yield unknown("bus bandwidth", f"inconclusive: {reason}; {told}")
        return
    large = max((s for s in speeds if s.operation == ALL_REDUCE), key=lambda s: s.message_bytes, default=None)
    slowest = _slowest_way(facts, {node for node, _ in measured}) if apart(fleet) else None
    world_size = measured[0][1].world_size
    if large is None or slowest is None or large.message_bytes // world_size < LEAST_PART_BYTES:
        yield passed(f"bus bandwidth, told only: {told}")
        return
    mbps, pair = slowest
    reached = large.bytes_per_s * 8 / 1e6
    if reached * SLOW >= mbps:
        yield passed(f"bus bandwidth: {told}; the slowest way between two nodes carried {spoken_rate(mbps)}")
        return
    nodes = tuple(dict.fromkeys(node for node, _ in measured))
    yield failed(
        f"bus bandwidth of {count(world_size)}",
        f"an all_reduce of {_size(large.message_bytes)} moves {spoken_rate(reached)} over each link, though the "
        f"slowest way between two nodes ({pair[0]} to {pair[1]}) carried {spoken_rate(mbps)} over TCP; at least "
        f"{spoken_rate(mbps / SLOW)} was expected",
        at=Evidence(FACT, told, f">= {spoken_rate(mbps / SLOW)} for all_reduce", node=measured[0][0]),
        nodes=nodes,
        remedy="See SMK013 for the network card that carried it; choose the interface with GLOO_SOCKET_IFNAME or "
        "NCCL_SOCKET_IFNAME, and compare with nccl-tests or the link checks between single nodes.",
    )


def speeds_of(reports: Reports) -> tuple[Speed, ...]:
    """Each collective at each size: the slowest rank's, because it sends last what the others wait for."""
    found: dict[tuple[str, int], Speed] = {}
    for _, report in reports:
        for timed in report.sweep.timed:
            key = (timed.operation, timed.message_bytes)
            if key not in found or timed.bytes_per_s < found[key].bytes_per_s:
                seconds = statistics.median(timed.times_s) if timed.times_s else 0.0
                found[key] = Speed(timed.operation, timed.message_bytes, seconds, timed.bytes_per_s)
    order = {name: index for index, name in enumerate(OPERATIONS)}
    return tuple(sorted(found.values(), key=lambda s: (s.message_bytes, order.get(s.operation, len(order)))))


def _told(speeds: Sequence[Speed], reports: Reports) -> str:
    """All that was measured, in one line."""
    sizes = sorted({speed.message_bytes for speed in speeds})
    parts = []
    if len(sizes) > 1:
        large = [speed.spoken for speed in speeds if speed.message_bytes > sizes[0]]
        parts.append(f"{', '.join(large)} at {_size(sizes[-1])}")
    small = [f"{s.operation} {spoken_time(s.seconds)}" for s in speeds if s.message_bytes == sizes[0]]
    parts.append(f"{', '.join(small)} at {_size(sizes[0])}")
    report = reports[0][1]
    parts.append(f"{count(report.world_size)} over {report.backend}")
    if report.sweep.unsupported:
        parts.append(f"{report.backend} has no {fold(report.sweep.unsupported)}")
    if report.sweep.skipped:
        parts.append(report.sweep.skipped)
    return "; ".join(parts)


def _why_none(reports: Reports) -> str:
    skipped = dict.fromkeys(report.sweep.skipped for _, report in reports if report.sweep.skipped)
    return fold(skipped) or "no collective was timed"


def _inconclusive(reports: Reports, facts: Facts) -> str:
    """Why times say nothing of the network; empty where they do."""
    if reports[0][1].backend != "gloo":
        return ""
    cores = {node: _cores(node, report, facts) for node, report in reports}
    crowded: Mapping[str, RankReport] = {n: r for n, r in reports if 0 < cores[n] < r.sweep.local_ranks}
    if crowded:
        node, report = next(iter(crowded.items()))
        return f"host busy: {report.sweep.local_ranks} ranks on {cores[node]:g} cores of {fold(crowded)}"
    waits = [report.sweep.waited for _, report in reports if report.sweep.waited is not None]
    if waits and statistics.median(waits) > BUSY:
        load = max(report.sweep.load for _, report in reports)
        return (
            f"host busy: half of the ranks waited {statistics.median(waits):.0%} of the time or more (load {load:.1f})"
        )
    return ""


def _cores(node: str, report: RankReport, facts: Facts) -> float:
    """The cores that the ranks of a node may use: of the affinity mask, and by the quota of a control group."""
    seen = facts.of(limits, node)
    allowed = usable_cores(seen.value) if isinstance(seen, Observed) else None
    return min(report.sweep.cores, allowed) if allowed else report.sweep.cores


def _slowest_way(facts: Facts, nodes: set[str]) -> tuple[float, tuple[str, str]] | None:
    """The rate of the slowest way between two of the nodes with one stream, as it was seen last."""
    rates = [
        (rate, pair)
        for pair, several in tries(facts).items()
        if set(pair) <= nodes and (rate := several[-1].way.single_mbps or several[-1].rate_mbps) is not None
    ]
    return min(rates, default=None)


def _spoken(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def _size(message_bytes: int) -> str:
    mib = message_bytes / 2**20
    return f"{mib:.3g} MiB" if mib >= 0.5 else f"{message_bytes / 1024:.3g} KiB"
