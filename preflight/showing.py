"""Showing: the exhibits that packs of checks make of a recording, each function isolated from the others.

What goes wrong here loses an exhibit and never the report: it is named, as any part of a pack that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from preflight.catalog import CHECKS, Broken, Exhibitor
from preflight.complaint import said
from preflight.exhibit import Bars, Exhibit, Layout, Matrix, Table, Timeline
from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.validators import validator
from preflight.once import forget
from preflight.recording import Facts, Fleet

_KINDS = (Table, Matrix, Timeline, Bars, Layout)


@dataclass(frozen=True, slots=True)
class Shown:
    """The exhibits in the order of the packs, and what could not be shown."""

    exhibits: tuple[Exhibit, ...] = ()
    broken: tuple[Broken, ...] = ()


def shown(exhibitors: Iterable[Exhibitor], jobs: Iterable[Job], fleet: Fleet, facts: Facts) -> Shown:
    """What these functions make of every job. What is the same for several jobs is shown once.

    An id stands for one exhibit: where a further job has another one, that has a number behind its id and the job's
    name in its title. An id that another function has taken is refused.
    """
    ordered = sorted(jobs, key=lambda job: job.name)
    found: dict[str, Exhibit] = {}
    broken: list[Broken] = []
    for exhibitor in exhibitors:
        try:
            made = [(job, one) for job in ordered for one in _checked(exhibitor.make(job, fleet, facts))]
            taken = sorted({one.id for _, one in made} & set(found))
            if taken:
                raise ValueError(f"the id {taken[0]!r} is taken by another function")
            found.update(_of_several_jobs(made))
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            broken.append(Broken(CHECKS, exhibitor.plugin, exhibitor.where, f"no exhibit could be made: {why}"))
    for job in ordered:
        forget(job)
    return Shown(tuple(found.values()), tuple(broken))


def _checked(made: Iterable[Exhibit]) -> list[Exhibit]:
    """The exhibits as the report's readers will find them; a pack may hand over anything, and a report must hold."""
    whole: list[Exhibit] = []
    for one in made:
        kind = next((kind for kind in _KINDS if isinstance(one, kind)), None)
        if kind is None:
            raise TypeError(f"{type(one).__name__} is no exhibit; there are {', '.join(k.__name__ for k in _KINDS)}")
        try:
            # To its last cell, with tuples for the lists that some hand over.
            whole.append(validator(kind, again=True).validate_python(one))
        except ValueError as error:
            raise ValueError(f"{one.id!r} is not of the shape of exhibits: {said(error)}") from None
    return whole


def _of_several_jobs(made: Iterable[tuple[Job, Exhibit]]) -> dict[str, Exhibit]:
    variants: dict[str, dict[Exhibit, Job]] = {}
    for job, one in made:
        variants.setdefault(one.id, {}).setdefault(one, job)
    found: dict[str, Exhibit] = {}
    for id, several in variants.items():
        for number, (one, job) in enumerate(several.items(), 1):
            title = one.title if len(several) == 1 else f"{one.title} ({job.name})"
            named = replace(one, id=id if number == 1 else f"{id}.{number}", title=title)
            found[named.id] = named
    return found
