"""What rules about training scripts need: whether a script runs, and on how many nodes and ranks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import WHOLE_JOB, Claim, Job, Launch, Unresolved, Value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, passed, unknown
from preflight.plugins.questions import each_claim
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned, ranks_started


def runs_program(job: Job) -> bool:
    """Whether the job runs something: a launch, or a script with a main program.

    A library module is judged through the scripts that use it, not by itself.
    """
    return bool(job.launches or job.about("entry_point"))


def started_files(job: Job) -> frozenset[str]:
    """The scripts that launches start, without the modules that they import."""
    return frozenset(
        (*(launch.program for launch in job.launches), *(claim.span.path for claim in job.about("entry_point")))
    )


def stated(job: Job, quantity: str) -> Iterator[tuple[str, Claim]]:
    """Each claim about a quantity, once for each location, with its subject."""
    return ((subject, claim) for subject, _, _, claim in each_claim(job, quantity))


def launches_of(job: Job, claim: Claim) -> Iterator[Launch]:
    """The launches in which a claim holds."""
    for launch in job.launches:
        if claim.scope.covers(launch.scope):
            yield launch


def nodes_of(job: Job, launch: Launch) -> Value:
    """The number of nodes of a launch; a plain `python` line runs on one."""
    value, because = nodes_spanned(job, launch)
    if because or launch.wrappers:
        return value
    return Unresolved("the number of nodes is not given")


def definitely_on_one_node(job: Job, claim: Claim) -> bool:
    """Whether every launch of a script stays on one node."""
    found = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    return bool(found) and all(certainly_one(value) for value in found)


def on_several_nodes(job: Job, claim: Claim) -> int:
    """The number of nodes on which a launch certainly runs the script, if more than one; otherwise 0."""
    counts = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    several = [min(numbers(value)) for value in counts if certainly_several(value)]
    return max(several, default=0)


def definitely_one_rank(job: Job, claim: Claim) -> bool:
    """Whether every launch of a script starts one rank."""
    scopes = [launch.scope for launch in launches_of(job, claim)] or [WHOLE_JOB]
    return all(certainly_one(ranks_started(job, scope)[0]) for scope in scopes)


def not_on_several_ranks(job: Job, subject: str, claim: Claim, reason: str = "no launch runs this") -> Verdict | None:
    """The verdict on what harms several ranks only, where there are none: passed on one rank, and unknown for `reason`
    if nothing runs the script. None if several ranks may run it.
    """
    if definitely_one_rank(job, claim):
        return passed(subject)
    return None if runs_program(job) else unknown(subject, reason, at=claim)
