"""The recorded smoke run of a job, prepared for the checks that judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.agent import rank_events
from preflight.model.job import Job
from preflight.model.recording import FactRow, Facts, Fleet, Observed
from preflight.model.requests import probe_name
from preflight.plugins.authoring import Verdict, not_applicable, unknown
from preflight_checks.requirements.hosts import fold
from preflight_checks.smoke.group_run import GroupRun, group_run_of
from preflight_checks.smoke.plan import not_planned
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.collective.report import RankReport

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
    kinds = {r.unavailable.kind if r.unavailable is not None else "" for r in run.records}
    if kinds <= {"context", "missing"}:
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        nodes = dict.fromkeys(r.request.node for r in run.records)
        text = f"no rank could start on {fold(nodes)}: {fold(reasons, 3)}"
        return unknown("smoke run", text, nodes=nodes, required=True)
    return None


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


def count(ranks: int) -> str:
    """`1 rank` or `4 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def numbered(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 3, 4`."""
    return ("rank " if len(ranks) == 1 else "ranks ") + fold([str(rank) for rank in ranks])
