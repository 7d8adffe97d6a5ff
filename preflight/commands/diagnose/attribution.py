"""Finds the first failure and its cause among the symptoms of all logs, or the process to examine instead.

A cause takes precedence over a consequence regardless of their times, because causes are often logged last, especially
by the kernel and the scheduler. Among causes, the earliest counts if their times are comparable, otherwise the most
specific.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight._util.sequences import grouped
from preflight.commands.diagnose.diagnosis import Certainty, Event, Kind, Line, LogProcess, Subject, Suspect
from preflight.commands.diagnose.log_lines import is_library, seconds_between
from preflight.commands.diagnose.scan import LastLine, ScanResult

#: Clocks of nodes, and the times of simultaneous lines, may differ by this much.
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

    def identify(self, member: LogProcess) -> LogProcess:
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
    causes, explained = _split_explained(causes, events)
    groups: list[Group] = []
    rest = causes
    while rest:
        chosen = _decisive_event(rest)
        same = [event for event in rest if event.symptom is chosen.symptom]
        groups.append(
            Group(
                _add_process(_add_user_location(chosen, same), same, [*explained, *consequences]),
                _members(chosen, same),
            )
        )
        rest = [event for event in rest if event.symptom is not chosen.symptom]
    return Attribution(tuple(groups), (*consequences, *explained))


def _split_explained(causes: list[Event], lasting: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    explaining = {name for event in lasting for name in event.symptom.explains if event.symptom.kind is Kind.CAUSE}
    decisive = [event for event in causes if event.symptom.certainty is not Certainty.OPEN]
    by_path = grouped((event.line.path, event) for event in decisive)
    ranks = {event.member.rank for event in decisive} - {None}
    unexplained: list[Event] = []
    explained: list[Event] = []
    for event in causes:
        if event.symptom.id in explaining:
            explained.append(event)
        elif event.symptom.certainty is not Certainty.OPEN or not (
            event.member.rank in ranks or any(_same_failure(event, other) for other in by_path.get(event.line.path, ()))
        ):
            unexplained.append(event)
    return unexplained, explained


def _same_failure(event: Event, other: Event) -> bool:
    """Return whether two lines in one file, of which the first is less specific, report the same failure."""
    ranks = {event.member.rank, other.member.rank} - {None}
    return len(ranks) < 2 and abs(event.line.line - other.line.line) <= _SAME_FAILURE_LINES


def _decisive_event(causes: Sequence[Event]) -> Event:
    """Return the cause that counts: the earliest, or, among simultaneous or undated causes, the most specific."""
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


def _add_process(chosen: Event, events: Sequence[Event], others: Iterable[Event]) -> Event:
    """Return the decisive event with its process, taken from another line if its own line does not name the process."""
    if chosen.member.rank is not None or chosen.symptom.subject is Subject.JOB:
        return chosen
    for event in events:
        if event.member.rank is not None and event.line.path == chosen.line.path and event.first:
            return replace(chosen, member=event.member)
    explained = [event for event in others if event.symptom.id in chosen.symptom.explains and event.member]
    if chosen.symptom.subject is Subject.OTHER or not chosen.member:
        firsts = [event for event in others if event.first and event.member.rank is not None]
        for event in (*explained, *firsts):
            if not chosen.member.host or event.member.host in ("", chosen.member.host):
                return replace(chosen, member=replace(event.member, host=event.member.host or chosen.member.host))
    return chosen


def _add_user_location(chosen: Event, events: Sequence[Event]) -> Event:
    if chosen.frame and not is_library(chosen.frame):
        return chosen
    frames = [event.frame for event in events if event.member == chosen.member and event.line.path == chosen.line.path]
    return replace(chosen, frame=next((frame for frame in frames if frame and not is_library(frame)), chosen.frame))


def _members(chosen: Event, events: Sequence[Event]) -> tuple[LogProcess, ...]:
    """Return all processes with the same cause, the decisive one first and the others by rank."""
    others = {event.member for event in events if event.member and event.member != chosen.member}
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
    line_by_process: dict[LogProcess, LastLine] = {}

    def add(member: LogProcess, word: LastLine) -> None:
        who = names.identify(member)
        before = line_by_process.get(who)
        seconds = seconds_between(before.moment, word.moment) if before is not None else None
        if before is None or seconds is None or seconds >= 0:
            line_by_process[who] = word

    for scanned in files:
        for member, word in scanned.writers.items():
            add(member, word)
        if scanned.member and not scanned.writers and scanned.last_line is not None:
            add(scanned.member, LastLine(scanned.last_line, scanned.last))
    return line_by_process


#: A line that also occurs in successful runs counts only if at most this many ordinary lines follow it.
_MAX_AFTER_RETRY = 25
#: An exception followed by this many ordinary lines was caught.
_MAX_AFTER_EXCEPTION = 200
#: Steps that are logged this much later than an error are no late output of a buffer.
_SURELY_LATER_S = 1.0


@dataclass(frozen=True, slots=True)
class Survival:
    """The errors that count, those that the run survived, and the line that reports its completion."""

    lasting: tuple[Event, ...]
    survived: tuple[Event, ...]
    completion: Line | None


def judge_survival(scans: Sequence[ScanResult], events: Sequence[Sequence[Event]]) -> Survival:
    """Judge the events in each file; both arguments are in the same order.

    A run survived an error if training steps follow the error and a later line reports that the run completed; without
    steps in between, a batch script may have printed that line regardless of the result. If only training steps follow,
    the run survived the error unless it failed later and no other cause is known, because buffered output may print
    steps after a later error.
    """
    lasting: list[Event] = []
    survived: list[Event] = []
    overtaken: list[tuple[Event, bool]] = []
    for scanned, found in zip(scans, events, strict=True):
        for event in found:
            if _was_harmless(event) or _was_before_the_end(event, scanned):
                survived.append(event)
            elif scanned.progress is not None and event.line.line < scanned.progress[0]:
                later_s = seconds_between(event.moment, scanned.progress[1])
                overtaken.append((event, later_s is not None and later_s > _SURELY_LATER_S))
            else:
                lasting.append(event)
    has_cause = any(event.symptom.kind is Kind.CAUSE for event in lasting)
    for event, surely in overtaken:
        if not lasting or has_cause or surely:
            survived.append(event)
        else:
            lasting.append(replace(event, doubtful=True))
    completions = [scanned.completion for scanned in scans if scanned.completion is not None]
    return Survival(tuple(lasting), tuple(survived), completions[-1] if completions and not lasting else None)


def _was_before_the_end(event: Event, scanned: ScanResult) -> bool:
    end = scanned.completion
    return end is not None and event.line.line < min(end.line, scanned.last_progress)


def _was_harmless(event: Event) -> bool:
    """Return whether later lines show that the event was not a failure."""
    if event.symptom.passes:
        return event.ordinary_after > _MAX_AFTER_RETRY
    caught = event.symptom.kind is Kind.CAUSE and event.symptom.certainty is Certainty.OPEN and event.frame
    return bool(caught) and event.ordinary_after > _MAX_AFTER_EXCEPTION


#: A process silent for this much longer than the others is reported; a smaller difference may be chance.
_SILENT_S = 3.0
_MAX_RANKS = 100_000


def find_suspect(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the only process that the consequences point to; None if they point to none or to several."""
    return (
        _find_lagging(consequences, last_words)
        or _find_behind(consequences)
        or _find_awaited(consequences, last_words)
        or _find_first_ended(consequences)
        or _find_silent(consequences, last_words)
        or _find_self_ended(consequences)
    )


