"""Finds the node or pair that explains the failing cells of a reachability matrix.

One closed port fails for every partner, and one slow card is slow towards each of them. Reported cell by cell, this is
noise; reported as a row or a column, it names the culprit. The kind of measurement is irrelevant here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
        """The tested pair, source first."""
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
        """The nodes to name in a finding."""
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
        """Whether a cell of this pair, with any label, belongs to it."""
        if self.kind == "everybody":
            return True
        if self.kind == "pair":
            return set(pair) == {self.node, self.other}
        if self.kind == "around":
            return self.node in pair
        return (self.kind != "outbound" and pair[1] == self.node) or (self.kind != "inbound" and pair[0] == self.node)


def shapes(cells: Sequence[Cell[T]], is_bad: Callable[[Cell[T]], bool]) -> tuple[Shape[T], ...]:
    """The fewest whole rows and columns that explain the bad cells, then single pairs.

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
        """The pairs with such a cell of this label."""
        return {cell.pair for cell in self._cells.values() if cell.label == label}

    def take(self, reason: _Explanation) -> list[Cell[T]]:
        """Remove and return the cells that this explains."""
        near = self._of_node.get(reason.node, {}) if reason.node else self._cells
        numbers = [n for n in near if n in self._cells and reason.covers(self._cells[n].pair)]
        return [self._cells.pop(number) for number in sorted(numbers)]


def _explain(bad: set[Pair], tried: set[Pair]) -> Iterator[_Explanation]:
    """Explanations of `bad`, widest first."""
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
    """Lines that explain at least two of the remaining pairs, which are removed; the line that explains most comes
    first.

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
    """Rows and columns of at least two cells in which every cell fails."""
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
