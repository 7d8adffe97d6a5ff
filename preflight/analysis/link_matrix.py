"""Finds the node or pair that explains the failing cells of a reachability matrix.

One closed port fails for every partner, and one slow card is slow towards each partner. Reported cell by cell, this is
noise; reported as a row or a column, it names the culprit. The kind of measurement is irrelevant here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from preflight.model.requests import Request

T = TypeVar("T")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """The result of one node's test of another; the label names the kind of test."""

    source: str
    peer: str
    label: str
    result: T
    at_s: float | None = None

    @property
    def pair(self) -> Pair:
        """Return the tested pair, source first."""
        return (self.source, self.peer)


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """Failing cells with one explanation.

    `kind`: `everybody` (every cell fails), `inbound` (no other node reaches `node`), `outbound` (`node` reaches no
    other), `isolated` (both), `around` (several cells, all of `node`), `pair` (`node` to `other`, `mutual` if the
    reverse direction fails too).
    """

    kind: str
    cells: tuple[Cell[T], ...]
    node: str = ""
    other: str = ""
    mutual: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes to name in a finding."""
        if self.kind == "everybody":
            return tuple(sorted({name for cell in self.cells for name in cell.pair}))
        return (self.node, self.other) if self.other else (self.node,)


@dataclass(frozen=True, slots=True)
class _Explanation:
    """A kind of shape at a node (or between two nodes), and the pairs that it covers."""

    kind: str
    node: str = ""
    other: str = ""

    def covers(self, pair: Pair) -> bool:
        """Return whether the explanation includes a cell of this pair, with any label."""
        if self.kind == "everybody":
            return True
        if self.kind == "pair":
            return set(pair) == {self.node, self.other}
        if self.kind == "around":
            return self.node in pair
        return (self.kind != "outbound" and pair[1] == self.node) or (self.kind != "inbound" and pair[0] == self.node)


def shapes(cells: Sequence[Cell[T]], is_bad: Callable[[Cell[T]], bool]) -> tuple[Shape[T], ...]:
    """Return the fewest whole rows and columns that explain the bad cells, then single pairs.

    The label with the most tested pairs is explained first; bad cells of other labels in the same row or column belong
    to the same fault.
    """
    bad = [cell for cell in cells if is_bad(cell)]
    if not bad:
        return ()
    tried: dict[str, set[Pair]] = {}
    for cell in cells:
        tried.setdefault(cell.label, set()).add((cell.source, cell.peer))
    remaining = _Unexplained(bad)
    found: list[Shape[T]] = []
    for label in sorted(tried, key=lambda label: -len(tried[label])):
        for reason in _explain(remaining.pairs_of(label), tried[label]):
            covered = remaining.take(reason)
            if covered:
                mutual = reason.kind == "pair" and len({cell.pair for cell in covered}) > 1
                found.append(Shape(reason.kind, tuple(covered), reason.node, reason.other, mutual))
    return tuple(found)


class _Unexplained(Generic[T]):
    """The bad cells that have no explanation yet, indexed by node."""

    def __init__(self, cells: Iterable[Cell[T]]) -> None:
        self._cells = dict(enumerate(cells))
        self._of_node: dict[str, dict[int, None]] = {}
        for number, cell in self._cells.items():
            for name in cell.pair:
                self._of_node.setdefault(name, {})[number] = None

    def pairs_of(self, label: str) -> set[Pair]:
        """Return the pairs with an unexplained cell of this label."""
        return {cell.pair for cell in self._cells.values() if cell.label == label}

    def take(self, reason: _Explanation) -> list[Cell[T]]:
        near = self._of_node.get(reason.node, {}) if reason.node else self._cells
        numbers = [n for n in near if n in self._cells and reason.covers(self._cells[n].pair)]
        return [self._cells.pop(number) for number in sorted(numbers)]


def _explain(bad: set[Pair], tried: set[Pair]) -> Iterator[_Explanation]:
    """Yield the explanations of `bad`, widest first."""
    if not bad:
        return
    if bad == tried and len({pair[1] for pair in tried}) > 2:
        yield _Explanation("everybody")
        return
    lines = _full_lines(bad, tried)
    common = set.intersection(*({*pair} for pair in bad))
    if len(bad) > 1 and len(common) == 1 and not any(bad <= line for line in lines.values()):
        yield _Explanation("around", common.pop())
        return
    remaining = set(bad)
    yield from _best_lines(lines, remaining)
    for source, peer in sorted(remaining):
        if (source, peer) in remaining:
            yield _Explanation("pair", source, peer)
            remaining -= {(source, peer), (peer, source)}


def _best_lines(lines: dict[_Explanation, set[Pair]], remaining: set[Pair]) -> Iterator[_Explanation]:
    """Yield lines that explain at least two of the remaining pairs, which are removed; the line that explains most
    comes first.

    The number of pairs that a line explains never grows, so a line that is popped with an unchanged weight is the
    widest.
    """

    def weight(reason: _Explanation) -> tuple[int, int, str]:
        return (-len(lines[reason] & remaining), -_ORDER[reason.kind], reason.node)

    waiting = [(weight(reason), index, reason) for index, reason in enumerate(lines)]
    heapq.heapify(waiting)
    while waiting:
        before, index, reason = heapq.heappop(waiting)
        now = weight(reason)
        if now != before:
            heapq.heappush(waiting, (now, index, reason))
        elif now[0] > -2:
            return
        else:
            yield reason
            remaining -= lines[reason]


_ORDER = {"isolated": 0, "outbound": 1, "inbound": 2}


def _full_lines(bad: set[Pair], tried: set[Pair]) -> dict[_Explanation, set[Pair]]:
    """Return rows and columns of at least two cells in which every cell fails."""
    rows: dict[str, set[Pair]] = {}
    columns: dict[str, set[Pair]] = {}
    for pair in tried:
        rows.setdefault(pair[0], set()).add(pair)
        columns.setdefault(pair[1], set()).add(pair)
    found: dict[_Explanation, set[Pair]] = {}
    for node in sorted({name for pair in bad for name in pair}):
        row, column = rows.get(node, set()), columns.get(node, set())
        full_row = len(row) > 1 and row <= bad
        full_column = len(column) > 1 and column <= bad
        if full_row and full_column:
            found[_Explanation("isolated", node)] = row | column
        elif full_row:
            found[_Explanation("outbound", node)] = row
        elif full_column:
            found[_Explanation("inbound", node)] = column
    return found


# Selection of nodes to try together: pairs in rounds, or smaller and smaller groups until one hangs. Disjoint pairs run
# at the same time without disturbing each other, so n nodes need n - 1 rounds (n when n is odd) instead of n (n -
# 1) / 2 pairs in sequence. Every round can be computed separately, so a sample of a few rounds over thousands of
# nodes costs no more than its own pairs. Everything is derived from the trials so far, so a recording leads to the
# same answer. Groups that are tried at the same time share no node.


#: Largest number of nodes for which every pair is tested.
ALL_PAIRS_UP_TO = 64
#: For more nodes, the minimum and maximum number of peers per node; in between about `SAMPLED_PAIRS` pairs in total.
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
        """Return whether some pairs are left out."""
        return self.pairs < self.all_pairs

    @property
    def statement(self) -> str:
        """Return the coverage, for the report."""
        if self.is_sample:
            return f"a sample of {self.pairs} of {self.all_pairs} pairs, {len(self.rounds)} partners per node"
        return f"all {self.pairs} pairs" if self.pairs != 1 else "the one pair"


def full_round_count(count: int) -> int:
    """Return the number of rounds until every two of `count` items have been paired."""
    return 0 if count < 2 else count - 1 + count % 2


def pairs_of_round(count: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of round `number` of `count` items (the circle method): those whose sum is twice `number`.

    With an odd count, one item rests in each round.
    """
    ring = full_round_count(count)
    if count % 2 == 0:
        yield number, ring
    for step in range(1, (ring - 1) // 2 + 1):
        yield (number + step) % ring, (number - step) % ring


def rounds(items: Sequence[T], limit: int | None = None) -> Iterator[tuple[tuple[T, T], ...]]:
    """Yield every pair of `items` once, in rounds in which no item occurs twice; or `limit` evenly spaced rounds."""
    available = full_round_count(len(items))
    used = available if limit is None else min(limit, available)
    for index in range(used):
        number = index * available // used
        yield tuple((items[a], items[b]) for a, b in pairs_of_round(len(items), number))


def round_count(count: int) -> int:
    """Return the number of rounds for this many nodes: all of them, or those of the sample."""
    if count <= ALL_PAIRS_UP_TO:
        return full_round_count(count)
    return min(MAX_ROUNDS, max(LEAST_ROUNDS, 2 * SAMPLED_PAIRS // count))


def schedule(names: Sequence[str], *, max_rounds: int | None = None) -> Schedule:
    """Return the rounds for these nodes; with more than `ALL_PAIRS_UP_TO` of them (or with `max_rounds`) an evenly
    spaced selection.

    Each selected round still pairs every node (all but one if their number is odd), so a fault of a single node shows
    in every round; only a fault between two particular nodes can be missed.
    """
    limit = round_count(len(names)) if max_rounds is None else max_rounds
    found = tuple(rounds(names, limit))
    return Schedule(found, sum(len(pairs) for pairs in found), len(names) * (len(names) - 1) // 2)


def disjoint(requests: Iterable[Request]) -> tuple[tuple[Request, ...], ...]:
    """Arrange requests between nodes in rounds such that no node has two requests in a round.

    A request goes into the first round where all its nodes are free, so requests planned in the order of `schedule` get
    its rounds. Requests of the same nodes stay together only if they are one request.
    """
    planned_rounds: list[list[Request]] = []
    busy: dict[str, set[int]] = {}
    for request in requests:
        used = [busy.setdefault(name, set()) for name in (request.node, *request.peers)]
        number = 0
        while any(number in rounds_taken for rounds_taken in used):
            number += 1
        if number == len(planned_rounds):
            planned_rounds.append([])
        planned_rounds[number].append(request)
        for rounds_taken in used:
            rounds_taken.add(number)
    return tuple(tuple(item) for item in planned_rounds)


Group = tuple[str, ...]
#: The result of each group that was tried: whether it completed; None if it did not end, or never started.
Trials = Mapping[frozenset[str], bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that follows from the trials.

    Args:
        kind: `nodes` (each of `nodes` hangs with a node that completes without it), `between` (the two of `nodes` hang
            together, and each completes with another), `group` (these hang, and no smaller part of them that was tried
            does), `whole` (all nodes together hang again, but no part of them does), `every` (every group that was
            tried hangs), `none` (nothing hangs again, not even all nodes together), `open` (the trials that ended do
            not decide it).
        trials: the number of trials of smaller groups that ended.
        sound: the nodes that completed a trial.
        hanging: the groups that hung.
        unfinished: the groups that were tried without a result.
        untried: the groups that would have been tried next.
    """

    kind: str
    nodes: Group
    trials: int
    sound: Group = ()
    hanging: tuple[Group, ...] = ()
    unfinished: tuple[Group, ...] = ()
    untried: tuple[Group, ...] = ()


def next_groups(nodes: Group, trials: Trials, *, suspects: Group = (), min_size: int = 2) -> tuple[Group, ...]:
    """Return the groups to try next, all at once; empty when the answer is known.

    Args:
        nodes: all nodes, in rank order; together they hang.
        suspects: nodes that are already blamed. One or two of them are tried again first; of more, the groups are made
            so that those of suspects come first.
        min_size: the smallest meaningful group; 1 where one node runs several ranks.
    """
    return _walk(nodes, trials, suspects, min_size)[0]


def answer(nodes: Group, trials: Trials, *, suspects: Group = (), min_size: int = 2) -> Answer | None:
    """Return the answer from the trials so far; None when nothing was tried."""
    if not trials:
        return None
    untried, kind, named = _walk(nodes, trials, suspects, min_size)

    def trials_with(result: bool | None) -> tuple[Group, ...]:
        return tuple(_sort_nodes(group, nodes) for group, passed in trials.items() if passed is result)

    sound = _sound_nodes(trials)
    ended = sum(passed is not None and len(group) < len(nodes) for group, passed in trials.items())
    return Answer(
        kind, named, ended, tuple(n for n in nodes if n in sound), trials_with(False), trials_with(None), untried
    )


def _sort_nodes(group: Iterable[str], nodes: Group) -> Group:
    members = set(group)
    return tuple(node for node in nodes if node in members)


def _sound_nodes(trials: Trials) -> set[str]:
    """Return the nodes that completed a trial."""
    return {name for group, passed in trials.items() if passed for name in group}


#: The groups to try next, and the answer if the trials stop here: its kind and its nodes.
_Step = tuple[tuple[Group, ...], str, Group]


def _walk(nodes: Group, trials: Trials, suspects: Group, min_size: int) -> _Step:
    if 1 <= len(suspects) <= 2:
        step = _retest_suspects(nodes, trials, suspects)
        if step is not None:
            return step
    return _bisect(nodes, trials, suspects, min_size)


def _bisect(nodes: Group, trials: Trials, suspects: Group, min_size: int) -> _Step:
    """Try parts of all nodes, then parts of the first that hangs, and all nodes again if none does."""
    failing = (*_sort_nodes(suspects, nodes), *(node for node in nodes if node not in suspects))
    while len(failing) > max(2, min_size):
        smaller: Group | None = None
        is_open = False
        for parts in _splits(failing, min_size):
            untried = tuple(_sort_nodes(part, nodes) for part in parts if frozenset(part) not in trials)
            if untried:
                return untried, "open", _sort_nodes(failing, nodes)
            is_open = is_open or any(trials[frozenset(part)] is None for part in parts)
            hanging = [part for part in parts if trials[frozenset(part)] is False]
            if hanging:
                smaller = hanging[0]
                break
        if smaller is None:
            if not is_open and len(failing) == len(nodes):
                return _retest_whole(nodes, trials, suspects or nodes)
            return (), "open" if is_open else "group", _sort_nodes(failing, nodes)
        failing = smaller
    if len(failing) == 2 and len(nodes) > 2:
        return _settle_pair(nodes, trials, _sort_nodes(failing, nodes))
    if len(failing) == len(nodes):
        return _retest_whole(nodes, trials, suspects or nodes)
    return (), "group", _sort_nodes(failing, nodes)


def _splits(group: Group, min_size: int) -> Iterator[tuple[Group, ...]]:
    """Yield three ways to split a group in two: into halves, by whether the other two splits agree on a node, and into
    every other node.

    Any two nodes are in the same part of at least one split, so a pair that hangs is never missed. For four nodes the
    first two splits are the neighbours in a ring of them, which is what most collectives connect.
    """
    half = (len(group) + 1) // 2
    upper = [index >= half for index in range(len(group))]
    odd = [index % 2 == 1 for index in range(len(group))]
    differ = [a != b for a, b in zip(upper, odd, strict=True)]
    for side in (upper, differ, odd):
        parts = [tuple(name for name, at in zip(group, side, strict=True) if at is of) for of in (False, True)]
        kept = tuple(part for part in parts if len(part) >= min_size)
        if kept:
            yield kept


def _retest_suspects(nodes: Group, trials: Trials, suspects: Group) -> _Step | None:
    """Try two suspects together, or one with another node, and at the same time the rest without them.

    Suspects may only be witnesses of a fault that is elsewhere: if they complete without the rest, the fault is there.
    Returns None if nothing hangs, so that the fault may be between any two of all nodes.
    """
    others = tuple(node for node in nodes if node not in suspects)
    if not others:
        return None
    # Of three nodes, two others than the suspect: if they complete, they are cleared, and the next trial decides.
    first = suspects if len(suspects) == 2 else others if len(others) == 2 else (suspects[0], others[0])
    rest = tuple(node for node in nodes if node not in first)
    wanted = [first, rest] if len(rest) > 1 else [first]
    untried = _pick_untried(wanted, trials, nodes)
    if untried:
        return untried, "open", suspects
    first_passed, rest_passed = (trials.get(frozenset(group)) for group in (first, rest))
    if first_passed is False:
        return _settle_pair(nodes, trials, first) if rest else ((), "whole", suspects)
    if rest_passed is False:
        return _settle_pair(nodes, trials, rest) if len(rest) == 2 else ((), "group", rest)
    if first_passed is None or (len(rest) > 1 and rest_passed is None):
        return (), "open", suspects
    # All complete, each in its own part: the fault may be between the parts, or in a node that is a part by itself.
    across = [(node, rest[index % len(rest)]) for index, node in enumerate(first)] if rest else []
    if len(suspects) == 1 and len(rest) > 1:
        across = []
    for pair in across:
        if trials.get(frozenset(pair)) is False:
            return _settle_pair(nodes, trials, pair)
    untried = _pick_untried(across, trials, nodes)
    if untried:
        return untried, "open", suspects
    if any(trials[frozenset(pair)] is None for pair in across):
        return (), "open", suspects
    return None


def _retest_whole(nodes: Group, trials: Trials, named: Group) -> _Step:
    """Try all nodes again: a fault that needs all of them is not the same as one that happens only at times."""
    if frozenset(nodes) not in trials:
        return (nodes,), "open", named
    passed = trials[frozenset(nodes)]
    return (), "open" if passed is None else "none" if passed else "whole", named


def _settle_pair(nodes: Group, trials: Trials, pair: Group) -> _Step:
    """Try each of two nodes that hang together with another one, unless it has completed a trial before."""
    others = [node for node in nodes if node not in pair]
    sound = _sound_nodes(trials)
    others.sort(key=lambda node: node not in sound)
    tests = {node: (node, others[index % len(others)]) for index, node in enumerate(pair) if node not in sound}
    # A test is not repeated, though later trials may show that other nodes are better witnesses.
    for node in tests:
        made = [other for other in others if frozenset((node, other)) in trials]
        if made:
            tests[node] = (node, made[0])
    untried = _pick_untried(tests.values(), trials, nodes)
    if untried:
        return untried, "open", pair
    if not tests:
        return (), "between", pair
    if any(trials[frozenset(test)] is None for test in tests.values()):
        return (), "open", pair
    # Each of these hangs with two others, which is significant only if some group without it completes.
    bad = tuple(tests)
    rest = tuple(node for node in nodes if node not in bad)
    if sound:
        return (), "nodes", bad
    if len(rest) > 1:
        untried = _pick_untried([rest], trials, nodes)
        if untried:
            return untried, "open", bad
        if trials[frozenset(rest)] is None:
            return (), "open", bad
    return (), "every", nodes


def _pick_untried(groups: Iterable[Group], trials: Trials, nodes: Group) -> tuple[Group, ...]:
    """Return as many untried groups as possible such that no two share a node."""
    found: list[Group] = []
    for group in groups:
        if frozenset(group) not in trials and not {name for taken in found for name in taken} & set(group):
            found.append(_sort_nodes(group, nodes))
    return tuple(found)
