"""Checks for ranks that compute or communicate more slowly than the rest and would delay every step."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity, Status
from preflight.model.job import Job, Scope
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.context.copies import odd_sizes
from preflight_checks.requirements import fold, known_int, scopes
from preflight_checks.smoke.group_run import FACT, complete_run
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.plan import smoke_check
from preflight_checks.storage.shards import too_few_data_files
from reference_trainer.collective.pace import Window
from reference_trainer.collective.rank import RankReport

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
    """A rank that is slower than the others in both windows: by which factor at least, and in what."""

    node: str
    rank: int
    factor: float
    cause: str


@dataclass(frozen=True, slots=True)
class Paces:
    """The ranks with a measured pace, the slow ones among them, and slow exchanges on busy hosts.

    If most ranks wait for a processor (`busy`), times of exchanges mean nothing.
    """

    reports: tuple[tuple[str, RankReport], ...]
    named: tuple[Straggler, ...]
    busy: bool
    inconclusive: tuple[Straggler, ...]


def paces_of(reports: Iterable[tuple[str, RankReport]]) -> Paces:
    """The pace of these ranks, each with its node; none is slow if there is no majority."""
    timed = [(node, report) for node, report in reports if len(report.windows) >= 2]
    if len(timed) < MIN_RANKS:
        return Paces(tuple(timed), (), False, ())
    busy = statistics.median(_waited(report) for _, report in timed) > BUSY_SHARE
    slow = _stragglers(timed, computing, "computes", lambda report: ON_GPU if "cuda" in report.device else ON_CPU)
    exchanging = _stragglers(timed, _exchanging, "exchanges", lambda report: EXCHANGING, least_s=EXCHANGE_S)
    crowded = [] if busy else [Straggler(n, r.rank, 0.0, "waits") for n, r in timed if _waited(r) > CROWDED_SHARE]
    known = {item.rank for item in slow}
    others = (item for item in (*crowded, *(() if busy else exchanging)) if item.rank not in known)
    return Paces(tuple(timed), (*slow, *others), busy, tuple(exchanging) if busy else ())


@smoke_check(
    "SMK005",
    "straggler",
    cost="times eight pieces of work of about ten milliseconds and eight exchanges, twice; about a second",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "intelligent-machine-learning/dlrover#678",
        ("two rounds with changed partners", "intelligent-machine-learning/dlrover#735"),
        "NVIDIA's resiliency extension (score compared with the best rank)",
    ),
)
@may_fail_by_injection("delay")
def straggler(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No rank computes or communicates far more slowly than the others.

    What it checks: before and after the training steps every rank times local work, less the wait for a processor that
    others used, and exchanges with changing partners. A rank is named if it is an outlier in both windows: compared
    with the median of all ranks and its deviation (MAD). The work is the same for all, so a larger batch or shard makes
    no rank slow here; findings mention unequal work in the job's files and data.

    Why it matters: all ranks wait for the slowest at every step. A node that is half as fast makes the whole job half
    as fast, and since every rank's step takes equally long, none stands out.

    Example: rank 5 on node-f takes 3.1 times as long as the median rank for the same work; a control group held it
    back for 62 % of the time.

    Fix: compare clocks, power limits, cooling and limits of processors on the named node with another.

    Known limits: a short test of one size; three ranks or more. If most ranks wait for a processor, exchanges are
    inconclusive.
    """
    run = yield from complete_run(job, fleet, facts)
    if run is None:
        return
    paces = paces_of(run.reports)
    reports, found = paces.reports, paces.named
    if len(reports) < MIN_RANKS:
        yield not_applicable("pace of the ranks", f"{len(reports)} ranks are too few for a comparison")
        return
    if paces.inconclusive:
        waits = statistics.median(_waited(report) for _, report in reports)
        yield unknown(
            f"exchanges of {fold(item.node for item in paces.inconclusive)}",
            f"inconclusive: hosts busy (half of the ranks waited {waits:.0%} of the time or more for a processor)",
        )
    by_rank = {report.rank: report for _, report in reports}
    uneven = unequal_work(job, fleet, facts)
    for node in dict.fromkeys(item.node for item in found):
        yield _finding(node, [item for item in found if item.node == node], by_rank, uneven)
    if not found:
        times = sorted(computing(report.windows[0]) or 0.0 for _, report in reports)
        yield passed(
            f"pace of {len(reports)} ranks: {times[0] * 1e3:.2g} to {times[-1] * 1e3:.2g} ms for one piece of work"
            + (f"; the machines are alike, but the job's own work is not: {'; '.join(uneven)}" if uneven else "")
        )


