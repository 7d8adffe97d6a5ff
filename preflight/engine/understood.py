"""The basis of a verdict: the launches that were recognised, their sizes, what was read and what was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.model.findings import Outcome, Status
from preflight.model.job import UNSEEN, Job, Known, Launch

#: The stage of rules.
_LINT = "lint"
#: Unread files that are listed; all of them are counted.
_MAX_UNREAD = 100
#: The quantities that a world size is computed from if none states it.
_SIZES = ("nodes", "processes_per_node", "tasks", "tasks_per_node")


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that the job refers to, or that was selected, and that was not read completely.

    Args:
        path: relative to the root.
        reason: the reason, in a sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Understood:
    """How much of the jobs was understood. Without a launch nothing is known about what the ranks will do.

    Args:
        launches: command lines that start ranks.
        worlds_known: launches whose number of ranks the files state.
        worlds_symbolic: launches whose number of ranks depends on a named value, or is one of a few numbers.
        worlds_unknown: launches without any claim about the number of ranks.
        jobs_without_launch: jobs with no file that starts ranks.
        files_read: the number of files read.
        files_unread: those not read completely; at most 100 of them.
        unread: their total number.
        rules_judged: rules that passed or failed at least one subject.
        rules_undecided: ids of rules that could not judge some subject, because a value is unknown.
    """

    launches: int = 0
    worlds_known: int = 0
    worlds_symbolic: int = 0
    worlds_unknown: int = 0
    jobs_without_launch: int = 0
    files_read: int = 0
    files_unread: tuple[Unread, ...] = ()
    unread: int = 0
    rules_judged: int = 0
    rules_undecided: tuple[str, ...] = ()


def understanding(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Understood:
    """Determine what was understood of these jobs, and which rules could judge them."""
    worlds = [_world(job, launch) for job in jobs for launch in job.launches]
    unread = tuple(dict.fromkeys(_unread(jobs)))
    judged = {o.id for o in outcomes if o.stage == _LINT and o.status in (Status.PASS, Status.FAIL)}
    undecided = {o.id for o in outcomes if o.stage == _LINT and o.status is Status.UNKNOWN}
    return Understood(
        launches=len(worlds),
        worlds_known=worlds.count("known"),
        worlds_symbolic=worlds.count("symbolic"),
        worlds_unknown=worlds.count("unknown"),
        jobs_without_launch=sum(bool(job.files) and not job.launches for job in jobs),
        files_read=len({file.path for job in jobs for file in job.files}),
        files_unread=unread[:_MAX_UNREAD],
        unread=len(unread),
        rules_judged=len(judged),
        rules_undecided=tuple(sorted(undecided)),
    )


def _world(job: Job, launch: Launch) -> str:
    for quantity in ("world_size", "ps_workers"):
        claims = job.value_claims(quantity, launch.scope)
        if claims:
            return "known" if all(isinstance(claim.value, Known) for claim in claims) else "symbolic"
    return "symbolic" if any(job.value_claims(quantity, launch.scope) for quantity in _SIZES) else "unknown"


def _unread(jobs: Sequence[Job]) -> Iterator[Unread]:
    for job in jobs:
        for note in job.notes:
            if note.required or note.kind in UNSEEN:
                yield Unread(note.span.path, note.message.partition("\n")[0])
