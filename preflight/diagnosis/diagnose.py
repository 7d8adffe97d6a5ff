"""From logs to a diagnosis: read them all, ask who was first and why, and say what would have told before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from preflight.diagnosis.attribution import Group, Names, blame, party_order, speakers
from preflight.diagnosis.blocks import NEEDLES
from preflight.diagnosis.files import Found, Reading, chunks, logs_in
from preflight.diagnosis.lines import Finder
from preflight.diagnosis.model import (
    Answer,
    Cause,
    Diagnosis,
    Effect,
    Event,
    Line,
    Log,
    Party,
    Pointer,
)
from preflight.diagnosis.parties import numbered, party_of_file
from preflight.diagnosis.scan import Scanned, Scanner
from preflight.diagnosis.suspects import suspect
from preflight.diagnosis.table import Table, needles_of
from preflight.progress import Progress, Step, ignore

_EXIT = {Answer.NOTHING_WRONG: 0, Answer.CAUSE: 1, Answer.UNKNOWN: 3, Answer.NOTHING_READ: 4}
_MOST_LAST_WORDS = 8
_MOST_CAUSES = 5


def diagnose(
    paths: Sequence[str | Path],
    table: Table,
    pointers: Callable[[], Mapping[str, Pointer]],
    *,
    version: str,
    given: IO[bytes] | None = None,
    progress: Progress = ignore,
) -> Diagnosis:
    """What the logs in `paths` say of a run that failed; `given` is what stands for `-`.

    Args:
        pointers: gives every rule and check there is, by id; asked only where something is to be pointed at. What a
            symptom names and is not among them is left out.

    Raises:
        UsageError: a path does not exist.
    """
    found = logs_in(paths)
    parties = numbered([log.name for log in found])
    finder = Finder((*needles_of(table.rows), *NEEDLES))
    scans: list[Scanned] = []
    logs: list[Log] = []
    for number, log in enumerate(found):
        progress(Step("logs", number, len(found)))
        scanned, said = _read(log, table, finder, parties.get(log.name) or party_of_file(log.name), given)
        scans.append(scanned)
        logs.append(said)
    return _answer(scans, logs, pointers, version)


def _read(log: Found, table: Table, finder: Finder, party: Party, given: IO[bytes] | None) -> tuple[Scanned, Log]:
    reading = Reading()
    scanned = Scanner(table, finder, log.name, party).read(chunks(log, given, reading))
    said = Log(
        path=log.name,
        party=party,
        size_bytes=reading.size_bytes,
        lines=scanned.lines,
        first_time=scanned.first.text if scanned.first else "",
        last_time=scanned.last.text if scanned.last else "",
        last_line=scanned.last_line.text if scanned.last_line else "",
        problem=reading.problem,
    )
    return scanned, said


def _answer(
    scans: Sequence[Scanned], logs: Sequence[Log], pointers: Callable[[], Mapping[str, Pointer]], version: str
) -> Diagnosis:
    names = Names(scans)
    events = [replace(event, party=names.known(event.party)) for scanned in scans for event in scanned.events]
    blamed = blame(events)
    last_words = speakers(scans, names)
    known = pointers() if blamed.causes else {}
    causes = tuple(_cause(group, known) for group in blamed.causes)
    counts: Counter[str] = Counter()
    for scanned in scans:
        for (symptom, _), number in scanned.counts.items():
            counts[symptom] += number
    effects = _effects(blamed.consequences, counts)
    answer = Answer.CAUSE if causes else Answer.UNKNOWN if effects else Answer.NOTHING_WRONG
    if not any(log.size_bytes for log in logs):
        answer = Answer.NOTHING_READ
    unknown = answer is Answer.UNKNOWN
    return Diagnosis(
        version=version,
        answer=answer,
        exit_code=_EXIT[answer],
        cause=causes[0] if causes else None,
        others=causes[1:_MOST_CAUSES],
        suspect=suspect(blamed.consequences, last_words) if unknown else None,
        effects=effects,
        last_words=_last_errors(scans) if not causes else (),
        logs=tuple(logs),
        notes=_notes(scans, logs, blamed.causes, answer),
    )


def _cause(group: Group, pointers: Mapping[str, Pointer]) -> Cause:
    symptom, event = group.chosen.symptom, group.chosen
    parties = group.parties
    if event.party and event.party not in parties:
        parties = (event.party, *parties)
    return Cause(
        symptom=symptom.id,
        certainty=symptom.certainty,
        meaning=symptom.meaning,
        remedy=symptom.remedy,
        parties=parties,
        line=event.line,
        frame=event.frame,
        told_by=tuple(pointers[name] for name in symptom.told_by if name in pointers),
        beyond=symptom.beyond,
        sources=symptom.sources,
    )


def _effects(consequences: Iterable[Event], counts: Mapping[str, int]) -> tuple[Effect, ...]:
    """Consequences, one for each symptom, in the order in which they stand in the logs."""
    groups: dict[str, list[Event]] = {}
    for event in consequences:
        groups.setdefault(event.symptom.id, []).append(event)
    return tuple(
        Effect(
            name,
            events[0].symptom.meaning,
            tuple(sorted({event.party for event in events if event.party}, key=party_order)),
            events[0].line,
            counts[name],
        )
        for name, events in groups.items()
    )


def _last_errors(scans: Sequence[Scanned]) -> tuple[Line, ...]:
    """The last lines that look like errors: of each log a few, no text twice."""
    found: dict[str, Line] = {}
    for scanned in scans:
        for line in scanned.errors:
            found.setdefault(line.text, line)
    return tuple(found.values())[-_MOST_LAST_WORDS:]


def _notes(scans: Sequence[Scanned], logs: Sequence[Log], causes: Sequence[Group], answer: Answer) -> tuple[str, ...]:
    notes = [f"{log.path}: {log.problem}" for log in logs if log.problem]
    zones = {event.moment.zoned for scanned in scans for event in scanned.events if event.moment is not None}
    if len(zones) == 2:
        notes.append("some times have a zone and others have none, so these two kinds were not held against each other")
    if len(causes) > 1 and not all(group.chosen.moment for group in causes[:2]):
        notes.append("which cause came first is judged by what the lines say, because not all of them have a time")
    if answer is Answer.NOTHING_WRONG and any(scanned.errors for scanned in scans):
        notes.append("some lines look like errors, but none of them shows that the run failed")
    return tuple(notes)
