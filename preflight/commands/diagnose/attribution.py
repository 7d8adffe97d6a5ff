"""Finds the first failure and its cause among the symptoms of all logs, or states that it is unknown.

A cause wins over a consequence whatever their times, because causes are often logged last, above all by the kernel and
the scheduler. Among causes the earliest counts if their times are comparable, otherwise the most specific.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from preflight.commands.diagnose.blocks import is_library
from preflight.commands.diagnose.diagnosis import Certainty, Event, Kind, LogProcess, Subject
from preflight.commands.diagnose.scan import LastLine, ScanResult
from preflight.commands.diagnose.timestamps import seconds_between

#: Clocks of nodes, and the lines of one moment, may differ by this much.
_SAME_MOMENT_S = 1.0
#: Causes of one process within this distance (in lines of one file) are one failure, reported twice.
_SAME_FAILURE_LINES = 400
_WEIGHT = {Certainty.NAMED: 0, Certainty.LIKELY: 1, Certainty.OPEN: 2}


@dataclass(frozen=True, slots=True)
class Group:
    """One cause with all processes that report it; `chosen` is the decisive line."""

    chosen: Event
    members: tuple[LogProcess, ...]


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes in order of importance, and the remaining symptoms."""

    causes: tuple[Group, ...]
    consequences: tuple[Event, ...]


class Names:
    """Resolves the names that different logs use for one process: its rank, its number on a node, its host."""

    def __init__(self, files: Sequence[ScanResult]) -> None:
        self._ranks: dict[tuple[str, int], int] = {}
        self._hosts: dict[int, str] = {}
        self._known: dict[LogProcess, LogProcess] = {}
        for scanned in files:
            for (host, local_rank), rank in scanned.ranks.items():
                self._ranks[host, local_rank] = rank
                if host:
                    self._hosts.setdefault(rank, host)
        members = [event.member for scanned in files for event in scanned.events]
        hosts = {member.host for member in members if member.host} | {host for host, _ in self._ranks if host}
        self._single_node = len(hosts) <= 1
        local = {member.local_rank for member in members if member.local_rank is not None}
        ranks = {member.rank for member in members if member.rank is not None and member.local_rank is None}
        #: On a single node rank and local rank are equal, unless a larger rank occurs.
        self._ranks_match = self._single_node and (not local or not ranks or max(ranks) <= max(local))
        for member in members:
            if member.rank is not None and member.host:
                self._hosts.setdefault(member.rank, member.host)

    def known(self, member: LogProcess) -> LogProcess:
        """Return the process with its rank and host, if any log gives them."""
        found = self._known.get(member)
        if found is None:
            found = self._known[member] = self._find(member)
        return found

    def _find(self, member: LogProcess) -> LogProcess:
        rank = member.rank
        if rank is None and member.local_rank is not None:
            rank = self._ranks.get((member.host, member.local_rank))
            if rank is None and (self._single_node or not member.host):
                found = {value for (_, local), value in self._ranks.items() if local == member.local_rank}
                rank = found.pop() if len(found) == 1 else None
            if rank is None and self._ranks_match:
                rank = member.local_rank
        host = member.host or (self._hosts.get(rank, "") if rank is not None else "")
        local_rank = None if rank is not None else member.local_rank
        return LogProcess(rank, local_rank, host, member.role)


def attribute(events: Sequence[Event]) -> Attribution:
    """Sort the symptoms of a failure into causes, in order of importance, and consequences."""
    causes = [event for event in events if event.symptom.kind is Kind.CAUSE]
    consequences = [event for event in events if event.symptom.kind is Kind.CONSEQUENCE]
    causes, explained = _unexplained(causes, events)
    groups: list[Group] = []
    rest = causes
    while rest:
        chosen = _first(rest)
        same = [event for event in rest if event.symptom is chosen.symptom]
        groups.append(
            Group(
                _located(_with_user_location(chosen, same), same, [*explained, *consequences]), _members(chosen, same)
            )
        )
        rest = [event for event in rest if event.symptom is not chosen.symptom]
    return Attribution(tuple(groups), (*consequences, *explained))


