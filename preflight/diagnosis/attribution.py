"""Who failed first, and why: from the symptoms of all logs to one cause, or to an honest "don't know".

A cause beats a consequence whatever their times, because causes are often logged last (the kernel's and the
scheduler's above all). Among causes the earlier one counts where times can be held against each other, and otherwise
the one that says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from preflight.diagnosis.blocks import is_library
from preflight.diagnosis.model import Certainty, Event, Kind, Party, Subject
from preflight.diagnosis.moments import seconds_between
from preflight.diagnosis.scan import Scanned, Word
from preflight.lazy.dataclasses import dataclass

#: Clocks of nodes, and the lines of one moment, differ by so much.
_SAME_MOMENT_S = 1.0
#: A line that is also written where all goes well counts if no more ordinary lines than this follow it.
_MOST_AFTER_RETRY = 25
#: An exception that the program went on after for so many lines was caught.
_MOST_AFTER_EXCEPTION = 200
#: Causes of one party this near to each other (in lines of one file) are one failure, told twice.
_SAME_FAILURE_LINES = 400
_WEIGHT = {Certainty.NAMED: 0, Certainty.LIKELY: 1, Certainty.OPEN: 2}


@dataclass(frozen=True, slots=True)
class Group:
    """One cause with everybody for whom the logs say it; `chosen` is the line that decides."""

    chosen: Event
    parties: tuple[Party, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """The causes in the order in which they count, and what is left besides."""

    causes: tuple[Group, ...]
    consequences: tuple[Event, ...]


class Names:
    """What different logs call one process: by its rank, by its number on a node, by its host."""

    def __init__(self, files: Sequence[Scanned]) -> None:
        self._ranks: dict[tuple[str, int], int] = {}
        self._hosts: dict[int, str] = {}
        self._known: dict[Party, Party] = {}
        for scanned in files:
            for (host, local_rank), rank in scanned.ranks.items():
                self._ranks[host, local_rank] = rank
                if host:
                    self._hosts.setdefault(rank, host)
        parties = [event.party for scanned in files for event in scanned.events]
        hosts = {party.host for party in parties if party.host} | {host for host, _ in self._ranks if host}
        self._one_node = len(hosts) <= 1
        local = {party.local_rank for party in parties if party.local_rank is not None}
        ranks = {party.rank for party in parties if party.rank is not None and party.local_rank is None}
        #: With one node the two numbers are the same, unless ranks beyond it are spoken of.
        self._alike = self._one_node and (not local or not ranks or max(ranks) <= max(local))
        for party in parties:
            if party.rank is not None and party.host:
                self._hosts.setdefault(party.rank, party.host)

    def known(self, party: Party) -> Party:
        """The party with its rank and host, where some log has them."""
        found = self._known.get(party)
        if found is None:
            found = self._known[party] = self._find(party)
        return found

    def _find(self, party: Party) -> Party:
        rank = party.rank
        if rank is None and party.local_rank is not None:
            rank = self._ranks.get((party.host, party.local_rank))
            if rank is None and (self._one_node or not party.host):
                found = {value for (_, local), value in self._ranks.items() if local == party.local_rank}
                rank = found.pop() if len(found) == 1 else None
            if rank is None and self._alike:
                rank = party.local_rank
        host = party.host or (self._hosts.get(rank, "") if rank is not None else "")
        local_rank = None if rank is not None else party.local_rank
        return Party(rank, local_rank, host, party.role)


def blame(events: Sequence[Event]) -> Blame:
    """Sort what was seen into causes, in the order in which they count, and consequences."""
    lasting = [event for event in events if not _passed(event)]
    causes = [event for event in lasting if event.symptom.kind is Kind.CAUSE]
    consequences = [event for event in lasting if event.symptom.kind is Kind.CONSEQUENCE]
    causes, explained = _unexplained(causes, lasting)
    groups: list[Group] = []
    rest = causes
    while rest:
        chosen = _first(rest)
        same = [event for event in rest if event.symptom is chosen.symptom]
        groups.append(Group(_located(_placed(chosen, same), same, [*explained, *consequences]), _parties(chosen, same)))
        rest = [event for event in rest if event.symptom is not chosen.symptom]
    return Blame(tuple(groups), (*consequences, *explained))


def _passed(event: Event) -> bool:
    """Whether what followed shows that it was no failure."""
    if event.symptom.passes:
        return event.ordinary_after > _MOST_AFTER_RETRY
    caught = event.symptom.kind is Kind.CAUSE and event.symptom.certainty is Certainty.OPEN and event.frame
    return bool(caught) and event.ordinary_after > _MOST_AFTER_EXCEPTION


def _unexplained(causes: list[Event], lasting: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The causes that no other one explains, and those that one does."""
    explaining = {name for event in lasting for name in event.symptom.explains if event.symptom.kind is Kind.CAUSE}
    told = [event for event in causes if event.symptom.certainty is not Certainty.OPEN]
    by_path: dict[str, list[Event]] = {}
    for event in told:
        by_path.setdefault(event.line.path, []).append(event)
    ranks = {event.party.rank for event in told} - {None}
    kept: list[Event] = []
    explained: list[Event] = []
    for event in causes:
        if event.symptom.id in explaining:
            explained.append(event)
        elif event.symptom.certainty is not Certainty.OPEN or not (
            event.party.rank in ranks or any(_one_failure(event, other) for other in by_path.get(event.line.path, ()))
        ):
            kept.append(event)
    return kept, explained


