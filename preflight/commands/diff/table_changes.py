"""Compares tables of node properties in two reports: drift of versions and of machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from preflight.commands.diff.difference import Drift
from preflight.model.charts import Cell, Chart, Table

#: The tables of node properties. Other tables hold measurements, which always differ.
DRIFT_TABLES = ("versions", "nodes")
#: Sizes of memory and disks may differ by this much between boots.
_SAME_SIZE = 0.02


def compare_tables(old: Sequence[Chart], new: Sequence[Chart]) -> tuple[Drift, ...]:
    """Return what differs, by table and column; nodes with the same change share an entry."""
    return tuple(drift for id in DRIFT_TABLES for drift in _of_table(old, new, id))


def of_id(charts: Iterable[Chart], id: str) -> Iterator[Chart]:
    """Return the charts with this id; if several jobs have one each, the others have a number after it."""
    for chart in charts:
        number = chart.id.removeprefix(f"{id}.")
        if chart.id == id or (number != chart.id and number.isdecimal()):
            yield chart


def _of_table(old: Iterable[Chart], new: Iterable[Chart], id: str) -> Iterator[Drift]:
    """Compare one table; tables of several jobs are distinguished by their titles."""
    before = {table.title: table for table in of_id(old, id) if isinstance(table, Table)}
    for table in of_id(new, id):
        if isinstance(table, Table) and table.title in before:
            yield from _table_drift(before[table.title], table, id)


def _table_drift(old: Table, new: Table, id: str) -> Iterator[Drift]:
    before, after = _cells(old), _cells(new)
    found: dict[tuple[str, str, str], list[str]] = {}
    for column in new.columns:
        for row in new.rows:
            key = (row.subject, column.name)
            if key in before and key in after and _differs(before[key], after[key]):
                change = (column.name, _format_cell(before[key], column.unit), _format_cell(after[key], column.unit))
                found.setdefault(change, []).append(row.subject)
    for (what, was, now), subjects in found.items():
        yield Drift(id, what, was, now, tuple(subjects))


def _cells(table: Table) -> dict[tuple[str, str], Cell]:
    return {
        (row.subject, column.name): cell
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=False)
    }


def _differs(before: Cell, after: Cell) -> bool:
    old, new = before.value, after.value
    if isinstance(old, float) or isinstance(new, float):
        numbers = [value for value in (old, new) if isinstance(value, (int, float))]
        if len(numbers) == 2:
            return abs(numbers[0] - numbers[1]) > _SAME_SIZE * max(abs(number) for number in numbers)
    return old != new


def _format_cell(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return ""
    value = f"{cell.value:.4g}" if isinstance(cell.value, float) else str(cell.value)
    return f"{value} {unit}".rstrip()
