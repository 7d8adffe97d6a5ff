"""Finds the node or pair that explains the failing cells of a reachability matrix.

A closed port fails for every partner, and a slow card is slow towards each partner. Reported cell by cell, such a fault
is noise; reported as a row or a column, it names the culprit. The kind of measurement is irrelevant here.
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
    """The result of one node's test of another node. The label names the kind of test."""

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

    Args:
        kind: `everybody` (every cell fails), `inbound` (no other node reaches `node`), `outbound` (`node` reaches no
            other node), `isolated` (both), `around` (several cells, all of `node`), `pair` (`node` to `other`).
        cells: the failing cells.
        node, other: the nodes of the explanation; empty if the kind has none.
        mutual: whether both directions of a pair fail.
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

    The label with the most tested pairs is explained first. Bad cells of other labels in the same row or column belong
    to the same fault.
    """
    bad_cells = [cell for cell in cells if is_bad(cell)]
    if not bad_cells:
        return ()
    pairs_by_label: dict[str, set[Pair]] = {}
    for cell in cells:
        pairs_by_label.setdefault(cell.label, set()).add((cell.source, cell.peer))
    remaining = _Unexplained(bad_cells)
    shape_list: list[Shape[T]] = []
    for label in sorted(pairs_by_label, key=lambda label: -len(pairs_by_label[label])):
        for explanation in _explain(remaining.pairs_of(label), pairs_by_label[label]):
            covered_cells = remaining.take_covered(explanation)
            if covered_cells:
                is_mutual = explanation.kind == "pair" and len({cell.pair for cell in covered_cells}) > 1
                shape_list.append(
                    Shape(explanation.kind, tuple(covered_cells), explanation.node, explanation.other, is_mutual)
                )
    return tuple(shape_list)


class _Unexplained(Generic[T]):
    """The bad cells that have no explanation yet, with an index by node."""

    def __init__(self, cells: Iterable[Cell[T]]) -> None:
        self._cells = dict(enumerate(cells))
        self._numbers_by_node: dict[str, dict[int, None]] = {}
        for number, cell in self._cells.items():
            for name in cell.pair:
                self._numbers_by_node.setdefault(name, {})[number] = None

    def pairs_of(self, label: str) -> set[Pair]:
        return {cell.pair for cell in self._cells.values() if cell.label == label}

    def take_covered(self, explanation: _Explanation) -> list[Cell[T]]:
        candidate_numbers = self._numbers_by_node.get(explanation.node, {}) if explanation.node else self._cells
        numbers = [n for n in candidate_numbers if n in self._cells and explanation.covers(self._cells[n].pair)]
        return [self._cells.pop(number) for number in sorted(numbers)]


def _explain(bad_pairs: set[Pair], tested_pairs: set[Pair]) -> Iterator[_Explanation]:
    """Yield the explanations of the bad pairs, the widest first."""
    if not bad_pairs:
        return
    if bad_pairs == tested_pairs and len({pair[1] for pair in tested_pairs}) > 2:
        yield _Explanation("everybody")
        return
    pairs_by_line = _full_lines(bad_pairs, tested_pairs)
    common_nodes = set.intersection(*({*pair} for pair in bad_pairs))
    if len(bad_pairs) > 1 and len(common_nodes) == 1 and not any(bad_pairs <= line for line in pairs_by_line.values()):
        yield _Explanation("around", common_nodes.pop())
        return
    remaining = set(bad_pairs)
    yield from _best_lines(pairs_by_line, remaining)
    for source, peer in sorted(remaining):
        if (source, peer) in remaining:
            yield _Explanation("pair", source, peer)
            remaining -= {(source, peer), (peer, source)}


def _best_lines(pairs_by_line: dict[_Explanation, set[Pair]], remaining: set[Pair]) -> Iterator[_Explanation]:
    """Yield the row or column that explains the most remaining pairs and remove these, until none explains two."""

    def weight(explanation: _Explanation) -> tuple[int, int, str]:
        return (-len(pairs_by_line[explanation] & remaining), -_KIND_ORDER[explanation.kind], explanation.node)

    queue = [(weight(explanation), index, explanation) for index, explanation in enumerate(pairs_by_line)]
    heapq.heapify(queue)
    while queue:
        old_weight, index, explanation = heapq.heappop(queue)
        new_weight = weight(explanation)
        if new_weight != old_weight:
            heapq.heappush(queue, (new_weight, index, explanation))
        elif new_weight[0] > -2:
            return
        else:
            yield explanation
            remaining -= pairs_by_line[explanation]


_KIND_ORDER = {"isolated": 0, "outbound": 1, "inbound": 2}


def _full_lines(bad_pairs: set[Pair], tested_pairs: set[Pair]) -> dict[_Explanation, set[Pair]]:
    """Return rows and columns of at least two cells in which every cell fails."""
    rows: dict[str, set[Pair]] = {}
    columns: dict[str, set[Pair]] = {}
    for pair in tested_pairs:
        rows.setdefault(pair[0], set()).add(pair)
        columns.setdefault(pair[1], set()).add(pair)
    pairs_by_line: dict[_Explanation, set[Pair]] = {}
    for node in sorted({name for pair in bad_pairs for name in pair}):
        row, column = rows.get(node, set()), columns.get(node, set())
        is_full_row = len(row) > 1 and row <= bad_pairs
        is_full_column = len(column) > 1 and column <= bad_pairs
        if is_full_row and is_full_column:
            pairs_by_line[_Explanation("isolated", node)] = row | column
        elif is_full_row:
            pairs_by_line[_Explanation("outbound", node)] = row
        elif is_full_column:
            pairs_by_line[_Explanation("inbound", node)] = column
    return pairs_by_line


# Selection of nodes to try together: pairs in rounds, or smaller and smaller groups until one hangs. Disjoint pairs run
# at the same time without disturbing each other, so n nodes need n - 1 rounds (n if n is odd) instead of
# n (n - 1) / 2 pairs in sequence. Every round can be computed separately, so a sample of a few rounds over thousands of
# nodes costs no more than its own pairs. The next trials follow only from the trials so far, so a recording leads to
# the same answer. Groups that are tried at the same time share no node.


#: The largest number of nodes for which every pair is tested.
ALL_PAIRS_UP_TO = 64
#: For more nodes, the smallest and largest number of peers per node; in between, about `SAMPLED_PAIRS` pairs in total.
MIN_ROUNDS, MAX_ROUNDS = 8, 48
SAMPLED_PAIRS = 24_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds of disjoint pairs of node names, and their share of all pairs."""

    rounds: tuple[tuple[tuple[str, str], ...], ...]
    pairs: int
    all_pairs: int

    @property
    def is_sample(self) -> bool:
        return self.pairs < self.all_pairs

    @property
    def coverage_text(self) -> str:
        """Return a description of the tested pairs for the report."""
        if self.is_sample:
            return f"a sample of {self.pairs} of {self.all_pairs} pairs, {len(self.rounds)} partners per node"
        return f"all {self.pairs} pairs" if self.pairs != 1 else "the one pair"


