"""Who meets whom in which round: disjoint pairs in as few rounds as there are, or a stated sample.

Disjoint pairs run at the same time without disturbing each other, so n nodes need n - 1 rounds (n when n is
odd) instead of one after another's n (n - 1) / 2 pairs. Every round can be written down by itself, so that a
sample of a few rounds of thousands of nodes costs no more than its own pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from preflight.lazy.dataclasses import dataclass
from preflight.request import Request

T = TypeVar("T")

#: Up to so many nodes every pair is tried.
ALL_PAIRS_UP_TO = 64
#: Above it each node meets so many others at least and at most; between them about `SAMPLED_PAIRS` pairs in all.
LEAST_ROUNDS, MOST_ROUNDS = 8, 48
SAMPLED_PAIRS = 24_000


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
            return f"a sample of {self.pairs} of {self.all_pairs} pairs, {len(self.rounds)} partners a node"
        return f"all {self.pairs} pairs" if self.pairs != 1 else "the one pair"


def rounds_of(count: int) -> int:
    """How many rounds it takes until every two of `count` items have met."""
    return 0 if count < 2 else count - 1 + count % 2


def one_round(count: int, number: int) -> Iterator[tuple[int, int]]:
    """The pairs of round `number` of `count` items (the circle method): those whose sum is twice `number`.

    With an odd count, one item rests in each round.
    """
    ring = rounds_of(count)
    if count % 2 == 0:
        yield number, ring
    for step in range(1, (ring - 1) // 2 + 1):
        yield (number + step) % ring, (number - step) % ring


def rounds(items: Sequence[T], most: int | None = None) -> Iterator[tuple[tuple[T, T], ...]]:
    """Every pair of `items` once, in rounds in which no item occurs twice; or an even selection of `most` rounds."""
    there = rounds_of(len(items))
    taken = there if most is None else min(most, there)
    for index in range(taken):
        number = index * there // taken
        yield tuple((items[a], items[b]) for a, b in one_round(len(items), number))


def enough_rounds(count: int) -> int:
    """In how many rounds so many nodes are tried: all there are, or those of the sample."""
    if count <= ALL_PAIRS_UP_TO:
        return rounds_of(count)
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, 2 * SAMPLED_PAIRS // count))


def schedule(names: Sequence[str], *, most_rounds: int | None = None) -> Schedule:
    """The rounds for these nodes; above `ALL_PAIRS_UP_TO` of them (or `most_rounds`) an even selection.

    Each selected round still pairs every node (but one of an odd number), so a node with a fault of its own is
    met in every round; only a fault between two particular nodes can be missed.
    """
    most = enough_rounds(len(names)) if most_rounds is None else most_rounds
    found = tuple(rounds(names, most))
    return Schedule(found, sum(len(pairs) for pairs in found), len(names) * (len(names) - 1) // 2)


def disjoint(requests: Iterable[Request]) -> tuple[tuple[Request, ...], ...]:
    """Requests between nodes put into rounds in which no node takes part in two.

    A request goes into the first round that has all its nodes free, so requests that were planned in the order of
    `schedule` come back in its rounds. Those of the same nodes stay together only if they are one request.
    """
    found: list[list[Request]] = []
    busy: dict[str, set[int]] = {}
    for request in requests:
        taken = [busy.setdefault(name, set()) for name in (request.node, *request.peers)]
        number = 0
        while any(number in rounds_taken for rounds_taken in taken):
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(request)
        for rounds_taken in taken:
            rounds_taken.add(number)
    return tuple(tuple(item) for item in found)
