"""The training run as charts and as numbers: the activities of each rank, and how fast it computes on its own."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.agent import rank_events
from preflight.analysis.rank_state import Member, members_of
from preflight.model.charts import Bar, Bars, Lane, Span, Timeline
from preflight.model.job import Job
from preflight.model.measurements import Measurements
from preflight.model.recording import FactRecord, Facts, Fleet, Observed
from preflight_checks.charts.node_tables import node_measurements, round_digits, sample_of
from preflight_checks.smoke.collective_speed import MIN_RANKS, Paces, Straggler, computing_s, paces_of
from preflight_checks.smoke.server_run import group_of
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.ps.run_report import WorkerReport
from reference_trainer.ps.worker import worker as run_worker

#: At most this many are shown: in a large fleet those that failed or fall behind, and a sample of the others.
MAX_LANES, MAX_BARS = 256, 2_000
#: Before its first event a process starts its interpreter and loads its code.
_STARTUP = "starting Python"


def steps(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Timeline]:
    """Yield one lane per rank, server or worker of the run, with its phases."""
    records = {record.request.key: record for record in facts.records_of(group=group_of(job))}
    members = sorted(members_of([record.request for record in records.values()]), key=lambda member: member.rank)
    lanes = [lane for member in members if (lane := _lane(member, records[member.key], facts)).spans]
    if not lanes:
        return
    ended = {member.name for member in members if records[member.key].unavailable is None}
    notable = {f"rank {item.rank}" for item in _paces(job, facts).named}
    kept = sample_of(lanes, MAX_LANES, lambda lane: lane.subject not in ended or lane.subject in notable)
    began_s = min(lane.spans[0].began_s for lane in lanes)
    note = f"Activities of {len(members)} processes of the run on a common time axis; {len(ended)} completed"
    if len(kept) < len(lanes):
        note += f"; {len(kept)} are shown, failed and slow ones first"
    shown = tuple(_since(began_s, lane) for lane in kept)
    yield Timeline("smoke.steps", "The training run, phase by phase", f"{note}.", shown)


def _lane(member: Member, record: FactRecord, facts: Facts) -> Lane:
    """Return the lane of one process. A phase lasts until the next one begins, the last one until the last event."""
    events = [event for event in facts.events(member.key) if event.origin == "child"]
    reached = [
        (event.at_s, str(event.data.get("phase", "")))
        for event in sorted(events, key=lambda event: event.at_s)
        if event.data.get("event") == rank_events.PHASE and rank_events.position(str(event.data.get("phase", ""))) >= 0
    ]
    if not reached:
        return Lane(member.name, member.node, ())
    end_s = max(record.finished_s, *(event.at_s for event in events))
    spans = [Span(min(record.started_s, reached[0][0]), reached[0][0], _STARTUP)]
    for (at_s, phase), (next_s, _) in zip(reached, [*reached[1:], (end_s, "")], strict=True):
        if phase != rank_events.DONE:
            spans.append(Span(at_s, next_s, rank_events.activity_of(phase, member.role)))
    return Lane(member.name, member.node, tuple(span for span in spans if span.ended_s > span.began_s))


def _since(began_s: float, lane: Lane) -> Lane:
    spans = (Span(round(s.began_s - began_s, 3), round(s.ended_s - began_s, 3), s.phase) for s in lane.spans)
    return Lane(lane.subject, lane.node, tuple(spans))


def stragglers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """Yield one bar per rank: the time of a fixed piece of work that needs no other rank."""
    paces = _paces(job, facts)
    stragglers = {item.rank: item for item in paces.named}
    bars = [
        Bar(
            f"rank {report.rank}",
            node,
            round_digits(min(times) * 1e3),
            report.rank in stragglers,
            _straggler_note(stragglers.get(report.rank)),
        )
        for node, report in sorted(paces.reports, key=lambda item: item[1].rank)
        if (times := [time for window in report.windows if (time := computing_s(window)) is not None])
    ]
    if not bars:
        return
    note = f"Time that {len(bars)} ranks need for the same work without communication, the better of two tries"
    if len(paces.reports) < MIN_RANKS:
        note += f"; with fewer than {MIN_RANKS} ranks there is no comparison"
    kept = sample_of(bars, MAX_BARS, lambda bar: bar.odd)
    if len(kept) < len(bars):
        note += f"; {len(kept)} are shown, slow ones first"
    yield Bars("smoke.stragglers", "Speed of the ranks", f"{note}.", "ms", kept)


def pace_of_ranks(job: Job, facts: Facts) -> Iterator[tuple[str, float]]:
    """Yield the node and the speed of each timed rank, in seconds: the best of its measurement windows."""
    for node, report in _paces(job, facts).reports:
        times = [time for window in report.windows if (time := computing_s(window)) is not None]
        if times:
            yield node, min(times)


def _straggler_note(stragglers: Straggler | None) -> str:
    if stragglers is None:
        return ""
    if stragglers.cause == "waits":
        return "did not get enough CPU time, unlike most others"
    return f"{stragglers.cause} {stragglers.factor:.1f} times as long as the median rank"


def step_times(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """Yield one bar per rank or worker: the time of a training step, including the wait for others."""
    group = group_of(job)
    ranks = [
        (row.fact.value.rank, f"rank {row.fact.value.rank}", row.node, _rank_step_s(row.fact.value))
        for row in facts.each(run_rank)
        if row.asked.group == group and isinstance(row.fact, Observed)
    ]
    workers = [
        (row.fact.value.index, f"worker {row.fact.value.index}", row.node, _worker_step_s(row.fact.value))
        for row in facts.each(run_worker)
        if row.asked.group == group and isinstance(row.fact, Observed)
    ]
    known = [(label, node, time_s) for _, label, node, time_s in sorted(ranks or workers) if time_s is not None]
    bars = tuple(Bar(label, node, round_digits(time_s * 1e3)) for label, node, time_s in known)
    if not bars:
        return
    kept = sample_of(bars, MAX_BARS, lambda bar: False)
    note = f"Median time of a training step of {len(bars)} ranks or workers, including the wait for others"
    if len(kept) < len(bars):
        note += f"; {len(kept)} are shown"
    yield Bars("smoke.step_times", "Training steps", f"{note}.", "ms", kept)


def _rank_step_s(report: RankReport) -> float | None:
    """Return the step times of a rank, without the first step, which builds the buckets."""
    return median(report.step_s[1:]) if len(report.step_s) > 1 else None


def _worker_step_s(report: WorkerReport) -> float | None:
    """Return the step times of a worker: compute, push, and the wait for its pull."""
    parts = [part[1:] for part in (report.compute_s, report.push_s, report.pull_s) if len(part) > 1]
    return sum(map(median, parts)) if report.compute_s[1:] else None


def _paces(job: Job, facts: Facts) -> Paces:
    """Return the speed of each rank, as the straggler check computes it."""
    group = group_of(job)
    seen = (row for row in facts.each(run_rank) if row.asked.group == group)
    return paces_of((row.node, row.fact.value) for row in seen if isinstance(row.fact, Observed))


def measure_ranks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """Return the time that the slowest rank of each node takes for the same work without communication."""
    slowest: dict[str, float] = {}
    for node, seconds in pace_of_ranks(job, facts):
        slowest[node] = max(seconds, slowest.get(node, 0.0))
    return node_measurements("rank_pace", dict(sorted(slowest.items())))
