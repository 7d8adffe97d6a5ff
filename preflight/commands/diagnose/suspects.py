"""Finds a process to examine if no line names a cause: one that ended first, is behind, or fell silent. These are only
hints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from preflight.commands.diagnose.diagnosis import Event, LogProcess, Subject, Suspect
from preflight.commands.diagnose.scan import LastLine
from preflight.commands.diagnose.timestamps import seconds_between

#: A process silent for this much longer than the others is reported; less is chance.
_SILENT_S = 3.0
_MAX_RANKS = 100_000


def suspect(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the one process that the consequences point to, or None."""
    return (
        _lagging(consequences, last_words)
        or _behind(consequences)
        or _waited_for(consequences, last_words)
        or _ended_first(consequences)
        or _silent(consequences, last_words)
        or _ended(consequences)
    )


def _ended_first(consequences: Sequence[Event]) -> Suspect | None:
    """Return the process that a launcher reports to have failed first, unless it only noticed that another one was
    gone.
    """
    for event in consequences:
        if event.first and event.member.rank is not None and event.member.rank not in _reporting_ranks(consequences):
            return Suspect(event.member, "its launcher reports that it failed first", event.line)
    return None


def _reporting_ranks(consequences: Sequence[Event]) -> set[int | None]:
    """Return the ranks that only report that another process was gone."""
    return {event.member.rank for event in consequences if event.symptom.subject is Subject.WRITER}


def _lagging(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the process that waits in a different collective from all others, or in none.

    Each process group is judged separately; ranks that wait in several are ignored.
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
        text = f"it waits in collective {event.sequence} ({event.operation}), all others in {common[0]} ({common[1]})"
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


def _behind(consequences: Sequence[Event]) -> Suspect | None:
    """Return the processes whose collectives have lower numbers than those of most others.

    The numbers are those of collectives that timed out, or of the last ones that were started. A process may have
    several numbers, one for each group; it is behind only if all of them are lower than all numbers of the others.
    """
    for numbers in (_sequences(consequences), _enqueued(consequences)):
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
                text = f"it is at collective {highest[late[0]]}, {who} at {where}"
                return _suspects([LogProcess(rank=rank) for rank in late], text, consequences)
    return None


def _sequences(consequences: Sequence[Event]) -> dict[int, set[int]]:
    return _by_rank((event.member.rank, event.sequence) for event in consequences)


def _enqueued(consequences: Sequence[Event]) -> dict[int, set[int]]:
    return _by_rank((event.member.rank, event.enqueued) for event in consequences)


def _by_rank(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for rank, number in pairs:
        if rank is not None and number is not None:
            found.setdefault(rank, set()).add(number)
    return found


def _suspects(members: Sequence[LogProcess], because: str, events: Sequence[Event]) -> Suspect:
    """Return the processes as one suspect, with the full name and the line of the first one if an event has them."""
    found = {event.member.rank: event for event in reversed(events)}
    named = [found[member.rank].member if member.rank in found else member for member in members]
    first = found.get(members[0].rank)
    return Suspect(named[0], because, first.line if first is not None else None, tuple(named[1:]))


def _waited_for(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the processes that the waiting ones name."""
    peers = {rank for event in consequences for rank in event.peers} - _reporting_ranks(consequences)
    by_rank = {member.rank: member for member in last_words}
    ranks = sorted(rank for rank in peers if rank < _MAX_RANKS)
    if not ranks or (len(ranks) > 1 and not _listed(consequences)):
        return None
    members = [by_rank.get(rank, LogProcess(rank=rank)) for rank in ranks]
    word = last_words.get(members[0])
    return Suspect(
        members[0], "others waited for it in vain", word.line if word is not None else None, tuple(members[1:])
    )


def _listed(consequences: Sequence[Event]) -> bool:
    """Return whether the awaited ranks come from lists of all missing ranks, as Horovod's, not from single waits."""
    return all(event.symptom.subject is Subject.JOB for event in consequences if event.peers)


def _silent(consequences: Sequence[Event], last_words: Mapping[LogProcess, LastLine]) -> Suspect | None:
    """Return the only process that reports nothing about the failure, or that stopped writing well before the
    others.
    """
    speaking = _reporting_ranks(consequences)
    ranked = {member: word for member, word in last_words.items() if member.rank is not None}
    if len(ranked) < 2:
        return None
    quiet = [member for member in ranked if member.rank not in speaking]
    if len(quiet) == 1 and len(speaking - {None}) >= 1 and len(ranked) >= 2:
        word = ranked[quiet[0]]
        return Suspect(quiet[0], "the others report a lost peer, and only this one reports nothing", word.line)
    earliest = min(ranked, key=lambda member: _seconds(ranked[member]))
    gaps = [
        seconds_between(ranked[earliest].moment, word.moment)
        for member, word in ranked.items()
        if member.rank != earliest.rank
    ]
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps) and min(known) >= _SILENT_S and earliest.rank not in speaking:
        return Suspect(earliest, f"it fell silent first, {min(known):.0f} s before the others", ranked[earliest].line)
    return None


def _seconds(word: LastLine) -> float:
    return word.moment.seconds if word.moment is not None else float("inf")


def _ended(consequences: Sequence[Event]) -> Suspect | None:
    """Return the only process that a supervisor reports to have ended by itself."""
    ended = [
        event for event in consequences if event.symptom.id in ("task-ended", "aborted-itself", "mpi-aborted-itself")
    ]
    ranks_by_number = [event for event in ended if event.member.rank is not None or event.member.local_rank is not None]
    ranks_by_number = [event for event in ranks_by_number if event.member.rank not in _reporting_ranks(consequences)]
    if ranks_by_number and len({event.member.rank for event in ranks_by_number}) == 1:
        return Suspect(
            ranks_by_number[0].member, "it ended by itself, and its log gives no reason", ranks_by_number[0].line
        )
    return None
