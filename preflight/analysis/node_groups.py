"""Which nodes are tried together: pairs in rounds, or smaller and smaller groups until one hangs.

Disjoint pairs run at the same time without disturbing each other, so n nodes need n - 1 rounds (n when n is odd)
instead of n (n - 1) / 2 pairs in sequence. Every round can be computed separately, so a sample of a few rounds over
thousands of nodes costs no more than its own pairs.

Everything is derived from the trials so far, so a recording leads to the same answer. Groups that are tried at
the same time share no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Group = tuple[str, ...]
#: The result of each group that was tried: whether it completed; None if that is unknown.
Trials = Mapping[frozenset[str], bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to which the trials lead.

    `kind`: `nodes` (each of `nodes` hangs together with a healthy node), `between` (the two of `nodes` hang together,
    and each completes with another), `group` (these hang, and no smaller part of them that was tried does), `whole`
    (all nodes together hang, but no part of them does), `none` (none of the suspects hangs when tried again), `open`
    (time ran out).
    """

    kind: str
    nodes: Group
    trials: int


def next_groups(nodes: Group, trials: Trials, *, suspects: Group = (), min_size: int = 2) -> tuple[Group, ...]:
    """The groups to try next, all at once; empty when the answer is known.

    Args:
        nodes: all nodes, in rank order; together they hang.
        suspects: nodes that are already blamed; if there are any, only they are tried again.
        least: the smallest meaningful group; 1 where one node runs several ranks.
    """
    return _walk(nodes, trials, suspects, min_size)[0]


def answer(nodes: Group, trials: Trials, *, suspects: Group = (), min_size: int = 2) -> Answer | None:
    """The answer from the trials so far; None when nothing was tried."""
    if not trials:
        return None
    kind, named = _walk(nodes, trials, suspects, min_size)[1:]
    return Answer(kind, named, len(trials))


def _walk(nodes: Group, trials: Trials, suspects: Group, min_size: int) -> tuple[tuple[Group, ...], str, Group]:
    """The groups to try next, and the answer if the trials stop here."""
    if suspects and 1 <= len(suspects) <= 2:
        return _retest_suspects(nodes, trials, suspects)
    failing = nodes
    while len(failing) > max(2, min_size):
        smaller: Group | None = None
        for parts in _splits(failing, min_size):
            untried = tuple(part for part in parts if frozenset(part) not in trials)
            if untried:
                return untried, "open", failing
            hanging = [part for part in parts if trials[frozenset(part)] is False]
            if hanging:
                smaller = hanging[0]
                break
        if smaller is None:
            return (), "whole" if failing == nodes else "group", failing
        failing = smaller
    if len(failing) == 2 and failing != nodes:
        return _retest_suspects(nodes, trials, failing)
    return (), "group", failing


def _splits(group: Group, min_size: int) -> Iterator[tuple[Group, ...]]:
    """Three ways to split a group in two: into halves, into every other node, and by whether the first two splits agree
    on a node.

    In one of them any two nodes are in the same part, so a pair that hangs is never missed.
    """
    half = (len(group) + 1) // 2
    upper = [index >= half for index in range(len(group))]
    odd = [index % 2 == 1 for index in range(len(group))]
    differ = [a != b for a, b in zip(upper, odd, strict=True)]
    for side in (upper, odd, differ):
        parts = [tuple(name for name, at in zip(group, side, strict=True) if at is of) for of in (False, True)]
        kept = tuple(part for part in parts if len(part) >= min_size)
        if kept:
            yield kept


def _retest_suspects(nodes: Group, trials: Trials, suspects: Group) -> tuple[tuple[Group, ...], str, Group]:
    """Pair each suspect with a node that is not known to be faulty; a suspect that hangs again is to blame."""
    others = [node for node in nodes if node not in suspects]
    sound = {node for group, passed in trials.items() if passed for node in group}
    others.sort(key=lambda node: node not in sound)
    if not others:
        return (), "between" if len(suspects) == 2 else "nodes", suspects
    pairs = {suspect: (suspect, others[index % len(others)]) for index, suspect in enumerate(suspects)}
    wanted = [tuple(sorted(pair, key=nodes.index)) for pair in pairs.values()]
    rest = tuple(node for node in others if node not in {name for pair in wanted for name in pair})
    if len(suspects) == 1 and len(rest) > 1:
        wanted.append(rest)
    untried = [group for group in wanted if frozenset(group) not in trials]
    if untried:
        return _disjoint(untried), "open", suspects
    hanging = tuple(s for s, pair in pairs.items() if trials[frozenset(pair)] is False)
    if hanging:
        return (), "nodes", hanging
    if len(suspects) == 2:
        return (), "between", suspects
    if frozenset(rest) in trials and trials[frozenset(rest)] is False:
        return (), "group", rest
    return (), "none", suspects


def _disjoint(groups: Sequence[Group]) -> tuple[Group, ...]:
    """As many of these groups as possible, such that no two share a node."""
    found: list[Group] = []
    for group in groups:
        if not {name for taken in found for name in taken} & set(group):
            found.append(group)
    return tuple(found)
