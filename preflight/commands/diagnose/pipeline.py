"""Makes a diagnosis: reads all logs, finds the first failure and its cause, and the checks that find it in advance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from preflight._util.redaction import scrub
from preflight._util.regular_file import size_of
from preflight._util.sequences import grouped
from preflight.commands.diagnose.attribution import (
    Group,
    Names,
    Survival,
    attribute,
    find_suspect,
    judge_survival,
    last_lines,
    member_order,
)
from preflight.commands.diagnose.diagnosis import (
    Answer,
    Cause,
    Certainty,
    Diagnosis,
    Effect,
    Event,
    Kind,
    Line,
    Log,
    LogProcess,
    Pointer,
)
from preflight.commands.diagnose.log_files import (
    MAX_BYTES_OF_ALL,
    MAX_SECONDS_OF_ALL,
    LogFile,
    ReadState,
    Reported,
    SideFiles,
    chunks,
    logs_in,
    reported_before,
)
from preflight.commands.diagnose.log_lines import NEEDLES, Finder, member_of_file, ranks_by_number
from preflight.commands.diagnose.scan import Scanner, ScanResult, Table, needles_of
from preflight.model.progress import Progress, Step, ignore

#: 2 is a usage error, 5 a bug in preflight.
_EXIT = {
    Answer.COMPLETED: 0,
    Answer.CAUSE: 1,
    Answer.UNKNOWN: 3,
    Answer.NO_END: 3,
    Answer.NO_RUN: 4,
    Answer.UNREADABLE: 4,
    Answer.SUSPECTED: 6,
}
_MAX_LAST_WORDS = 8
_MAX_CAUSES = 5


def diagnose(
    paths: Sequence[str | Path],
    table: Table,
    pointers: Callable[[Collection[str]], Mapping[str, Pointer]],
    *,
    version: str,
    stdin: IO[bytes] | None = None,
    progress: Progress = ignore,
) -> Diagnosis:
    """Diagnose the logs in `paths` (`-`: `stdin`); `pointers` looks up rules and checks. Raises UsageError."""
    found = logs_in(paths)
    members = ranks_by_number([log.name for log in found])
    finder = Finder((*needles_of(table.rows), *NEEDLES))
    scans: list[ScanResult] = []
    logs: list[Log] = []
    side_files = SideFiles()
    remaining, started_at = MAX_BYTES_OF_ALL, time.thread_time()
    for number, log in enumerate(found):
        progress(Step("logs", number, len(found)))
        member = members.get(log.name) or member_of_file(log.name)
        is_side_file, size_bytes, side_problem = side_files.read(log)
        if is_side_file or not log.is_log:
            if is_side_file:
                logs.append(Log(log.name, member, size_bytes, 0, problem=side_problem))
            continue
        if remaining > 0 and time.thread_time() - started_at < MAX_SECONDS_OF_ALL:
            scanned, read_problem = _read(log, table, finder, member, stdin)
        else:
            problem = f"was not read: earlier logs reached the limit of {size_of(MAX_BYTES_OF_ALL)} or took too long"
            scanned = Scanner(table, finder, log.name, member).read(iter(()))
            read_problem = Log(log.name, member, 0, 0, problem=problem)
        remaining -= read_problem.size_bytes
        scans.append(scanned)
        logs.append(read_problem)
    return _answer(scans, logs, pointers, version, _hang_events(side_files, table), side_files)


def _hang_events(side_files: SideFiles, table: Table) -> tuple[Event, ...]:
    """Return an event for each rank that, according to dumps and stacks, differs from the others."""
    hang = side_files.hang()
    match = table.match(f"@hang {hang.kind}") if hang is not None else None
    if hang is None or match is None:
        return ()
    return tuple(
        Event(
            symptom=match[0],
            member=LogProcess(rank=rank),
            line=Line(hang.path, 1, scrub(hang.text)),
            frame=scrub(hang.place),
            evidence=tuple(scrub(text) for text in hang.places),
            is_hang=True,
        )
        for rank in hang.ranks
    )


def _read(
    log: LogFile, table: Table, finder: Finder, member: LogProcess, stdin: IO[bytes] | None
) -> tuple[ScanResult, Log]:
    reading = ReadState()
    scanned = Scanner(table, finder, log.name, member).read(chunks(log, stdin, reading))
    if scanned.is_binary and not reading.problem:
        reading.problem = "is binary data, not text"
    read_problem = Log(
        path=log.name,
        member=member,
        size_bytes=reading.size_bytes,
        lines=scanned.lines,
        first_time=scanned.first.text if scanned.first else "",
        last_time=scanned.last.text if scanned.last else "",
        last_line=scanned.last_line.text if scanned.last_line else "",
        problem=reading.problem,
    )
    return scanned, read_problem


def _answer(
    scans: Sequence[ScanResult],
    logs: Sequence[Log],
    pointers: Callable[[Collection[str]], Mapping[str, Pointer]],
    version: str,
    hang: Sequence[Event],
    side_files: SideFiles,
) -> Diagnosis:
    names = Names(scans)
    events = [[replace(event, member=names.identify(event.member)) for event in scanned.events] for scanned in scans]
    is_run = bool(hang or side_files.dumps or side_files.stacks) or _is_of_a_run(scans)
    foreign = [event for found in events for event in found if not is_run or event.symptom.kind is Kind.FOREIGN]
    events = [[event for event in found if is_run and event.symptom.kind is not Kind.FOREIGN] for found in events]
    survival = judge_survival(scans, events)
    lasting = survival.lasting
    lasting = (*lasting, *(replace(event, member=names.identify(event.member)) for event in hang))
    blamed = attribute(lasting)
    last_words = last_lines(scans, names)
    wanted = {name for group in blamed.causes for name in group.chosen.symptom.found_by}
    known = pointers(wanted) if wanted else {}
    causes = tuple(_add_hang(_cause(group, known, side_files.reported), hang) for group in blamed.causes)
    counts: Counter[str] = Counter()
    for scanned in scans:
        for (symptom, _), number in scanned.counts.items():
            counts[symptom] += number
    effects = _effects(blamed.consequences, counts)
    answer = _decide(blamed.causes, effects, survival, logs)
    if answer is Answer.NO_END and not is_run:
        answer, effects = Answer.NO_RUN, _effects(foreign, counts)
    return Diagnosis(
        version=version,
        answer=answer,
        exit_code=_EXIT[answer],
        cause=causes[0] if causes else None,
        others=causes[1:_MAX_CAUSES],
        suspect=find_suspect(blamed.consequences, last_words) if answer is Answer.UNKNOWN else None,
        effects=effects,
        last_words=_last_errors(scans) if not causes and answer not in (Answer.COMPLETED, Answer.NO_RUN) else (),
        logs=tuple(logs),
        notes=(*_notes(scans, logs, blamed.causes), *side_files.notes()),
        survived=_effects(survival.survived, counts),
        completion=survival.completion if answer is Answer.COMPLETED else None,
    )


def _is_of_a_run(scans: Sequence[ScanResult]) -> bool:
    """Return whether the logs are of a training run, by their text, their names or a symptom."""
    return any(
        scanned.is_of_a_run
        or scanned.completion is not None
        or scanned.member.rank is not None
        or scanned.member.local_rank is not None
        or any(
            event.member.rank is not None or not (event.symptom.everyday or event.symptom.kind is Kind.FOREIGN)
            for event in scanned.events
        )
        for scanned in scans
    )


def _decide(causes: Sequence[Group], effects: Sequence[Effect], survival: Survival, logs: Sequence[Log]) -> Answer:
    if causes:
        return Answer.CAUSE if _names_reason(causes[0].chosen) else Answer.SUSPECTED
    if effects:
        return Answer.UNKNOWN
    if not any(log.size_bytes for log in logs) or any(log.problem for log in logs):
        return Answer.UNREADABLE
    return Answer.COMPLETED if survival.completion is not None else Answer.NO_END


def _names_reason(event: Event) -> bool:
    """Return whether the line itself gives the reason: a known fault, or an exception with a location."""
    certainty = event.symptom.certainty
    is_exception = certainty is Certainty.OPEN and bool(event.frame) and not event.is_hang
    return not event.doubtful and (certainty is Certainty.NAMED or is_exception)


def _cause(group: Group, pointers: Mapping[str, Pointer], reported: Mapping[str, Reported]) -> Cause:
    symptom, event = group.chosen.symptom, group.chosen
    members = group.members
    if event.member and event.member not in members:
        members = (event.member, *members)
    return Cause(
        symptom=symptom.id,
        certainty=symptom.certainty,
        meaning=symptom.meaning,
        remedy=symptom.remedy,
        members=members,
        line=event.line,
        frame=event.frame,
        found_by=tuple(pointers[name] for name in symptom.found_by if name in pointers),
        beyond=symptom.beyond,
        sources=symptom.sources,
        evidence=(*event.evidence, *reported_before(reported[name] for name in symptom.found_by if name in reported)),
        is_hang=event.is_hang,
    )


def _add_hang(cause: Cause, hang: Sequence[Event]) -> Cause:
    """Return the cause, with the state of the waiting ranks if the cause explains why a rank is missing."""
    ranks = {member.rank for member in cause.members}
    if cause.is_hang or not any(event.member.rank in ranks for event in hang):
        return cause
    return replace(cause, evidence=(*cause.evidence, hang[0].line.text, *hang[0].evidence))


def _effects(consequences: Iterable[Event], counts: Mapping[str, int]) -> tuple[Effect, ...]:
    """Return the consequences, one per symptom, in log order."""
    groups = grouped((event.symptom.id, event) for event in consequences)
    return tuple(
        Effect(
            name,
            events[0].symptom.meaning,
            tuple(sorted({event.member for event in events if event.member}, key=member_order)),
            events[0].line,
            counts[name],
            is_foreign=events[0].symptom.kind is Kind.FOREIGN,
        )
        for name, events in groups.items()
    )


def _last_errors(scans: Sequence[ScanResult]) -> tuple[Line, ...]:
    """Return the last lines that look like errors: a few per log, without duplicates."""
    found: dict[str, Line] = {}
    for scanned in scans:
        for line in scanned.errors:
            found.setdefault(line.text, line)
    return tuple(found.values())[-_MAX_LAST_WORDS:]


def _notes(scans: Sequence[ScanResult], logs: Sequence[Log], causes: Sequence[Group]) -> tuple[str, ...]:
    notes = [f"{log.path}: {log.problem}" for log in logs if log.problem]
    zones = {event.moment.is_utc for scanned in scans for event in scanned.events if event.moment is not None}
    if len(zones) == 2:
        notes.append("some timestamps have a time zone and others do not, so the two were not compared")
    if len(causes) > 1 and not all(group.chosen.moment for group in causes[:2]):
        notes.append("causes are ordered by their messages, because not all lines have a timestamp")
    if causes and causes[0].chosen.doubtful:
        notes.append("training steps follow the decisive line, so the run may have continued")
    return tuple(notes)
