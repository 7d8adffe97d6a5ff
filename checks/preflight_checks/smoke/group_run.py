"""The recorded smoke run of a job, prepared for the checks that judge it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, decision_time, find_culprit
from preflight.analysis.rank_stacks import find_outside, frames_of
from preflight.analysis.rank_state import Member, build_views, members_of
from preflight.model.findings import Evidence
from preflight.model.job import Claim, Job
from preflight.model.recording import EventRecord, FactRecord, FactRow, Facts, Fleet, Observed
from preflight.model.requests import probe_name
from preflight.plugins.authoring import Verdict, not_applicable, unknown
from preflight_checks.requirements import fold
from preflight_checks.smoke.plan import not_planned
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.rank import rank as run_rank

_LAST_LINES = 6
_FRAMES = 8


@dataclass(frozen=True)
class GroupRun:
    """The recorded run of one group."""

    records: tuple[FactRecord, ...]
    events: tuple[EventRecord, ...]
    culprit: Culprit | None
    claims: tuple[Claim, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that were to be started."""
        return members_of([record.request for record in self.records])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to name: that of the culprit and those with the same fault; all nodes without a culprit."""
        by_rank = {member.rank: member.node for member in self.members}
        if self.culprit is None or self.culprit.rank is None:
            return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))
        also = [by_rank[rank] for rank in self.culprit.also if rank in by_rank]
        return tuple(dict.fromkeys((self.culprit.node, *also)))


def group_run_of(facts: Facts, group: str) -> GroupRun:
    """The recorded run of this group, and its culprit if it failed."""
    records = tuple(facts.records_of(group=group))
    keys = {record.request.key for record in records}
    events = tuple(event for event in facts.events() if event.request_key in keys)
    culprit = None
    if records and any(record.unavailable is not None for record in records):
        members = members_of([record.request for record in records])
        began_s = min(record.started_s for record in records)
        culprit = find_culprit(members, events, records, now_s=decision_time(events, records), began_s=began_s)
        if culprit is not None and culprit.rank is None:
            # The stacks were taken after the decision, as its evidence.
            culprit = find_outside(build_views(members, events, records, began_s=began_s), culprit) or culprit
    claims = tuple(dict.fromkeys(claim for record in records for claim in record.request.because))
    return GroupRun(records, events, culprit, claims)


def observed(culprit: Culprit) -> str:
    """The observed state of the culprit, in a few words."""
    phase = f"after phase {culprit.phase}" if culprit.phase else "before its first phase"
    return f"{culprit.kind} {phase}, during {culprit.doing}" if culprit.doing else f"{culprit.kind} {phase}"


def details(run: GroupRun, culprit: Culprit, fact: str) -> Iterator[Evidence]:
    """The stack of the culprit, else its last output; without a culprit, the stack of the first member."""
    wanted = culprit.rank if culprit.rank is not None else min(member.rank for member in run.members)
    view = build_views(run.members, run.events, run.records, began_s=0.0)[wanted]
    if view.stacks.strip():
        yield Evidence(fact, "stack: " + stack_of(view.stacks), node=view.node, at_s=culprit.since_s)
        return
    for record in run.records:
        problem = record.unavailable
        if record.request.key == culprit.key and problem is not None and problem.detail.strip():
            lines = [line.strip() for line in problem.detail.splitlines() if line.strip()]
            words = " | ".join(lines[-_LAST_LINES:])
            yield Evidence(fact, "last output: " + words, node=culprit.node, at_s=record.finished_s)


#: Exit codes of a process that was killed: by Python's count, and by that of shells and containers.
_KILLED = (-9, 137)


def remedy_for_dead(run: GroupRun, culprit: Culprit) -> str:
    """What to do about a process that ended by itself; only SIGKILL points to a lack of memory."""
    ended = next((record.unavailable for record in run.records if record.request.key == culprit.key), None)
    if ended is not None and ended.exit_code in _KILLED:
        return (
            f"Check {culprit.node}: SIGKILL usually comes from the out-of-memory killer (dmesg), or from a scheduler's "
            "memory limit."
        )
    if ended is not None and ended.exit_code is None and not ended.detail.strip():
        return f"Check {culprit.node}: the error that its process reported says why it ended."
    if ended is not None and not ended.detail.strip():
        return f"Check {culprit.node}: the process printed nothing before it ended; run it there by hand."
    return f"Check {culprit.node}: the process's last output, in the evidence, says why it ended."


def stack_of(text: str) -> str:
    """The innermost frames of the member's own thread, innermost first, from faulthandler's dump of all threads."""
    frames = frames_of(text)
    if not frames:
        return " | ".join(line.strip() for line in text.splitlines()[:_LAST_LINES] if line.strip())
    return " < ".join(frame.text for frame in frames[:_FRAMES])


FACT = probe_name(run_rank)


@dataclass(frozen=True)
class SmokeRun(GroupRun):
    """The recorded collective smoke run of one job."""

    seen: tuple[FactRow[RankReport], ...]

    @property
    def reports(self) -> tuple[tuple[str, RankReport], ...]:
        """Node and report of each rank that completed."""
        return tuple((s.node, s.fact.value) for s in self.seen if isinstance(s.fact, Observed))

    @property
    def complete(self) -> bool:
        """Whether every rank completed."""
        return bool(self.seen) and len(self.reports) == len(self.seen)


def run_of(job: Job, facts: Facts) -> SmokeRun:
    """The smoke run of `job`, and its culprit if it failed."""
    group = f"smoke {job.name}"
    seen = tuple(s for s in facts.each(run_rank) if s.asked.group == group)
    run = group_run_of(facts, group)
    return SmokeRun(run.records, run.events, run.culprit, run.claims, seen)


def missing_run(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """The verdict if there was no smoke run, else None."""
    reason = not_planned(job, fleet)
    if reason:
        return not_applicable("smoke run", reason)
    if not run.records:
        return unknown("smoke run", "it was not run", required=True)
    if obstacles(run):
        return unknown("smoke run", "blocked by SMK008: the backend cannot be used")
    return none_started("smoke run", "rank", run)


def none_started(subject: str, kind: str, run: GroupRun) -> Verdict | None:
    """The verdict if no process of a run could start, else None; `kind` is `rank` or `process`."""
    kinds = {r.unavailable.kind if r.unavailable is not None else "" for r in run.records}
    if not kinds <= {"context", "missing"}:
        return None
    reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
    nodes = dict.fromkeys(r.request.node for r in run.records)
    text = f"no {kind} could start on {fold(nodes)}: {fold(reasons, 3)}"
    return unknown(subject, text, nodes=nodes, required=True)


def obstacles(run: GroupRun) -> dict[str, str]:
    """The nodes on which a rank cannot use the requested backend, with its reason."""
    nodes = {record.request.key: record.request.node for record in run.records}
    return {
        nodes[event.request_key]: str(event.data.get("error", ""))
        for event in sorted(run.events, key=lambda event: (str(nodes[event.request_key]), event.at_s))
        if event.data.get("event") == rank_events.PROBLEM and event.data.get("problem") == rank_events.NO_DEVICE
    }


def incomplete(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """The verdict of result checks if some ranks have no result, else None."""
    early = missing_run(job, fleet, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.reports:
        return unknown("smoke run", "blocked by SMK001: no rank completed")
    return None


def complete_run(job: Job, fleet: Fleet, facts: Facts) -> Generator[Verdict, None, SmokeRun | None]:
    """The run of the job if ranks have results; otherwise yields why there are none, and returns None.

    run = yield from complete_run(job, fleet, facts)
    if run is None:
        return
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is None:
        return run
    yield early
    return None


def count(ranks: int) -> str:
    """`1 rank` or `4 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def numbered(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 3, 4`."""
    return ("rank " if len(ranks) == 1 else "ranks ") + fold([str(rank) for rank in ranks])
