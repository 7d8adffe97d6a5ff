"""Which node or pair explains the failing cells of a who-reaches-whom matrix.

One closed port fails against every partner, and one slow card is slow towards each of them. Told cell by cell that is
noise; told as a row or a column it names the culprit. What a cell holds does not matter here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from preflight.lazy.dataclasses import dataclass

T = TypeVar("T")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """What came of one node trying another in one respect, which the label names."""

    source: str
    peer: str
    label: str
    result: T
    at_s: float | None = None

    @property
    def pair(self) -> Pair:
        """Who tried whom."""
        return (self.source, self.peer)


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """Failing cells with one explanation.

    `kind`: `everybody` (no cell works), `inbound` (nobody reaches `node`), `outbound` (`node` reaches nobody),
    `isolated` (both), `around` (several cells, all of `node`), `pair` (`node` to `other`, `mutual` when the way
    back fails too).
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
    """A kind of shape at a node (or between two), and the pairs it stands for."""

    kind: str
    node: str = ""
    other: str = ""

    def covers(self, pair: Pair) -> bool:
        """Whether a cell of this pair, of whichever label, belongs to it."""
        if self.kind == "everybody":
            return True
        if self.kind == "pair":
            return set(pair) == {self.node, self.other}
        if self.kind == "around":
            return self.node in pair
        return (self.kind != "outbound" and pair[1] == self.node) or (self.kind != "inbound" and pair[0] == self.node)


def shapes(cells: Sequence[Cell[T]], is_bad: Callable[[Cell[T]], bool]) -> tuple[Shape[T], ...]:
    """The fewest whole rows and columns that explain the bad cells, then single pairs.

    The label tried between most pairs is explained first; bad cells of other labels that lie in the same row or
    column belong to the same fault.
    """
    bad = [cell for cell in cells if is_bad(cell)]
    if not bad:
        return ()
    tried: dict[str, set[Pair]] = {}
    for cell in cells:
        tried.setdefault(cell.label, set()).add((cell.source, cell.peer))
    left = _Open(bad)
    found: list[Shape[T]] = []
    for label in sorted(tried, key=lambda label: -len(tried[label])):
        for reason in _explain(left.pairs_of(label), tried[label]):
            covered = left.take(reason)
            if covered:
                mutual = reason.kind == "pair" and len({cell.pair for cell in covered}) > 1
                found.append(Shape(reason.kind, tuple(covered), reason.node, reason.other, mutual))
    return tuple(found)


class _Open(Generic[T]):
    """The bad cells that nothing explains yet, to be found by node."""

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
        """The cells that this explains; from now on they are explained."""
        near = self._of_node.get(reason.node, {}) if reason.node else self._cells
        numbers = [n for n in near if n in self._cells and reason.covers(self._cells[n].pair)]
        return [self._cells.pop(number) for number in sorted(numbers)]


def _explain(bad: set[Pair], tried: set[Pair]) -> Iterator[_Explanation]:
    """Explanations of `bad`, the widest first."""
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
    left = set(bad)
    yield from _widest(lines, left)
    for source, peer in sorted(left):
        if (source, peer) in left:
            yield _Explanation("pair", source, peer)
            left -= {(source, peer), (peer, source)}


def _widest(lines: dict[_Explanation, set[Pair]], left: set[Pair]) -> Iterator[_Explanation]:
    """Lines that explain at least two pairs of `left`, which they are taken from; always the one that explains most.

    What a line explains only gets less, so that one that comes up with its old weight is the widest.
    """

    def weight(reason: _Explanation) -> tuple[int, int, str]:
        return (-len(lines[reason] & left), -_ORDER[reason.kind], reason.node)

    waiting = [(weight(reason), index, reason) for index, reason in enumerate(lines)]
    heapq.heapify(waiting)
    while waiting:
        said, index, reason = heapq.heappop(waiting)
        now = weight(reason)
        if now != said:
            heapq.heappush(waiting, (now, index, reason))
        elif now[0] > -2:
            return
        else:
            yield reason
            left -= lines[reason]


_ORDER = {"isolated": 0, "outbound": 1, "inbound": 2}


def _full_lines(bad: set[Pair], tried: set[Pair]) -> dict[_Explanation, set[Pair]]:
    """Rows and columns of at least two cells that fail throughout."""
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
