"""What all exhibits share: cells against what most nodes have, the table they make, and how much of much is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from preflight.exhibit import Cell, Column, Row, Table
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.majority import split

T = TypeVar("T")
Value = str | float | int
#: What stands in a cell is a few words; the whole of it is in findings, outcomes and facts.
_LONGEST = 80
UNREACHED = "no agent there"


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of one node in one respect; where the value is None, why."""

    value: Value | None
    why: str = ""


def equal(one: Value, other: Value) -> bool:
    """Whether two values are the same."""
    return one == other


def cells_of(
    fleet: Fleet, told: Mapping[str, Told], *, alike: Callable[[Any, Any], bool] = equal
) -> tuple[Cell, ...] | None:
    """A cell for each node, those marked that are not `alike` the commonest value; None where nothing is known.

    Of equally common values that of the first node counts, as for the checks.
    """
    found = split({node.name: value for node in fleet.nodes if (value := _value(told, node.name)) is not None})
    if found is None:
        return None
    cells: list[Cell] = []
    for record in fleet.records:
        said = told.get(record.node.name) or Told(None, UNREACHED if record.problem else "not told")
        if said.value is None:
            cells.append(Cell(None, why=brief(said.why)))
        else:
            shown = brief(said.value) if isinstance(said.value, str) else said.value
            cells.append(Cell(shown, odd=not alike(said.value, found.common)))
    return tuple(cells)


def _value(told: Mapping[str, Told], node: str) -> Value | None:
    said = told.get(node)
    return None if said is None else said.value


def told_by(facts: Facts, probe: Callable[..., T], read: Callable[[T], Told]) -> dict[str, Told]:
    """What `read` makes of each node's fact, or why there is none; nodes that nobody asked are left out."""
    found: dict[str, Told] = {}
    for seen in facts.each(probe):
        said = read(seen.fact.value) if isinstance(seen.fact, Observed) else Told(None, seen.fact.reason)
        if seen.node not in found or (found[seen.node].value is None and said.value is not None):
            found[seen.node] = said
    return found


def brief(text: str) -> str:
    """The first line of a text, as far as a cell has room for it."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3].rstrip() + "..."


def table(id: str, title: str, note: str, fleet: Fleet, columns: Sequence[tuple[Column, Sequence[Cell]]]) -> Table:
    """A row for each node, in rank order, of columns that have a cell for each."""
    rows = (Row(node.name, tuple(cells[number] for _, cells in columns)) for number, node in enumerate(fleet.nodes))
    return Table(id, title, note, tuple(column for column, _ in columns), tuple(rows))


def thinned(items: Sequence[T], most: int, keep: Callable[[T], bool]) -> tuple[T, ...]:
    """At most so many of the items in their order: first those to `keep`, of the others some, evenly spread."""
    if len(items) <= most:
        return tuple(items)
    kept = [index for index, item in enumerate(items) if keep(item)]
    taken = set(kept)
    others = [index for index in range(len(items)) if index not in taken]
    chosen = [*_spread(kept, most), *_spread(others, most - min(most, len(kept)))]
    return tuple(items[index] for index in sorted(chosen))


def _spread(indices: Sequence[int], most: int) -> Iterable[int]:
    count = len(indices)
    return indices if count <= most else [indices[number * count // most] for number in range(most)]


def short(value: float, digits: int = 4) -> float | None:
    """A measured number without digits that mean nothing; None for what is none (a node may send anything)."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def many(count: int, what: str) -> str:
    """`1 node`, `4 nodes`."""
    return f"{count} {what}" + ("" if count == 1 else "s")