def _find_first_ended(consequences: Sequence[Event]) -> Suspect | None:
    """Return the process that a launcher reports as the first failure, unless that process only lost its peer."""
    for event in consequences:
        if event.first and event.member.rank is not None and event.member.rank not in _reporting_ranks(consequences):
            return Suspect(event.member, "its launcher reports that it failed first", event.line)
    return None


def _reporting_ranks(consequences: Sequence[Event]) -> set[int | None]:
    """Return the ranks that only report the loss of another process."""
    return {event.member.rank for event in consequences if event.symptom.subject is Subject.WRITER}


def _find_lagging(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the process that waits in a different collective than all others, or in none; each group is judged
    separately.
    """
    waiting: dict[int, Event] = {}
    for event in consequences:
        if event.sequence is None or event.member.rank is None:
            continue
        before = waiting.setdefault(event.member.rank, event)
        if before.sequence != event.sequence:
            return None
    if len(waiting) < 2:
        return None
    places = Counter((event.sequence, event.operation) for event in waiting.values())
    (common, _), *others = places.most_common()
    if others:
        alone = [event for event in waiting.values() if (event.sequence, event.operation) != common]
        if len(alone) != 1 or len(waiting) < 3:
            return None
        (event,) = alone
        text = (
            f"it waits in collective {event.sequence} ({event.operation}), but all others in {common[0]} ({common[1]})"
        )
        return Suspect(event.member, text, event.line)
    ranks = {member.rank for member in last_words if member.rank is not None}
    # Ignore absurd numbers.
    ranks |= set(range(max(waiting) + 1)) if max(waiting) < _MAX_RANKS else set()
    absent = sorted(ranks - set(waiting))
    if len(absent) != 1:
        return None
    member = next((member for member in last_words if member.rank == absent[0]), LogProcess(rank=absent[0]))
    word = last_words.get(member)
    return Suspect(member, f"all others wait for it in collective {common[0]}", word.line if word else None)


def _find_behind(consequences: Sequence[Event]) -> Suspect | None:
    """Return the processes whose collectives have lower numbers than those of most others.

    The numbers are those of collectives that timed out, or of the last started collectives. A process may have several
    numbers, one per group; it is behind only if all of its numbers are lower than all numbers of the others.
    """
    for numbers in (
        _group_by_rank((event.member.rank, event.sequence) for event in consequences),
        _group_by_rank((event.member.rank, event.enqueued) for event in consequences),
    ):
        if len(numbers) < 2:
            continue
        highest = {rank: max(found) for rank, found in numbers.items()}
        lowest = {rank: min(found) for rank, found in numbers.items()}
        order = sorted(numbers, key=lambda rank: (highest[rank], rank))
        for count in range(1, (len(order) - 1) // 2 + 1 if len(order) > 2 else 2):
            late, others = order[:count], order[count:]
            least = min(lowest[rank] for rank in others)
            if max(highest[rank] for rank in late) < least:
                most = max(highest[rank] for rank in others)
                where = str(least) if least == most else f"{least} to {most}"
                who = "the others are" if len(others) > 1 else f"rank {others[0]} is"
                text = f"it is at collective {highest[late[0]]}, but {who} at {where}"
                return _make_suspect([LogProcess(rank=rank) for rank in late], text, consequences)
    return None


def _group_by_rank(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for rank, number in pairs:
        if rank is not None and number is not None:
            found.setdefault(rank, set()).add(number)
    return found


def _make_suspect(members: Sequence[LogProcess], because: str, events: Sequence[Event]) -> Suspect:
    """Return the processes as one suspect, with the full name and line of the first process if an event has them."""
    found = {event.member.rank: event for event in reversed(events)}
    named = [found[member.rank].member if member.rank in found else member for member in members]
    first = found.get(members[0].rank)
    return Suspect(named[0], because, first.line if first is not None else None, tuple(named[1:]))


def _find_awaited(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the processes that waiting processes name."""
    peers = {rank for event in consequences for rank in event.peers} - _reporting_ranks(consequences)
    by_rank = {member.rank: member for member in last_words}
    ranks = sorted(rank for rank in peers if rank < _MAX_RANKS)
    if not ranks or (len(ranks) > 1 and not _are_complete_lists(consequences)):
        return None
    members = [by_rank.get(rank, LogProcess(rank=rank)) for rank in ranks]
    word = last_words.get(members[0])
    return Suspect(
        members[0], "others waited for it in vain", word.line if word is not None else None, tuple(members[1:])
    )


def _are_complete_lists(consequences: Sequence[Event]) -> bool:
    """Return whether the awaited ranks come from complete lists, as Horovod prints them, not from single waits."""
    return all(event.symptom.subject is Subject.JOB for event in consequences if event.peers)


def _find_silent(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the only process that reports nothing about the failure or stopped writing well before the others."""
    speaking = _reporting_ranks(consequences)
    ranked = {member: word for member, word in last_words.items() if member.rank is not None}
    if len(ranked) < 2:
        return None
    quiet = [member for member in ranked if member.rank not in speaking]
    if len(quiet) == 1 and len(speaking - {None}) >= 1 and len(ranked) >= 2:
        word = ranked[quiet[0]]
        return Suspect(quiet[0], "all other processes report a lost peer, but this one reports nothing", word.line)
    earliest = min(ranked, key=lambda member: _seconds(ranked[member]))
    gaps = [
        seconds_between(ranked[earliest].moment, word.moment)
        for member, word in ranked.items()
        if member.rank != earliest.rank
    ]
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps) and min(known) >= _SILENT_S and earliest.rank not in speaking:
        return Suspect(
            earliest, f"it stopped logging first, {min(known):.0f} s before the other processes", ranked[earliest].line
        )
    return None


def _seconds(word: LastLine) -> float:
    return word.moment.seconds if word.moment is not None else float("inf")


def _find_self_ended(consequences: Sequence[Event]) -> Suspect | None:
    """Return the only process that a supervisor reports as having ended on its own."""
    ended = [
        event for event in consequences if event.symptom.id in ("task-ended", "aborted-itself", "mpi-aborted-itself")
    ]
    ranks_by_number = [event for event in ended if event.member.rank is not None or event.member.local_rank is not None]
    ranks_by_number = [event for event in ranks_by_number if event.member.rank not in _reporting_ranks(consequences)]
    if ranks_by_number and len({event.member.rank for event in ranks_by_number}) == 1:
        return Suspect(
            ranks_by_number[0].member, "it ended on its own, and its log gives no reason", ranks_by_number[0].line
        )
    return None