def _unexplained(causes: list[Event], lasting: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Split causes into those that no other cause explains, and the others."""
    explaining = {name for event in lasting for name in event.symptom.explains if event.symptom.kind is Kind.CAUSE}
    decisive = [event for event in causes if event.symptom.certainty is not Certainty.OPEN]
    by_path: dict[str, list[Event]] = {}
    for event in decisive:
        by_path.setdefault(event.line.path, []).append(event)
    ranks = {event.member.rank for event in decisive} - {None}
    kept: list[Event] = []
    explained: list[Event] = []
    for event in causes:
        if event.symptom.id in explaining:
            explained.append(event)
        elif event.symptom.certainty is not Certainty.OPEN or not (
            event.member.rank in ranks or any(_same_failure(event, other) for other in by_path.get(event.line.path, ()))
        ):
            kept.append(event)
    return kept, explained


def _same_failure(event: Event, other: Event) -> bool:
    """Return whether two lines of one file, the first of which is less specific, report the same failure."""
    ranks = {event.member.rank, other.member.rank} - {None}
    return len(ranks) < 2 and abs(event.line.line - other.line.line) <= _SAME_FAILURE_LINES


def _first(causes: Sequence[Event]) -> Event:
    """Return the cause that counts: the earliest; among simultaneous ones or without times, the most specific."""
    timed = [event for event in causes if event.moment is not None]
    earliest = timed[0] if timed else None
    for event in timed[1:]:
        assert earliest is not None
        seconds = seconds_between(event.moment, earliest.moment)
        if seconds is not None and seconds > 0:
            earliest = event
    near = [
        event
        for event in causes
        if earliest is None
        or (seconds := seconds_between(earliest.moment, event.moment)) is None
        or seconds <= _SAME_MOMENT_S
        or (_WEIGHT[event.symptom.certainty] < _WEIGHT[Certainty.OPEN] <= _WEIGHT[earliest.symptom.certainty])
    ]
    order = {id(event): at for at, event in enumerate(causes)}

    def key(event: Event) -> tuple[int, int, float, int, int]:
        seconds = seconds_between(earliest.moment, event.moment) if earliest is not None else None
        return (
            _WEIGHT[event.symptom.certainty],
            0 if event.first else 1,
            seconds if seconds is not None else 0.0,
            0 if event.member else 1,
            order[id(event)],
        )

    return min(near, key=key)


def _located(chosen: Event, same: Sequence[Event], others: Iterable[Event]) -> Event:
    """Return the decisive event with its process, taken from another line if its own does not name it."""
    if chosen.member.rank is not None or chosen.symptom.subject is Subject.JOB:
        return chosen
    for event in same:
        if event.member.rank is not None and event.line.path == chosen.line.path and event.first:
            return replace(chosen, member=event.member)
    explained = [event for event in others if event.symptom.id in chosen.symptom.explains and event.member]
    if chosen.symptom.subject is Subject.OTHER or not chosen.member:
        firsts = [event for event in others if event.first and event.member.rank is not None]
        for event in (*explained, *firsts):
            if not chosen.member.host or event.member.host in ("", chosen.member.host):
                return replace(chosen, member=replace(event.member, host=event.member.host or chosen.member.host))
    return chosen


def _with_user_location(chosen: Event, same: Sequence[Event]) -> Event:
    """Return the decisive event with a location in the user's program, if another event of the same failure has one."""
    if chosen.frame and not is_library(chosen.frame):
        return chosen
    frames = [event.frame for event in same if event.member == chosen.member and event.line.path == chosen.line.path]
    return replace(chosen, frame=next((frame for frame in frames if frame and not is_library(frame)), chosen.frame))


def _members(chosen: Event, same: Sequence[Event]) -> tuple[LogProcess, ...]:
    """Return all processes with the same cause, the decisive one first and the others by rank."""
    others = {event.member for event in same if event.member and event.member != chosen.member}
    decisive = {member.rank for member in others | {chosen.member}}
    exact = [member for member in others if member.rank is not None or len(decisive) == 1]
    return (
        (chosen.member, *sorted(exact, key=member_order)) if chosen.member else tuple(sorted(others, key=member_order))
    )


def member_order(member: LogProcess) -> tuple[int, int, str, str]:
    """Return a key that sorts processes by rank."""
    rank = member.rank if member.rank is not None else 1 << 30
    return (rank, member.local_rank if member.local_rank is not None else 1 << 30, member.host, member.role)


def last_lines(files: Sequence[ScanResult], names: Names) -> dict[LogProcess, LastLine]:
    """Return the last line of every process that has a log or tagged lines."""
    found: dict[LogProcess, LastLine] = {}

    def add(member: LogProcess, word: LastLine) -> None:
        who = names.known(member)
        before = found.get(who)
        seconds = seconds_between(before.moment, word.moment) if before is not None else None
        if before is None or seconds is None or seconds >= 0:
            found[who] = word

    for scanned in files:
        for member, word in scanned.writers.items():
            add(member, word)
        if scanned.member and not scanned.writers and scanned.last_line is not None:
            add(scanned.member, LastLine(scanned.last_line, scanned.last))
    return found
