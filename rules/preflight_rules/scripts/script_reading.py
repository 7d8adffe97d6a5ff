"""What rules about training scripts ask of a job: whether a script is run at all, and on how many nodes."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import WHOLE_JOB, Claim, Job, Launch, Unresolved, Value
from preflight_rules.reading import certainly_one, certainly_several, nodes_spanned, numbers, ranks_started, subjects


def is_run(job: Job) -> bool:
    """Whether something of the job is started: a launch, or a script that works when it is run.

    A library that only defines things for others is judged where a script uses it, not by itself.
    """
    return bool(job.launches or job.about("entry_point"))


def started_files(job: Job) -> frozenset[str]:
    """The scripts that are run, as opposed to the modules they import."""
    return frozenset(
        (*(launch.program for launch in job.launches), *(claim.span.path for claim in job.about("entry_point")))
    )


def stated(job: Job, quantity: str) -> Iterator[tuple[str, Claim]]:
    """Each place that states a quantity, once, with the subject it is judged under."""
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for claim in job.about(quantity, scope):
            key = (claim.span.path, claim.span.line, claim.span.column)
            if key not in seen:
                seen.add(key)
                yield subject, claim


def launches_of(job: Job, claim: Claim) -> Iterator[Launch]:
    """The launches in which a claim holds."""
    for launch in job.launches:
        if claim.scope.covers(launch.scope):
            yield launch


def nodes_of(job: Job, launch: Launch) -> Value:
    """Over how many nodes a launch runs; a plain `python` line that nothing spreads stays on one."""
    value, because = nodes_spanned(job, launch)
    if because or launch.wrappers:
        return value
    return Unresolved("nothing says over how many nodes it runs")


def surely_on_one_node(job: Job, claim: Claim) -> bool:
    """Whether every launch of a script stays on one node."""
    found = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    return bool(found) and all(certainly_one(value) for value in found)


def on_several_nodes(job: Job, claim: Claim) -> int:
    """On how many nodes some launch certainly runs the script, where that is more than one; else 0."""
    counts = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    several = [min(numbers(value)) for value in counts if certainly_several(value)]
    return max(several, default=0)


def surely_one_rank(job: Job, claim: Claim) -> bool:
    """Whether every launch of a script starts one rank."""
    scopes = [launch.scope for launch in launches_of(job, claim)] or [WHOLE_JOB]
    return all(certainly_one(ranks_started(job, scope)[0]) for scope in scopes)