def computing(window: Window) -> float | None:
    """The median time, in seconds, of one piece of local work in this window."""
    return statistics.median(window.compute_s) if window.compute_s else None


def _exchanging(window: Window) -> float | None:
    return statistics.median(window.exchange_s) if window.exchange_s else None


def _waited(report: RankReport) -> float:
    """The share of time that the rank waited for a processor that others used; the smaller of its windows."""
    return min((w.waited or 0.0) - (w.held_back or 0.0) for w in report.windows)


def _stragglers(
    reports: list[tuple[str, RankReport]],
    pace: Callable[[Window], float | None],
    cause: str,
    factor: Callable[[RankReport], float],
    *,
    least_s: float = 0.0,
) -> list[Straggler]:
    """The ranks whose pace is an outlier in every window."""
    times: dict[int, list[float]] = {}
    odd: dict[int, int] = {}
    windows = min(len(report.windows) for _, report in reports)
    for index in range(windows):
        known = {r.rank: value for _, r in reports if (value := pace(r.windows[index])) is not None}
        if len(known) < MIN_RANKS:
            return []
        middle = statistics.median(known.values())
        deviation = 1.4826 * statistics.median(abs(value - middle) for value in known.values())
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


def _finding(node: str, items: list[Straggler], by_rank: Mapping[int, RankReport], uneven: tuple[str, ...]) -> Verdict:
    first = items[0]
    ranks = ("rank " if len(items) == 1 else "ranks ") + fold(str(item.rank) for item in items)
    report = by_rank[first.rank]
    held = min(window.held_back or 0.0 for window in report.windows)
    waited = _waited(report)
    if first.cause == "waits":
        cause = f"waited for a processor for {waited:.0%} of the time in both windows, unlike most others"
    elif first.cause == "exchanges":
        partners = fold(str(window.partner) for window in report.windows)
        cause = f"took {first.factor:.1f} times as long as the median rank to exchange with others (ranks {partners})"
    else:
        cause = f"took {first.factor:.1f} times as long as the median rank for the same work, in both windows"
    if held > THROTTLED_SHARE:
        cause += f"; a control group's quota held it back for {held:.0%} of the time"
    paces = ", ".join(f"{(computing(window) or 0.0) * 1e3:.3g} ms" for window in report.windows)
    return failed(
        f"{ranks} on {node}",
        f"{ranks} on {node} {cause}; every step of the job would wait for it"
        + (f". It is not what makes the job's own work unequal: {'; '.join(uneven)}" if uneven else ""),
        at=Evidence(
            FACT,
            f"{paces} for one piece of work on {report.device}, {waited:.0%} of the time without a processor",
            "as long as on the other ranks",
            node=node,
        ),
        remedy=f"On {node}: `nvidia-smi -q -d CLOCK,PERFORMANCE`, `cat /sys/fs/cgroup/cpu.max`, `uptime`, "
        "`cpupower frequency-info`; compare with another node.",
    )


#: Sizes that determine the work of one rank in a step.
_OF_A_STEP = re.compile(r"batch|accumulat|seq.*len", re.IGNORECASE)
_QUANTITIES = ("micro_batch_size_per_gpu", "gradient_accumulation_steps")


def unequal_work(job: Job, fleet: Fleet, facts: Facts) -> tuple[str, ...]:
    """One sentence (without a full stop) per cause of unequal work."""
    return tuple(
        dict.fromkeys((*_unequal_claims(job, fleet), *_unequal_copies(job, facts), *_unequal_data(job, fleet, facts)))
    )


def _unequal_claims(job: Job, fleet: Fleet) -> Iterator[str]:
    """Sizes of a step that the linted files set differently for different nodes."""
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
        if _OF_A_STEP.search(name.rpartition(".")[2]):
            yield f"{name} in the nodes' own copies of {file} is {who.description} (BAT030)"


def _unequal_data(job: Job, fleet: Fleet, facts: Facts) -> Iterator[str]:
    for verdict in too_few_data_files.judge(job, fleet, facts):
        if verdict.status is Status.FAIL and verdict.severity is not Severity.INFO:
            yield f"{verdict.message} (DAT014)"
