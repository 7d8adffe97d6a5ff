"""Assigns pairs of nodes to rounds: disjoint pairs in as few rounds as possible, or a sample that is reported as such.

Disjoint pairs run at the same time without disturbing each other, so n nodes need n - 1 rounds (n when n is odd)
instead of n (n - 1) / 2 pairs in sequence. Every round can be computed separately, so a sample of a few rounds over
thousands of nodes costs no more than its own pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from preflight.model.requests import Request

T = TypeVar("T")

#: Up to this many nodes every pair is tested.
ALL_PAIRS_UP_TO = 64
#: Above it, the minimum and maximum number of peers per node; in between about `SAMPLED_PAIRS` pairs in total.
LEAST_ROUNDS, MAX_ROUNDS = 8, 48
SAMPLED_PAIRS = 24_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds of disjoint pairs of node names, and their share of all pairs."""

    rounds: tuple[tuple[tuple[str, str], ...], ...]
    pairs: int
    all_pairs: int

    @property
    def is_sample(self) -> bool:
        """Whether some pairs are left out."""
        return self.pairs < self.all_pairs

    @property
    def statement(self) -> str:
        """The coverage, for the report."""
        if self.is_sample:
            return f"a sample of {self.pairs} of {self.all_pairs} pairs, {len(self.rounds)} partners per node"
        return f"all {self.pairs} pairs" if self.pairs != 1 else "the one pair"


def full_round_count(count: int) -> int:
    """The number of rounds until every two of `count` items have been paired."""
    return 0 if count < 2 else count - 1 + count % 2


def pairs_of_round(count: int, number: int) -> Iterator[tuple[int, int]]:
    """The pairs of round `number` of `count` items (the circle method): those whose sum is twice `number`.

    With an odd count, one item rests in each round.
    """
    ring = full_round_count(count)
    if count % 2 == 0:
        yield number, ring
    for step in range(1, (ring - 1) // 2 + 1):
        yield (number + step) % ring, (number - step) % ring


def rounds(items: Sequence[T], limit: int | None = None) -> Iterator[tuple[tuple[T, T], ...]]:
    """Every pair of `items` once, in rounds in which no item occurs twice; or `limit` evenly spaced rounds."""
    available = full_round_count(len(items))
    used = available if limit is None else min(limit, available)
    for index in range(used):
        number = index * available // used
        yield tuple((items[a], items[b]) for a, b in pairs_of_round(len(items), number))


def round_count(count: int) -> int:
    """The number of rounds for this many nodes: all of them, or those of the sample."""
    if count <= ALL_PAIRS_UP_TO:
        return full_round_count(count)
    return min(MAX_ROUNDS, max(LEAST_ROUNDS, 2 * SAMPLED_PAIRS // count))


def schedule(names: Sequence[str], *, max_rounds: int | None = None) -> Schedule:
    """The rounds for these nodes; with more than `ALL_PAIRS_UP_TO` of them (or with `max_rounds`) an evenly spaced
    selection.

    Each selected round still pairs every node (all but one if their number is odd), so a fault of a single node shows
    in every round; only a fault between two particular nodes can be missed.
    """
    limit = round_count(len(names)) if max_rounds is None else max_rounds
    found = tuple(rounds(names, limit))
    return Schedule(found, sum(len(pairs) for pairs in found), len(names) * (len(names) - 1) // 2)


def disjoint(requests: Iterable[Request]) -> tuple[tuple[Request, ...], ...]:
    """Arrange requests between nodes in rounds in which no node has two.

    A request goes into the first round in which all its nodes are free, so requests planned in the order of `schedule`
    get its rounds. Those of the same nodes stay together only if they are one request.
    """
    found: list[list[Request]] = []
    busy: dict[str, set[int]] = {}
    for request in requests:
        used = [busy.setdefault(name, set()) for name in (request.node, *request.peers)]
        number = 0
        while any(number in rounds_taken for rounds_taken in used):
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(request)
        for rounds_taken in used:
            rounds_taken.add(number)
    return tuple(tuple(item) for item in found)
