"""The training run for the eye: what every rank did when, and how fast each computes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.exhibit import Bar, Bars, Lane, Span, Timeline
from preflight.gang import members_of
from preflight.job import Job
from preflight.ranks import Member
from preflight.recording import FactRecord, Facts, Fleet, Observed
from preflight_checks.exhibits.telling import short, thinned
from preflight_checks.smoke.server_plan import group_of
from preflight_checks.smoke.stragglers import FEWEST, Behind, Paces, computing, paces_of
from reference_trainer import phases
from reference_trainer.collective import RankReport
from reference_trainer.collective import rank as run_rank
from reference_trainer.ps.report import WorkerReport
from reference_trainer.ps.worker import worker as run_worker

#: So many are shown: of a large fleet those that did not end or fall behind, and some of the others.
MOST_LANES, MOST_BARS = 256, 2_000
#: Before its first word a process starts its interpreter and gets its code.
_BEFORE = "starting Python"


def steps(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Timeline]:
    """A lane for each rank, server or worker of the run, with its phases."""
    records = {record.request.key: record for record in facts.records_of(group=group_of(job))}
    members = sorted(members_of([record.request for record in records.values()]), key=lambda member: member.rank)
    lanes = [lane for member in members if (lane := _lane(member, records[member.key], facts)).spans]
    if not lanes:
        return
    ended = {member.name for member in members if records[member.key].unavailable is None}
    notable = {f"rank {item.rank}" for item in _paces(job, facts).named}
    kept = thinned(lanes, MOST_LANES, lambda lane: lane.subject not in ended or lane.subject in notable)
    began_s = min(lane.spans[0].began_s for lane in lanes)
    note = f"What {len(members)} of the run's processes did, by one clock; {len(ended)} came to the end"
    if len(kept) < len(lanes):
        note += f"; {len(kept)} are shown, first those that did not or fall behind"
    shown = tuple(_since(began_s, lane) for lane in kept)
    yield Timeline("smoke.steps", "The training run, phase by phase", f"{note}.", shown)


def _lane(member: Member, record: FactRecord, facts: Facts) -> Lane:
    """What one of them did: a phase lasts until it said the next one, the last one as long as the process was heard."""
    said = [event for event in facts.events(member.key) if event.origin == "child"]
    reached = [
        (event.at_s, str(event.data.get("phase", "")))
        for event in sorted(said, key=lambda event: event.at_s)
        if event.data.get("event") == phases.PHASE and phases.position(str(event.data.get("phase", ""))) >= 0
    ]
    if not reached:
        return Lane(member.name, member.node, ())
    end_s = max(record.finished_s, *(event.at_s for event in said))
    spans = [Span(min(record.started_s, reached[0][0]), reached[0][0], _BEFORE)]
    for (at_s, phase), (next_s, _) in zip(reached, [*reached[1:], (end_s, "")], strict=True):
        if phase != phases.DONE:
            spans.append(Span(at_s, next_s, phases.doing(phase, member.role)))
    return Lane(member.name, member.node, tuple(span for span in spans if span.ended_s > span.began_s))


def _since(began_s: float, lane: Lane) -> Lane:
    spans = (Span(round(s.began_s - began_s, 3), round(s.ended_s - began_s, 3), s.phase) for s in lane.spans)
    return Lane(lane.subject, lane.node, tuple(spans))


def stragglers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """A bar for each rank: how long it takes for a piece of work that needs nobody else."""
    paces = _paces(job, facts)
    behind = {item.rank: item for item in paces.named}
    bars = [
        Bar(f"rank {report.rank}", node, _pace_ms(times), report.rank in behind, _why(behind.get(report.rank)))
        for node, report in sorted(paces.reports, key=lambda item: item[1].rank)
        if (times := [time for window in report.windows if (time := computing(window)) is not None])
    ]
    if not bars:
        return
    note = f"How long {len(bars)} ranks take for the same piece of work that needs nobody else, the better of two looks"
    if len(paces.reports) < FEWEST:
        note += f"; fewer than {FEWEST} ranks have no majority to fall behind"
    kept = thinned(bars, MOST_BARS, lambda bar: bar.odd)
    if len(kept) < len(bars):
        note += f"; {len(kept)} are shown, first those that fall behind"
    yield Bars("smoke.stragglers", "Pace of the ranks", f"{note}.", "ms", kept)


def _pace_ms(times_s: list[float]) -> float | None:
    """The better of its windows: who falls behind does so in all of them."""
    return short(min(times_s) * 1e3)


def _why(behind: Behind | None) -> str:
    if behind is None:
        return ""
    if behind.what == "waits":
        return "had no processor, unlike most others"
    return f"{behind.what} {behind.times:.1f} times as long as the median rank"


def step_times(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """A bar for each rank or worker: how long a training step takes, with what it waits for others."""
    group = group_of(job)
    ranks = [
        (one.fact.value.rank, f"rank {one.fact.value.rank}", one.node, _of_rank(one.fact.value))
        for one in facts.each(run_rank)
        if one.asked.group == group and isinstance(one.fact, Observed)
    ]
    workers = [
        (one.fact.value.index, f"worker {one.fact.value.index}", one.node, _of_worker(one.fact.value))
        for one in facts.each(run_worker)
        if one.asked.group == group and isinstance(one.fact, Observed)
    ]
    known = [(label, node, time_s) for _, label, node, time_s in sorted(ranks or workers) if time_s is not None]
    bars = tuple(Bar(label, node, short(time_s * 1e3)) for label, node, time_s in known)
    if not bars:
        return
    kept = thinned(bars, MOST_BARS, lambda bar: False)
    note = f"Median time of a training step of {len(bars)} ranks or workers, with what it waits for others"
    if len(kept) < len(bars):
        note += f"; {len(kept)} are shown"
    yield Bars("smoke.step_times", "Training steps", f"{note}.", "ms", kept)


def _of_rank(report: RankReport) -> float | None:
    """Without the first step, in which buckets are built."""
    return median(report.step_s[1:]) if len(report.step_s) > 1 else None


def _of_worker(report: WorkerReport) -> float | None:
    """What it computes, pushes and waits for when it pulls."""
    parts = [part[1:] for part in (report.compute_s, report.push_s, report.pull_s) if len(part) > 1]
    return sum(map(median, parts)) if report.compute_s[1:] else None


def _paces(job: Job, facts: Facts) -> Paces:
    """Who falls behind, as the check of stragglers has it."""
    group = group_of(job)
    seen = (one for one in facts.each(run_rank) if one.asked.group == group)
    return paces_of((one.node, one.fact.value) for one in seen if isinstance(one.fact, Observed))
