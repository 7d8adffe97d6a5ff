"""Helpers of all charts: cells compared with the most common value, tables of cells, and sampling of long lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from preflight.model.charts import Cell, Column, Row, Table
from preflight.model.recording import Facts, Fleet, Observed
from preflight_checks.comparison import split

T = TypeVar("T")
Value = str | float | int
#: A cell holds a few words; findings, outcomes and facts hold the full text.
_MAX_LENGTH = 80
NO_AGENT = "no agent"


@dataclass(frozen=True, slots=True)
class CellValue:
    """One value of one node, or the reason why it is unknown (the value is then None)."""

    value: Value | None
    why: str = ""


def equal(first: Value, second: Value) -> bool:
    """Whether two values are the same."""
    return first == second


def cells_of(
    fleet: Fleet, values: Mapping[str, CellValue], *, is_equal: Callable[[Any, Any], bool] = equal
) -> tuple[Cell, ...] | None:
    """One cell per node; values that are not `is_equal` the most common one are marked. None if no value is known.

    Among equally common values, the first node's counts, as in the checks.
    """
    found = split({node.name: value for node in fleet.nodes if (value := _value(values, node.name)) is not None})
    if found is None:
        return None
    cells: list[Cell] = []
    for record in fleet.records:
        reported = values.get(record.node.name) or CellValue(None, NO_AGENT if record.problem else "not reported")
        if reported.value is None:
            cells.append(Cell(None, why=brief(reported.why)))
        else:
            shown = brief(reported.value) if isinstance(reported.value, str) else reported.value
            cells.append(Cell(shown, odd=not is_equal(reported.value, found.common)))
    return tuple(cells)


def _value(values: Mapping[str, CellValue], node: str) -> Value | None:
    value = values.get(node)
    return None if value is None else value.value


def values_by_node(facts: Facts, probe: Callable[..., T], read: Callable[[T], CellValue]) -> dict[str, CellValue]:
    """The result of `read` for each node's fact, or why there is none; nodes without a request are left out."""
    found: dict[str, CellValue] = {}
    for seen in facts.each(probe):
        value = read(seen.fact.value) if isinstance(seen.fact, Observed) else CellValue(None, seen.fact.reason)
        if seen.node not in found or (found[seen.node].value is None and value.value is not None):
            found[seen.node] = value
    return found


def brief(text: str) -> str:
    """The first line of a text, cut to the width of a cell."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3].rstrip() + "..."


def table(id: str, title: str, note: str, fleet: Fleet, columns: Sequence[tuple[Column, Sequence[Cell]]]) -> Table:
    """One row per node, in rank order, built from columns with one cell per node."""
    rows = (Row(node.name, tuple(cells[number] for _, cells in columns)) for number, node in enumerate(fleet.nodes))
    return Table(id, title, note, tuple(column for column, _ in columns), tuple(rows))


def sample_of(items: Sequence[T], limit: int, keep: Callable[[T], bool]) -> tuple[T, ...]:
    """At most `limit` of the items, in their order: those to `keep` first, then an evenly spread sample of the rest."""
    if len(items) <= limit:
        return tuple(items)
    kept = [index for index, item in enumerate(items) if keep(item)]
    used = set(kept)
    others = [index for index in range(len(items)) if index not in used]
    chosen = [*_evenly_spaced(kept, limit), *_evenly_spaced(others, limit - min(limit, len(kept)))]
    return tuple(items[index] for index in sorted(chosen))


def _evenly_spaced(indices: Sequence[int], limit: int) -> Iterable[int]:
    count = len(indices)
    return indices if count <= limit else [indices[number * count // limit] for number in range(limit)]


def short(value: float, digits: int = 4) -> float | None:
    """A measured number rounded to its significant digits; None for anything that is not a number."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
