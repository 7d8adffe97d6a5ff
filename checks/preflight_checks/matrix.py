"""Which node or pair explains the failing cells of a who-reaches-whom matrix.

One closed port fails against every partner. Told cell by cell that is noise; told as a row or a column it
names the culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from preflight_checks.probes.links import Target

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of one node dialling one port of another."""

    source: str
    peer: str
    label: str
    result: Target
    at_s: float | None = None

    @property
    def pair(self) -> Pair:
        """Who dialled whom."""
        return (self.source, self.peer)


@dataclass(frozen=True, slots=True)
class Shape:
    """Failing cells with one explanation.

    `kind`: `everybody` (no cell works), `inbound` (nobody reaches `node`), `outbound` (`node` reaches nobody),
    `isolated` (both), `around` (several cells, all of `node`), `pair` (`node` to `other`, `mutual` when the way
    back fails too).
    """

    kind: str
    cells: tuple[Cell, ...]
    node: str = ""
    other: str = ""
    mutual: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to name in a finding."""
        if self.kind == "everybody":
            return tuple(sorted({name for cell in self.cells for name in cell.pair}))
        return (self.node, self.other) if self.other else (self.node,)


def shapes(cells: Sequence[Cell], is_bad: Callable[[Cell], bool]) -> tuple[Shape, ...]:
    """The fewest whole rows and columns that explain the bad cells, then single pairs.

    The label tried between most pairs is explained first; bad cells of other labels that lie in the same row or
    column belong to the same fault.
    """
    labels = list(dict.fromkeys(cell.label for cell in cells))
    labels.sort(key=lambda label: -len({cell.pair for cell in cells if cell.label == label}))
    open_cells = [cell for cell in cells if is_bad(cell)]
    found: list[Shape] = []
    for label in labels:
        bad = [cell for cell in open_cells if cell.label == label]
        tried = {cell.pair for cell in cells if cell.label == label}
        for kind, node, other in _explain({cell.pair for cell in bad}, tried):
            covered = [cell for cell in open_cells if _covers(kind, node, other, cell.pair)]
            open_cells = [cell for cell in open_cells if cell not in covered]
            mutual = kind == "pair" and len({cell.pair for cell in covered}) > 1
            if covered:
                found.append(Shape(kind, tuple(covered), node, other, mutual))
    return tuple(found)


def _covers(kind: str, node: str, other: str, pair: Pair) -> bool:
    if kind == "everybody":
        return True
    if kind == "pair":
        return set(pair) == {node, other}
    if kind == "around":
        return node in pair
    return (kind != "outbound" and pair[1] == node) or (kind != "inbound" and pair[0] == node)


def _explain(bad: set[Pair], tried: set[Pair]) -> Iterable[tuple[str, str, str]]:
    """Explanations (kind, node, other) of `bad`, the widest first."""
    if not bad:
        return
    targets = {pair[1] for pair in tried}
    if bad == tried and len(targets) > 2:
        yield ("everybody", "", "")
        return
    common = set.intersection(*({*pair} for pair in bad))
    if len(bad) > 1 and len(common) == 1 and not any(bad <= line for _k, _n, line in _full_lines(bad, tried)):
        yield ("around", common.pop(), "")
        return
    left = set(bad)
    candidates = _full_lines(bad, tried)
    while candidates:
        kind, node, line = max(candidates, key=lambda item: (len(item[2] & left), _ORDER[item[0]], item[1]))
        if len(line & left) < 2:
            break
        yield (kind, node, "")
        left -= line
        candidates.remove((kind, node, line))
    while left:
        source, peer = min(left)
        yield ("pair", source, peer)
        left -= {(source, peer), (peer, source)}


_ORDER = {"isolated": 0, "outbound": 1, "inbound": 2}


def _full_lines(bad: set[Pair], tried: set[Pair]) -> list[tuple[str, str, set[Pair]]]:
    """Rows and columns of at least two cells that fail throughout."""
    found: list[tuple[str, str, set[Pair]]] = []
    for node in sorted({name for pair in bad for name in pair}):
        row = {pair for pair in tried if pair[0] == node}
        column = {pair for pair in tried if pair[1] == node}
        full_row = len(row) > 1 and row <= bad
        full_column = len(column) > 1 and column <= bad
        if full_row and full_column:
            found.append(("isolated", node, row | column))
        elif full_row:
            found.append(("outbound", node, row))
        elif full_column:
            found.append(("inbound", node, column))
    return found
