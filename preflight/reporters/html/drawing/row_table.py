"""Tables: rows with equal content become one row, and rows that stand out come first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from preflight._util.sanitize import fold_nodes
from preflight._util.sequences import grouped
from preflight.model.charts import Cell, Row, Table
from preflight.reporters.html.drawing.scales import format_number, format_range
from preflight.reporters.html.drawing.shapes import CellView, ColumnView, RowView, TableView

#: Up to this many rows, each has a line of its own.
_ROWS_UNFOLDED = 16
#: Words for the subjects of a table, by the prefix of its rows.
_RANK = "rank "


def table_view(table: Table) -> TableView:
    """Build the view of a table, folded if it is long."""
    numeric = tuple(_is_numeric(table.rows, index) for index in range(len(table.columns)))
    columns = tuple(
        ColumnView(column.name, column.unit if is_number else "", is_number)
        for column, is_number in zip(table.columns, numeric, strict=True)
    )
    units = tuple(column.unit for column in table.columns)
    single = tuple(RowView(row.subject, _cells(row, units), odd=_is_odd(row)) for row in table.rows)
    rows = single if len(single) <= _ROWS_UNFOLDED else _folded(table.rows, numeric, units)
    rows = tuple(sorted(rows, key=lambda row: not row.odd))
    folded = len(rows) < len(single)
    subject = "rank" if table.rows and all(row.subject.startswith(_RANK) for row in table.rows) else "node"
    return TableView(
        table.id, table.title, table.note, subject, columns, rows, all_rows=single if folded else (), folded=folded
    )


def cell_view(value: str | float | int | None, unit: str = "", *, odd: bool = False, why: str = "") -> CellView:
    """Build one cell, with its sort key."""
    if value is None or not is_known(value):
        return CellView("not known", missing=True, odd=odd, why=why)
    if isinstance(value, str):
        return CellView(value, odd=odd, why=why)
    return CellView(format_number(value, unit), sort=repr(float(value)), odd=odd, why=why)


def is_known(value: object) -> bool:
    """Return whether the value can be shown: neither absent nor NaN."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _is_numeric(rows: Sequence[Row], index: int) -> bool:
    values = [row.cells[index].value for row in rows if index < len(row.cells) and is_known(row.cells[index].value)]
    return bool(values) and not any(isinstance(value, str) for value in values)


def _is_odd(row: Row) -> bool:
    return any(cell.odd for cell in row.cells)


def _cells(row: Row, units: Sequence[str]) -> tuple[CellView, ...]:
    return tuple(
        cell_view(cell.value, unit, odd=cell.odd, why=cell.why) for cell, unit in zip(row.cells, units, strict=False)
    )


def _folded(rows: Sequence[Row], numeric: Sequence[bool], units: Sequence[str]) -> tuple[RowView, ...]:
    """Fold rows that differ only in their numbers into one, with the range of each number."""
    groups = grouped((_key(row, numeric), row) for row in rows)
    return tuple(_row_view(same, units) for same in groups.values())


def _key(row: Row, numeric: Sequence[bool]) -> tuple[object, ...]:
    return tuple(
        (cell.odd, cell.why, is_known(cell.value)) if is_number else (cell.odd, cell.why, cell.value)
        for cell, is_number in zip(row.cells, numeric, strict=False)
    )


def _row_view(same: Sequence[Row], units: Sequence[str]) -> RowView:
    first = same[0]
    if len(same) == 1:
        return RowView(first.subject, _cells(first, units), odd=_is_odd(first))
    cells = tuple(
        _range([row.cells[index] for row in same], unit)
        for index, unit in zip(range(len(first.cells)), units, strict=False)
    )
    return RowView(fold_nodes([row.subject for row in same]), cells, count=len(same), odd=_is_odd(first))


def _range(cells: Sequence[Cell], unit: str) -> CellView:
    values = [cell.value for cell in cells if isinstance(cell.value, (int, float)) and is_known(cell.value)]
    first = cells[0]
    if not values or isinstance(first.value, str):
        return cell_view(first.value, unit, odd=first.odd, why=first.why)
    middle = sorted(values)[len(values) // 2]
    return CellView(format_range(values, unit), sort=repr(float(middle)), odd=first.odd, why=first.why)
