"""The recorded smoke run of a parameter-server job, put together for the checks that judge it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from preflight.job import Job
from preflight.judgement import Verdict, not_applicable, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.ranks import Member, replaced
from preflight.recording import Facts, Fleet, Observed, Seen
from preflight_checks.demands import fold
from preflight_checks.smoke.gang_run import GangRun, gang_run
from preflight_checks.smoke.server_plan import group_of, no_servers
from preflight_checks.smoke.server_processes import processes
from reference_trainer.ps.report import ServerReport, WorkerReport
from reference_trainer.ps.server import server as run_server
from reference_trainer.ps.worker import worker as run_worker

T = TypeVar("T")
PROBES = (run_server, run_worker)
COST = "a short training run: every server and worker imports torch and takes a few steps"
#: What the evidence is called.
FACT = "parameter-server run"
#: Why bytes and pushes of such servers are not judged.
UNCOUNTED = "Paddle's own servers merge pushes and count none of them; SMK027 judges what was learnt"


@dataclass(frozen=True)
class ServerRun(GangRun):
    """The recorded parameter-server run of one job: the reports of those who came to the end, with their nodes."""

    servers: tuple[tuple[str, ServerReport], ...]
    workers: tuple[tuple[str, WorkerReport], ...]
    #: Spare workers that nobody needed.
    unneeded: tuple[tuple[str, WorkerReport], ...] = ()

    @property
    def complete(self) -> bool:
        """Everybody came to the end, but for those whose place a spare worker took."""
        ended = len(self.servers) + len(self.workers) + len(self.unneeded)
        left = [record for record in self.records if record.unavailable is not None]
        gone = {member.key for member in self.members if member.rank in self.replaced}
        return (
            bool(self.records) and ended + len(left) == len(self.records) and all(r.request.key in gone for r in left)
        )

    @property
    def replaced(self) -> dict[int, Member | None]:
        """The numbers of workers whose place a spare one took, and who that was."""
        return replaced(self.members, self.events)

    def member(self, number: int) -> Member | None:
        """Who has this number."""
        return next((member for member in self.members if member.rank == number), None)


def server_run_of(job: Job, facts: Facts) -> ServerRun:
    """The run of `job`, and who is to blame when it did not end well."""
    group = group_of(job)
    run = gang_run(facts, group)
    servers, workers = _reports(facts.each(run_server), group), _reports(facts.each(run_worker), group)
    placed = tuple((node, report) for node, report in workers if report.index >= 0)
    unneeded = tuple((node, report) for node, report in workers if report.index < 0)
    return ServerRun(run.records, run.events, run.blamed, run.claims, servers, placed, unneeded)


def _reports(seen: Iterable[Seen[T]], group: str) -> tuple[tuple[str, T], ...]:
    return tuple((s.node, s.fact.value) for s in seen if s.request.group == group and isinstance(s.fact, Observed))


def without_servers(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """What to say when there was no such run at all."""
    reason = no_servers(job, fleet)
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
        return unknown(
            "parameter-server run", f"nobody could start on {fold(nodes)}: {fold(reasons, 3)}", required=True
        )
    return None


def blocked(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Verdict | None:
    """For the checks that judge results: what to say when not all have one."""
    early = without_servers(job, fleet, facts, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.complete:
        return unknown("parameter-server run", f"blocked by {blocker(run)}: not everybody came to the end")
    return None


def blocker(run: ServerRun) -> str:
    """Which check says why the run did not end well."""
    blamed = run.blamed
    if blamed is not None and (blamed.kind == "mismatch" or (blamed.kind == "missing" and blamed.rank is None)):
        return "SMK023"
    return "SMK022" if blamed is not None and blamed.kind in ("endpoint", "path") else "SMK021"


def uncounted(run: ServerRun) -> bool:
    """Whether the servers were a framework's own, which tell nothing of single pushes."""
    return all(not report.exact_steps for _, report in run.workers)
