"""Values of a job's claims, per launch scope."""

from __future__ import annotations

from preflight.model.job import WHOLE_JOB, Claim, Job, Known, Scope, Strength, as_int
from preflight.plugins.memo import memoize


@memoize
def scopes(job: Job) -> tuple[Scope, ...]:
    """The scopes to read the job in: one per launch, or the whole job when no launch was found."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def claims_in_force(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
    """The claims that determine `quantity` in `scope`: those that set it, else those that require it."""
    return job.setting(quantity, scope) or job.requiring(quantity, scope)


def known_int(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> int | None:
    """The value of `quantity` in `scope` if it is one known whole number, else None."""
    value = as_int(job.value(quantity, scope))
    return value.value if isinstance(value, Known) and isinstance(value.value, int) else None


def known_text(job: Job, quantity: str, scope: Scope = WHOLE_JOB) -> str | None:
    """The value of `quantity` in `scope` if it is one known text, else None."""
    value = job.value(quantity, scope)
    return value.value if isinstance(value, Known) and isinstance(value.value, str) else None


def names_value(claim: Claim) -> bool:
    """Whether the files state the value of a claim, so that it is not merely its launcher's default."""
    return claim.strength > Strength.DEFAULT or any(str(value) in claim.spelling for value in claim.alternatives)


@memoize
def largest(job: Job, quantity: str) -> tuple[int, tuple[Claim, ...]] | None:
    """The largest known value of `quantity` in any launch, with the claims that state it."""
    best: tuple[int, tuple[Claim, ...]] | None = None
    for scope in scopes(job):
        value = known_int(job, quantity, scope)
        if value is not None and (best is None or value > best[0]):
            best = (value, claims_in_force(job, quantity, scope))
    return best
