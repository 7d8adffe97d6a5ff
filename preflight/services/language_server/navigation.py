"""From a place in a job's file to the places that override, contradict or supply what it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lsprotocol import types

from preflight.model.findings import Location
from preflight.model.job import Claim, Job
from preflight.services.language_server.diagnostics import Places
from preflight.services.language_server.folder import Folder, JudgedJob
from preflight.services.language_server.hover import claims_at

#: Places that one answer lists.
MAX_PLACES = 200


def definitions(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """The places that decide what a place says: the other side of a contradiction, the claim that overrides it, and
    where its value is assigned.

    Args:
        folder: its jobs are searched.
        path: the file, relative to the folder.
        at: line and column, counted from 1.
    """
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        found += _other_places(judged, path, at)
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += _sources(judged.job, claim)
    return _located([one for one in found if not _contains(one, path, at)], places)


def references(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """Every place of the job that states the same quantity or setting, and the places of findings about it."""
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += [Location.at(one.span) for one in judged.job.about(claim.quantity) if _is_written(one)]
        found += _other_places(judged, path, at)
    return _located(found, places)


def _other_places(judged: JudgedJob, path: str, at: tuple[int, int]) -> Iterator[Location]:
    for finding in judged.report.findings if judged.report is not None else ():
        if any(_contains(location, path, at) for location in finding.locations):
            yield from finding.locations


def _sources(job: Job, claim: Claim) -> Iterator[Location]:
    for launch in job.launches:
        if claim.scope.launch not in ("", launch.id):
            continue
        for winner in job.value_claims(claim.quantity, launch.scope):
            for written in (winner, *winner.because) if winner.source == "derived" else (winner,):
                if _is_written(written) and written.span != claim.span:
                    yield Location.at(written.span)
    if claim.origin is not None:
        yield Location.at(claim.origin)


def _is_written(claim: Claim) -> bool:
    return claim.source != "derived"


def _contains(location: Location, path: str, at: tuple[int, int]) -> bool:
    start, end = (location.line, location.column), (location.end_line, location.end_column)
    return location.path == path and start <= at <= end


def _located(found: Sequence[Location], places: Places) -> list[types.Location]:
    located = {(one.path, one.line, one.column, one.end_line, one.end_column): one for one in found if one.path}
    return [places.location(one) for one in list(located.values())[:MAX_PLACES]]
