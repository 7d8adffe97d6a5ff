"""Whom to look at where no line names a cause: who ended first, is behind, or fell silent. Hints, never verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from preflight.diagnosis.model import Event, Party, Subject, Suspect
from preflight.diagnosis.moments import seconds_between
from preflight.diagnosis.scan import Word

#: Who wrote nothing for so much longer than the others is told; less is chance.
_SILENT_S = 3.0
_MOST_RANKS = 100_000


def suspect(consequences: Sequence[Event], last_words: Mapping[Party, Word]) -> Suspect | None:
    """The one party that the consequences point at; None where they do not."""
    return (
        _behind(consequences, last_words)
        or _waited_for(consequences, last_words)
        or _ended_first(consequences)
        or _silent(consequences, last_words)
        or _ended(consequences)
    )


def _ended_first(consequences: Sequence[Event]) -> Suspect | None:
    """Whom a launcher says to have failed first, unless that one only noticed that somebody else was gone."""
    for event in consequences:
        if event.first and event.party.rank is not None and event.party.rank not in _noticing(consequences):
            return Suspect(event.party, "its launcher says that it failed first", event.line)
    return None


def _noticing(consequences: Sequence[Event]) -> set[int | None]:
    """The ranks that only say that somebody else was gone."""
    return {event.party.rank for event in consequences if event.symptom.subject is Subject.WRITER}


def _behind(consequences: Sequence[Event], last_words: Mapping[Party, Word]) -> Suspect | None:
    """Who waits in another collective than the others, or in none while all others wait in one.

    Each process group counts for itself: of ranks that wait in several nothing is concluded.
    """
    waiting: dict[int, Event] = {}
    for event in consequences:
        if event.sequence is None or event.party.rank is None:
            continue
        before = waiting.setdefault(event.party.rank, event)
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
        said = f"it waits in collective {event.sequence} ({event.operation}), all others in {common[0]} ({common[1]})"
        return Suspect(event.party, said, event.line)
    ranks = {party.rank for party in last_words if party.rank is not None}
    # Of an absurd number nothing is concluded.
    ranks |= set(range(max(waiting) + 1)) if max(waiting) < _MOST_RANKS else set()
    absent = sorted(ranks - set(waiting))
    if len(absent) != 1:
        return None
    party = next((party for party in last_words if party.rank == absent[0]), Party(rank=absent[0]))
    word = last_words.get(party)
    return Suspect(party, f"all others wait for it in collective {common[0]}", word.line if word else None)


def _waited_for(consequences: Sequence[Event], last_words: Mapping[Party, Word]) -> Suspect | None:
    """Whom all name that wait for somebody."""
    peers = {event.peer for event in consequences if event.peer is not None} - _noticing(consequences)
    if len(peers) != 1:
        return None
    (rank,) = peers
    party = next((party for party in last_words if party.rank == rank), Party(rank=rank))
    word = last_words.get(party)
    return Suspect(party, "others waited for it in vain", word.line if word is not None else None)


def _silent(consequences: Sequence[Event], last_words: Mapping[Party, Word]) -> Suspect | None:
    """Who alone says nothing of the failure, or stopped writing well before all others."""
    speaking = _noticing(consequences)
    ranked = {party: word for party, word in last_words.items() if party.rank is not None}
    if len(ranked) < 2:
        return None
    quiet = [party for party in ranked if party.rank not in speaking]
    if len(quiet) == 1 and len(speaking - {None}) >= 1 and len(ranked) >= 2:
        word = ranked[quiet[0]]
        return Suspect(quiet[0], "the others say that somebody went away, and it alone says nothing", word.line)
    earliest = min(ranked, key=lambda party: _seconds(ranked[party]))
    gaps = [
        seconds_between(ranked[earliest].moment, word.moment)
        for party, word in ranked.items()
        if party.rank != earliest.rank
    ]
    known = [gap for gap in gaps if gap is not None]
    if known and len(known) == len(gaps) and min(known) >= _SILENT_S and earliest.rank not in speaking:
        return Suspect(earliest, f"it fell silent first, {min(known):.0f} s before the others", ranked[earliest].line)
    return None


def _seconds(word: Word) -> float:
    return word.moment.seconds if word.moment is not None else float("inf")


def _ended(consequences: Sequence[Event]) -> Suspect | None:
    """The only process of which a supervisor says that it ended by itself."""
    ended = [
        event for event in consequences if event.symptom.id in ("task-ended", "aborted-itself", "mpi-aborted-itself")
    ]
    told = [event for event in ended if event.party.rank is not None or event.party.local_rank is not None]
    told = [event for event in told if event.party.rank not in _noticing(consequences)]
    if told and len({event.party.rank for event in told}) == 1:
        return Suspect(told[0].party, "it ended by itself, and its log does not say why", told[0].line)
    return None