def full_round_count(count: int) -> int:
    """Return the number of rounds in which every two of `count` items are paired once."""
    return 0 if count < 2 else count - 1 + count % 2


def pairs_of_round(count: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of round `number` of `count` items (circle method); with an odd count, one item rests."""
    ring = full_round_count(count)
    if count % 2 == 0:
        yield number, ring
    for step in range(1, (ring - 1) // 2 + 1):
        yield (number + step) % ring, (number - step) % ring


def rounds(items: Sequence[T], limit: int | None = None) -> Iterator[tuple[tuple[T, T], ...]]:
    """Yield every pair of `items` once, in rounds in which no item occurs twice; or `limit` evenly spaced rounds."""
    round_total = full_round_count(len(items))
    used_count = round_total if limit is None else min(limit, round_total)
    for index in range(used_count):
        number = index * round_total // used_count
        yield tuple((items[a], items[b]) for a, b in pairs_of_round(len(items), number))


def round_count(count: int) -> int:
    """Return the number of rounds for `count` nodes: all rounds, or the rounds of a sample."""
    if count <= ALL_PAIRS_UP_TO:
        return full_round_count(count)
    return min(MAX_ROUNDS, max(MIN_ROUNDS, 2 * SAMPLED_PAIRS // count))


def schedule(names: Sequence[str], *, max_rounds: int | None = None) -> Schedule:
    """Return the rounds for these nodes; for more than `ALL_PAIRS_UP_TO` nodes (or with `max_rounds`), an evenly spaced
    selection.

    Each selected round still pairs every node (all nodes but one if their number is odd), so a fault of a single node
    shows in every round. Only a fault between two particular nodes can be missed.
    """
    limit = round_count(len(names)) if max_rounds is None else max_rounds
    selected_rounds = tuple(rounds(names, limit))
    return Schedule(selected_rounds, sum(len(pairs) for pairs in selected_rounds), len(names) * (len(names) - 1) // 2)


def disjoint_rounds(requests: Iterable[Request]) -> tuple[tuple[Request, ...], ...]:
    """Return requests in rounds in which no node has two, each in the first round with all its nodes free."""
    planned_rounds: list[list[Request]] = []
    busy_rounds: dict[str, set[int]] = {}
    for request in requests:
        node_rounds = [busy_rounds.setdefault(name, set()) for name in (request.node, *request.peers)]
        number = 0
        while any(number in taken_rounds for taken_rounds in node_rounds):
            number += 1
        if number == len(planned_rounds):
            planned_rounds.append([])
        planned_rounds[number].append(request)
        for taken_rounds in node_rounds:
            taken_rounds.add(number)
    return tuple(tuple(planned_round) for planned_round in planned_rounds)


Group = tuple[str, ...]
#: Whether each group that was tried completed; None if the trial did not end, or never started.
Trials = Mapping[frozenset[str], bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that follows from the trials.

    Args:
        kind: `nodes` (each of `nodes` hangs with a node that completes without it), `between` (the two nodes in `nodes`
            hang together, and each completes with another node), `group` (`nodes` hang together, and no smaller part of
            them that was tried hangs), `whole` (all nodes together hang again, but no part of them hangs), `every`
            (every group that was tried hangs), `none` (no group hangs again, not even all nodes together), `open` (the
            trials that ended do not decide).
        nodes: the nodes that the kind refers to.
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
    """Return the groups to try next, all at once; empty if the answer is known.

    Args:
        nodes: all nodes, in rank order, which hang together.
        trials: the results of the groups that were tried so far.
        suspects: the nodes that are already blamed. One or two suspects are tried again first. If there are more,
            groups of suspects are tried before other groups.
        min_size: the smallest meaningful size of a group; 1 if one node runs several ranks.
    """
    return _next_step(nodes, trials, suspects, min_size)[0]


def answer(nodes: Group, trials: Trials, *, suspects: Group = (), min_size: int = 2) -> Answer | None:
    """Return the conclusion from the trials so far; None if there are no trials."""
    if not trials:
        return None
    untried, kind, answer_nodes = _next_step(nodes, trials, suspects, min_size)

    def trials_with(result: bool | None) -> tuple[Group, ...]:
        return tuple(_sort_nodes(group, nodes) for group, passed in trials.items() if passed is result)

    sound_nodes = _sound_nodes(trials)
    ended_count = sum(passed is not None and len(group) < len(nodes) for group, passed in trials.items())
    return Answer(
        kind,
        answer_nodes,
        ended_count,
        tuple(node for node in nodes if node in sound_nodes),
        trials_with(False),
        trials_with(None),
        untried,
    )


def _sort_nodes(group: Iterable[str], nodes: Group) -> Group:
    members = set(group)
    return tuple(node for node in nodes if node in members)


def _sound_nodes(trials: Trials) -> set[str]:
    return {name for group, passed in trials.items() if passed for name in group}


#: The groups to try next, and the answer if the trials stop here: its kind and its nodes.
_Step = tuple[tuple[Group, ...], str, Group]


def _next_step(nodes: Group, trials: Trials, suspects: Group, min_size: int) -> _Step:
    if 1 <= len(suspects) <= 2:
        step = _retest_suspects(nodes, trials, suspects)
        if step is not None:
            return step
    return _bisect(nodes, trials, suspects, min_size)


def _bisect(nodes: Group, trials: Trials, suspects: Group, min_size: int) -> _Step:
    """Try parts of all nodes, then parts of the first part that hangs; if no part hangs, try all nodes again."""
    failing_nodes = (*_sort_nodes(suspects, nodes), *(node for node in nodes if node not in suspects))
    while len(failing_nodes) > max(2, min_size):
        smaller_group: Group | None = None
        is_open = False
        for parts in _partitions(failing_nodes, min_size):
            untried = tuple(_sort_nodes(part, nodes) for part in parts if frozenset(part) not in trials)
            if untried:
                return untried, "open", _sort_nodes(failing_nodes, nodes)
            is_open = is_open or any(trials[frozenset(part)] is None for part in parts)
            hanging = [part for part in parts if trials[frozenset(part)] is False]
            if hanging:
                smaller_group = hanging[0]
                break
        if smaller_group is None:
            if not is_open and len(failing_nodes) == len(nodes):
                return _retest_whole(nodes, trials, suspects or nodes)
            return (), "open" if is_open else "group", _sort_nodes(failing_nodes, nodes)
        failing_nodes = smaller_group
    if len(failing_nodes) == 2 and len(nodes) > 2:
        return _test_pair(nodes, trials, _sort_nodes(failing_nodes, nodes))
    if len(failing_nodes) == len(nodes):
        return _retest_whole(nodes, trials, suspects or nodes)
    return (), "group", _sort_nodes(failing_nodes, nodes)


def _partitions(group: Group, min_size: int) -> Iterator[tuple[Group, ...]]:
    """Yield three ways to split a group in two: into the lower and upper half, by whether the two other splits agree on
    a node, and into nodes at even and odd positions.

    Any two nodes are in the same part of at least one split, so a pair that hangs is never missed. For four nodes, the
    parts of the first two splits are neighbours in a ring, which most collectives connect.
    """
    half = (len(group) + 1) // 2
    is_upper = [index >= half for index in range(len(group))]
    is_odd = [index % 2 == 1 for index in range(len(group))]
    is_mixed = [a != b for a, b in zip(is_upper, is_odd, strict=True)]
    for is_second in (is_upper, is_mixed, is_odd):
        parts = [
            tuple(name for name, is_in_second in zip(group, is_second, strict=True) if is_in_second is second)
            for second in (False, True)
        ]
        large_parts = tuple(part for part in parts if len(part) >= min_size)
        if large_parts:
            yield large_parts


def _retest_suspects(nodes: Group, trials: Trials, suspects: Group) -> _Step | None:
    """Try two suspects together, or one suspect with another node, and at the same time the remaining nodes.

    Suspects may only be witnesses of a fault among other nodes: if the suspects complete without the remaining nodes,
    the fault is among these. Return None if no group hangs, so that the fault may be between any two nodes.
    """
    other_nodes = tuple(node for node in nodes if node not in suspects)
    if not other_nodes:
        return None
    # Of three nodes, the two other nodes are tried: if they complete, they are cleared, and the next trial decides.
    first_group = (
        suspects if len(suspects) == 2 else other_nodes if len(other_nodes) == 2 else (suspects[0], other_nodes[0])
    )
    remaining_nodes = tuple(node for node in nodes if node not in first_group)
    wanted_groups = [first_group, remaining_nodes] if len(remaining_nodes) > 1 else [first_group]
    untried = _pick_untried(wanted_groups, trials, nodes)
    if untried:
        return untried, "open", suspects
    first_passed, rest_passed = (trials.get(frozenset(group)) for group in (first_group, remaining_nodes))
    if first_passed is False:
        return _test_pair(nodes, trials, first_group) if remaining_nodes else ((), "whole", suspects)
    if rest_passed is False:
        return (
            _test_pair(nodes, trials, remaining_nodes) if len(remaining_nodes) == 2 else ((), "group", remaining_nodes)
        )
    if first_passed is None or (len(remaining_nodes) > 1 and rest_passed is None):
        return (), "open", suspects
    # Each part completes by itself: the fault may be between the parts, or in a node that is a part by itself.
    cross_pairs = (
        [(node, remaining_nodes[index % len(remaining_nodes)]) for index, node in enumerate(first_group)]
        if remaining_nodes
        else []
    )
    if len(suspects) == 1 and len(remaining_nodes) > 1:
        cross_pairs = []
    for pair in cross_pairs:
        if trials.get(frozenset(pair)) is False:
            return _test_pair(nodes, trials, pair)
    untried = _pick_untried(cross_pairs, trials, nodes)
    if untried:
        return untried, "open", suspects
    if any(trials[frozenset(pair)] is None for pair in cross_pairs):
        return (), "open", suspects
    return None


def _retest_whole(nodes: Group, trials: Trials, answer_nodes: Group) -> _Step:
    """Try all nodes again, to distinguish a fault that needs all nodes from a fault that happens only at times."""
    if frozenset(nodes) not in trials:
        return (nodes,), "open", answer_nodes
    has_passed = trials[frozenset(nodes)]
    return (), "open" if has_passed is None else "none" if has_passed else "whole", answer_nodes


def _test_pair(nodes: Group, trials: Trials, pair: Group) -> _Step:
    """Try each of two nodes that hang together with another node, unless it has completed a trial before."""
    other_nodes = [node for node in nodes if node not in pair]
    sound_nodes = _sound_nodes(trials)
    other_nodes.sort(key=lambda node: node not in sound_nodes)
    test_by_node = {
        node: (node, other_nodes[index % len(other_nodes)])
        for index, node in enumerate(pair)
        if node not in sound_nodes
    }
    # A test is not repeated, although later trials may show that other nodes are better witnesses.
    for node in test_by_node:
        tested_partners = [other for other in other_nodes if frozenset((node, other)) in trials]
        if tested_partners:
            test_by_node[node] = (node, tested_partners[0])
    untried = _pick_untried(test_by_node.values(), trials, nodes)
    if untried:
        return untried, "open", pair
    if not test_by_node:
        return (), "between", pair
    if any(trials[frozenset(test)] is None for test in test_by_node.values()):
        return (), "open", pair
    # Each bad node hangs with two other nodes, which is significant only if some group without the bad node completes.
    bad_nodes = tuple(test_by_node)
    remaining_nodes = tuple(node for node in nodes if node not in bad_nodes)
    if sound_nodes:
        return (), "nodes", bad_nodes
    if len(remaining_nodes) > 1:
        untried = _pick_untried([remaining_nodes], trials, nodes)
        if untried:
            return untried, "open", bad_nodes
        if trials[frozenset(remaining_nodes)] is None:
            return (), "open", bad_nodes
    return (), "every", nodes


def _pick_untried(groups: Iterable[Group], trials: Trials, nodes: Group) -> tuple[Group, ...]:
    """Return untried groups in their order, without groups that share a node with an earlier group."""
    picked: list[Group] = []
    for group in groups:
        if frozenset(group) not in trials and not {name for picked_group in picked for name in picked_group} & set(
            group
        ):
            picked.append(_sort_nodes(group, nodes))
    return tuple(picked)
