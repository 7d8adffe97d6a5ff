"""Questions that many rules ask: about each launch with certain statements in the files, or about each such claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from preflight.model.job import WHOLE_JOB, Claim, Job, Launch, Scope
from preflight.plugins.authoring import Question

L = TypeVar("L", bound="Launch | None")


@dataclass(frozen=True, slots=True)
class Stated(Generic[L]):
    """The statements of the files for one launch, or for the job as a whole: the effective claims about several
    quantities.

    Iterating over it yields the claims about each quantity, in the order in which the quantities were requested.
    """

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
    """Yield each launch with its id and scope; the job as a whole when it has no launch."""
    if not job.launches:
        yield job.name, WHOLE_JOB, None
    for launch in job.launches:
        yield launch.id, launch.scope, launch


def launches_with(
    *quantities: Asked, also: Sequence[Asked] = (), where: Callable[[Stated[Launch]], bool] = lambda stated: True
) -> AskLaunches:
    """Ask about each launch with statements about all of the quantities.

    The answer depends on the effective claims about them, and on those about the quantities in `also`, which need not
    be stated. A launch for which `where` is false is left out.
    """

    def each(job: Job) -> Iterator[LaunchQuestion]:
        for launch in job.launches:
            stated = Stated(job, launch.scope, launch, _settings(job, launch.scope, (*quantities, *also)))
            if all(stated.settings[: len(quantities)]) and where(stated):
                yield Question(launch.id, _claims(stated), launch, of=stated)

    return each


def subjects_with(
    *quantities: Asked, also: Sequence[Asked] = (), where: Callable[[Stated[Launch | None]], bool] = lambda stated: True
) -> AskSubjects:
    """Ask about each launch as `launches_with` does; about the job as a whole when it has no launch."""

    def each(job: Job) -> Iterator[SubjectQuestion]:
        for subject, scope, launch in subjects(job):
            stated = Stated(job, scope, launch, _settings(job, scope, (*quantities, *also)))
            if all(stated.settings[: len(quantities)]) and where(stated):
                yield Question(subject, _claims(stated), launch, of=stated)

    return each


def claims_about(
    quantity: str,
    *,
    beside: Sequence[str] = (),
    also: Sequence[Asked] = (),
    where: Callable[[Claim], bool] = lambda claim: True,
) -> AskSubjects:
    """Ask about each claim about a quantity, once for each location, with the first launch that it applies to.

    The answer also depends on the claims about the quantities `beside` it, which must be stated in the same file, and
    on those in `also`, which need not be stated.
    """

    def each(job: Job) -> Iterator[SubjectQuestion]:
        for subject, scope, launch, claim in each_claim(job, quantity, where=where):
            near = [tuple(c for c in job.about(name, scope) if c.span.path == claim.span.path) for name in beside]
            if all(near):
                stated = Stated(job, scope, launch, ((claim,), *near, *_settings(job, scope, also)))
                yield Question(subject, _claims(stated), launch, of=stated)

    return each


def each_claim(
    job: Job, quantity: str, *, where: Callable[[Claim], bool] = lambda claim: True
) -> Iterator[tuple[str, Scope, Launch | None, Claim]]:
    """Yield each claim about a quantity, once for each location, with the first launch that it applies to."""
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        for claim in job.about(quantity, scope):
            place = (claim.span.path, claim.span.line, claim.span.column)
            if place not in seen and where(claim):
                seen.add(place)
                yield subject, scope, launch, claim


def required(quantity: str) -> Asked:
    """Return the claims that need a quantity to equal a value."""
    return lambda job, scope: job.requirement_claims(quantity, scope)


def stated_by(source: str, quantity: str) -> Asked:
    """Return the effective claims about a quantity from one reader: `slurm`, `deepspeed`."""
    return lambda job, scope: [claim for claim in job.setting(quantity, scope) if claim.source == source]


def _settings(job: Job, scope: Scope, quantities: Sequence[Asked]) -> tuple[tuple[Claim, ...], ...]:
    return tuple(
        job.setting(asked, scope) if isinstance(asked, str) else tuple(asked(job, scope)) for asked in quantities
    )


def _claims(stated: Stated[L]) -> tuple[Claim, ...]:
    return tuple(claim for claims in stated for claim in claims)
