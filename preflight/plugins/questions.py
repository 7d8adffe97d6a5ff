"""Questions that many rules ask: about each launch for which the files state some quantities, or about each claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from preflight.model.job import WHOLE_JOB, Claim, Job, Launch, Scope
from preflight.plugins.authoring import Question

L = TypeVar("L", bound="Launch | None")


@dataclass(frozen=True, slots=True)
class Stated(Generic[L]):
    """The effective claims about several quantities for a launch or the job; iterates in the requested order."""

    job: Job
    scope: Scope
    launch: L
    settings: tuple[tuple[Claim, ...], ...] = ()

    def __iter__(self) -> Iterator[tuple[Claim, ...]]:
        return iter(self.settings)


#: A quantity, for the effective claims about it, or a function that picks other claims.
Asked: TypeAlias = str | Callable[[Job, Scope], Sequence[Claim]]
#: A question about a launch.
LaunchQuestion: TypeAlias = Question[Stated[Launch]]
#: A question about a launch, or about the job as a whole.
SubjectQuestion: TypeAlias = "Question[Stated[Launch | None]]"
AskLaunches: TypeAlias = Callable[[Job], Iterator[LaunchQuestion]]
AskSubjects: TypeAlias = Callable[[Job], Iterator[SubjectQuestion]]


def subjects(job: Job) -> Iterator[tuple[str, Scope, Launch | None]]:
    """Yield id, scope and launch of each launch; without launches, name and scope of the job, and None."""
    if not job.launches:
        yield job.name, WHOLE_JOB, None
    for launch in job.launches:
        yield launch.id, launch.scope, launch


def launches_with(
    *quantities: Asked, also: Sequence[Asked] = (), where: Callable[[Stated[Launch]], bool] = lambda stated: True
) -> AskLaunches:
    """Return a function that yields a question about each launch for which all of the quantities are stated.

    Args:
        quantities: the quantities that must be stated. The verdict depends on the effective claims about them.
        also: further quantities on which the verdict depends, and which need not be stated.
        where: a condition on the launches.
    """

    def each(job: Job) -> Iterator[LaunchQuestion]:
        for launch in job.launches:
            stated = Stated(job, launch.scope, launch, _requested_claims(job, launch.scope, (*quantities, *also)))
            if all(stated.settings[: len(quantities)]) and where(stated):
                yield Question(launch.id, _all_claims(stated), launch, of=stated)

    return each


def subjects_with(
    *quantities: Asked, also: Sequence[Asked] = (), where: Callable[[Stated[Launch | None]], bool] = lambda stated: True
) -> AskSubjects:
    """Return a function like that of `launches_with`, which asks about the job as a whole if it has no launch."""

    def each(job: Job) -> Iterator[SubjectQuestion]:
        for subject, scope, launch in subjects(job):
            stated = Stated(job, scope, launch, _requested_claims(job, scope, (*quantities, *also)))
            if all(stated.settings[: len(quantities)]) and where(stated):
                yield Question(subject, _all_claims(stated), launch, of=stated)

    return each


def claims_about(
    quantity: str,
    *,
    beside: Sequence[str] = (),
    also: Sequence[Asked] = (),
    where: Callable[[Claim], bool] = lambda claim: True,
) -> AskSubjects:
    """Return a function that yields a question about each claim about a quantity, once for each location.

    The subject is the first launch that the claim applies to.

    Args:
        beside: further quantities on which the verdict depends, and which the same file must state.
        also: further quantities on which the verdict depends, and which need not be stated.
        where: a condition on the claims.
    """

    def each(job: Job) -> Iterator[SubjectQuestion]:
        for subject, scope, launch, claim in each_claim(job, quantity, where=where):
            neighbour_claims = [
                tuple(c for c in job.about(name, scope) if c.span.path == claim.span.path) for name in beside
            ]
            if all(neighbour_claims):
                stated = Stated(job, scope, launch, ((claim,), *neighbour_claims, *_requested_claims(job, scope, also)))
                yield Question(subject, _all_claims(stated), launch, of=stated)

    return each


def each_claim(
    job: Job, quantity: str, *, where: Callable[[Claim], bool] = lambda claim: True
) -> Iterator[tuple[str, Scope, Launch | None, Claim]]:
    """Yield each claim about a quantity, once for each location, with the first launch that it applies to."""
    known_locations: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        for claim in job.about(quantity, scope):
            location = (claim.span.path, claim.span.line, claim.span.column)
            if location not in known_locations and where(claim):
                known_locations.add(location)
                yield subject, scope, launch, claim


def required(quantity: str) -> Asked:
    """Return a function that returns the claims which require a quantity to equal a value."""
    return lambda job, scope: job.requirement_claims(quantity, scope)


def stated_by(source: str, quantity: str) -> Asked:
    """Return a function that returns the effective claims about a quantity from one reader: `slurm`, `deepspeed`."""
    return lambda job, scope: [claim for claim in job.setting(quantity, scope) if claim.source == source]


def _requested_claims(job: Job, scope: Scope, quantities: Sequence[Asked]) -> tuple[tuple[Claim, ...], ...]:
    return tuple(
        job.setting(request, scope) if isinstance(request, str) else tuple(request(job, scope))
        for request in quantities
    )


def _all_claims(stated: Stated[L]) -> tuple[Claim, ...]:
    return tuple(claim for claims in stated for claim in claims)
