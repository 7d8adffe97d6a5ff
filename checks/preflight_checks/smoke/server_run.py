"""The recorded smoke run of a parameter-server job, prepared for the checks that judge it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from preflight.analysis.rank_state import Member, replaced
from preflight.model.job import Job
from preflight.model.recording import FactRow, Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, not_applicable, unknown
from preflight_checks.requirements.hosts import fold
from preflight_checks.smoke.group_run import GroupRun, group_run_of
from preflight_checks.smoke.server_plan import group_of, no_server_run_reason
from preflight_checks.smoke.server_processes import processes
from reference_trainer.ps.run_report import ServerReport, WorkerReport
from reference_trainer.ps.server import server as run_server
from reference_trainer.ps.worker import worker as run_worker

T = TypeVar("T")
PROBES = (run_server, run_worker)
COST = "a short training run: every server and worker imports torch and takes a few steps"
#: The name of the evidence.
FACT = "parameter-server run"
#: Why bytes and pushes of such servers are not judged.
UNCOUNTED = "Paddle's own servers merge pushes without counting them; SMK027 judges the result"


@dataclass(frozen=True)
class ServerRun(GroupRun):
    """The recorded parameter-server run of one job: the reports of the processes that completed, with their nodes."""

    servers: tuple[tuple[str, ServerReport], ...]
    workers: tuple[tuple[str, WorkerReport], ...]
    #: Backup workers that were not needed.
    unused_backups: tuple[tuple[str, WorkerReport], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all processes completed, except workers that a backup worker replaced."""
        ended = len(self.servers) + len(self.workers) + len(self.unused_backups)
        remaining = [record for record in self.records if record.unavailable is not None]
        missing = {member.key for member in self.members if member.rank in self.replaced}
        return (
            bool(self.records)
            and ended + len(remaining) == len(self.records)
            and all(r.request.key in missing for r in remaining)
        )

    @property
    def replaced(self) -> dict[int, Member | None]:
        """The indexes of replaced workers, with their backup workers."""
        return replaced(self.members, self.events)

    def member(self, number: int) -> Member | None:
        """The member with this index."""
        return next((member for member in self.members if member.rank == number), None)


def server_run_of(job: Job, facts: Facts) -> ServerRun:
    """The run of `job`, and its culprit if it failed."""
    group = group_of(job)
    run = group_run_of(facts, group)
    servers, workers = _reports(facts.each(run_server), group), _reports(facts.each(run_worker), group)
    placed = tuple((node, report) for node, report in workers if report.index >= 0)
    unneeded = tuple((node, report) for node, report in workers if report.index < 0)
    return ServerRun(run.records, run.events, run.culprit, run.claims, servers, placed, unneeded)


def _reports(seen: Iterable[FactRow[T]], group: str) -> tuple[tuple[str, T], ...]:
    return tuple((s.node, s.fact.value) for s in seen if s.request.group == group and isinstance(s.fact, Observed))


def missing_server_run(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """The verdict if there was no such run, else None."""
    reason = no_server_run_reason(job, fleet)
    if reason:
        return not_applicable("parameter-server run", reason)
    if not run.records:
        found = processes(job, fleet, facts)
        if isinstance(found, str):
            return unknown("parameter-server run", f"it was not run: {found}")
        return unknown("parameter-server run", "it was not run", required=True)
    kinds = {r.unavailable.kind if r.unavailable is not None else "" for r in run.records}
    if kinds <= {"context", "missing"}:
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        nodes = dict.fromkeys(r.request.node for r in run.records)
        text = f"no process could start on {fold(nodes)}: {fold(reasons, 3)}"
        return unknown("parameter-server run", text, nodes=nodes, required=True)
    return None


def blocked(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """The verdict of result checks if some processes have no result, else None."""
    early = missing_server_run(job, fleet, facts, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.complete:
        return unknown("parameter-server run", f"blocked by {blocker(run)}: not all processes completed")
    return None


def blocker(run: ServerRun) -> str:
    """The check that reports why the run failed."""
    culprit = run.culprit
    if culprit is not None and (culprit.kind == "mismatch" or (culprit.kind == "missing" and culprit.rank is None)):
        return "SMK023"
    return "SMK022" if culprit is not None and culprit.kind in ("endpoint", "path") else "SMK021"


def uncounted(run: ServerRun) -> bool:
    """Whether the servers were a framework's own, which do not report single pushes."""
    return all(not report.exact_steps for _, report in run.workers)
