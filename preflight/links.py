"""Who dials whom in which round: disjoint pairs in as few rounds as there are, or a stated sample.

Disjoint pairs run at the same time without disturbing each other, so n nodes need n - 1 rounds (n when n is
odd) instead of one after another's n (n - 1) / 2 pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from preflight.request import Request

T = TypeVar("T")
Pair = tuple[T, T]

#: With one round in about 0.1 s on healthy links, this many stay within the 10 s of the link stage.
MOST_ROUNDS = 48


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds of disjoint pairs of node names, and what share of all pairs they are."""

    rounds: tuple[tuple[tuple[str, str], ...], ...]
    pairs: int
    all_pairs: int

    @property
    def is_sample(self) -> bool:
        """Whether some pairs are left out."""
        return self.pairs < self.all_pairs

    @property
    def statement(self) -> str:
        """What is covered, for the report."""
        if self.is_sample:
            return f"a sample of {self.pairs} of {self.all_pairs} pairs, in {len(self.rounds)} rounds"
        return f"all {self.pairs} pairs" if self.pairs != 1 else "the one pair"


def rounds(items: Sequence[T]) -> tuple[tuple[tuple[T, T], ...], ...]:
    """Every pair of `items` once, in rounds in which no item occurs twice (the circle method).

    n even gives n - 1 rounds of n / 2 pairs; n odd gives n rounds in each of which one item rests.
    """
    if len(items) < 2:
        return ()
    ring: list[int | None] = list(range(len(items)))
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    found: list[tuple[tuple[T, T], ...]] = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append(tuple((items[a], items[b]) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(found)


def schedule(names: Sequence[str], *, most_rounds: int = MOST_ROUNDS) -> Schedule:
    """The rounds for these nodes; above `most_rounds` an even selection of them.

    Each selected round still pairs every node (but one of an odd number), so a node with a fault of its own is
    met in every round; only a fault between two particular nodes can be missed.
    """
    every = rounds(names)
    total = len(names) * (len(names) - 1) // 2
    if len(every) > most_rounds:
        every = tuple(every[index * len(every) // most_rounds] for index in range(most_rounds))
    return Schedule(every, sum(len(pairs) for pairs in every), total)


def disjoint(requests: Iterable[Request]) -> tuple[tuple[Request, ...], ...]:
    """Requests between nodes put into rounds: both directions of a pair together, no node in two pairs at once.

    A request goes into the first round that still has both its nodes free, so requests that were planned in the
    order of `schedule` come back in its rounds.
    """
    pairs: dict[frozenset[str], list[Request]] = {}
    for request in requests:
        pairs.setdefault(frozenset((request.node, request.peer)), []).append(request)
    found: list[list[Request]] = []
    busy: list[set[str]] = []
    for nodes, both in pairs.items():
        for index, taken in enumerate(busy):
            if not taken & nodes:
                found[index].extend(both)
                taken.update(nodes)
                break
        else:
            found.append(list(both))
            busy.append(set(nodes))
    return tuple(tuple(item) for item in found)