def _one_failure(event: Event, other: Event) -> bool:
    """Whether two lines of one file, the first of which says less, are about one failure."""
    ranks = {event.party.rank, other.party.rank} - {None}
    return len(ranks) < 2 and abs(event.line.line - other.line.line) <= _SAME_FAILURE_LINES


def _first(causes: Sequence[Event]) -> Event:
    """The cause that counts: the earliest; of those of one moment, or without times, the one that says most."""
    timed = [event for event in causes if event.moment is not None]
    earliest = timed[0] if timed else None
    for event in timed[1:]:
        assert earliest is not None
        apart = seconds_between(event.moment, earliest.moment)
        if apart is not None and apart > 0:
            earliest = event
    near = [
        event
        for event in causes
        if earliest is None
        or (apart := seconds_between(earliest.moment, event.moment)) is None
        or apart <= _SAME_MOMENT_S
        or (_WEIGHT[event.symptom.certainty] < _WEIGHT[Certainty.OPEN] <= _WEIGHT[earliest.symptom.certainty])
    ]
    order = {id(event): at for at, event in enumerate(causes)}

    def key(event: Event) -> tuple[int, int, float, int, int]:
        apart = seconds_between(earliest.moment, event.moment) if earliest is not None else None
        return (
            _WEIGHT[event.symptom.certainty],
            0 if event.first else 1,
            apart if apart is not None else 0.0,
            0 if event.party else 1,
            order[id(event)],
        )

    return min(near, key=key)


def _located(chosen: Event, same: Sequence[Event], others: Iterable[Event]) -> Event:
    """The deciding event with whom it befell, taken from another line where its own does not say it."""
    if chosen.party.rank is not None or chosen.symptom.subject is Subject.JOB:
        return chosen
    for event in same:
        if event.party.rank is not None and event.line.path == chosen.line.path and event.first:
            return replace(chosen, party=event.party)
    explained = [event for event in others if event.symptom.id in chosen.symptom.explains and event.party]
    if chosen.symptom.subject is Subject.OTHER or not chosen.party:
        firsts = [event for event in others if event.first and event.party.rank is not None]
        for event in (*explained, *firsts):
            if not chosen.party.host or event.party.host in ("", chosen.party.host):
                return replace(chosen, party=replace(event.party, host=event.party.host or chosen.party.host))
    return chosen


def _placed(chosen: Event, same: Sequence[Event]) -> Event:
    """The deciding event with a place in the user's own program, where one of the same failure has it."""
    if chosen.frame and not is_library(chosen.frame):
        return chosen
    frames = [event.frame for event in same if event.party == chosen.party and event.line.path == chosen.line.path]
    return replace(chosen, frame=next((frame for frame in frames if frame and not is_library(frame)), chosen.frame))


def _parties(chosen: Event, same: Sequence[Event]) -> tuple[Party, ...]:
    """Everybody with the same cause, the deciding one first and the others by rank."""
    others = {event.party for event in same if event.party and event.party != chosen.party}
    told = {party.rank for party in others | {chosen.party}}
    exact = [party for party in others if party.rank is not None or len(told) == 1]
    return (chosen.party, *sorted(exact, key=party_order)) if chosen.party else tuple(sorted(others, key=party_order))


def party_order(party: Party) -> tuple[int, int, str, str]:
    """A key that sorts parties by rank."""
    rank = party.rank if party.rank is not None else 1 << 30
    return (rank, party.local_rank if party.local_rank is not None else 1 << 30, party.host, party.role)


def speakers(files: Sequence[Scanned], names: Names) -> dict[Party, Word]:
    """The last line of everybody of whom there is a log or tagged lines."""
    found: dict[Party, Word] = {}

    def add(party: Party, word: Word) -> None:
        who = names.known(party)
        before = found.get(who)
        apart = seconds_between(before.moment, word.moment) if before is not None else None
        if before is None or apart is None or apart >= 0:
            found[who] = word

    for scanned in files:
        for party, word in scanned.writers.items():
            add(party, word)
        if scanned.party and not scanned.writers and scanned.last_line is not None:
            add(scanned.party, Word(scanned.last_line, scanned.last))
    return found
