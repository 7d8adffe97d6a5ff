"""The recorded smoke run of a job, put together for the checks that judge it."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.job import Job
from preflight.judgement import Verdict, not_applicable, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet, Observed, Seen
from preflight.request import probe_name
from preflight_checks.demands import fold
from preflight_checks.smoke.gang_run import GangRun, gang_run
from preflight_checks.smoke.smoke_plan import not_planned
from reference_trainer.collective import RankReport
from reference_trainer.collective import rank as run_rank

FACT = probe_name(run_rank)


@dataclass(frozen=True)
class SmokeRun(GangRun):
    """The recorded collective smoke run of one job."""

    seen: tuple[Seen[RankReport], ...]

    @property
    def reports(self) -> tuple[tuple[str, RankReport], ...]:
        """Node and report of each rank that came to the end."""
        return tuple((s.node, s.fact.value) for s in self.seen if isinstance(s.fact, Observed))

    @property
    def complete(self) -> bool:
        """Every rank came to the end."""
        return bool(self.seen) and len(self.reports) == len(self.seen)


def run_of(job: Job, facts: Facts) -> SmokeRun:
    """The smoke run of `job`, and who is to blame when it did not end well."""
    group = f"smoke {job.name}"
    seen = tuple(s for s in facts.each(run_rank) if s.asked.group == group)
    run = gang_run(facts, group)
    return SmokeRun(run.records, run.events, run.blamed, run.claims, seen)


def without_run(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """What to say when there was no smoke run at all."""
    reason = not_planned(job, fleet)
    if reason:
        return not_applicable("smoke run", reason)
    if not run.records:
        return unknown("smoke run", "it was not run", required=True)
    kinds = {r.unavailable.kind if r.unavailable is not None else "" for r in run.records}
    if kinds <= {"context", "missing"}:
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        nodes = dict.fromkeys(r.request.node for r in run.records)
        return unknown("smoke run", f"no rank could start on {fold(nodes)}: {fold(reasons, 3)}", required=True)
    return None


def incomplete(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """For the checks that judge results: what to say when not all ranks have one."""
    early = without_run(job, fleet, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.reports:
        return unknown("smoke run", "blocked by SMK001: no rank came to the end")
    return None


def count(ranks: int) -> str:
    """`1 rank` or `4 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def numbered(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 3, 4`."""
    return ("rank " if len(ranks) == 1 else "ranks ") + fold([str(rank) for rank in ranks])
