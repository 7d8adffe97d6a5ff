"""What tables of two reports say of the same nodes, and no longer say alike: drift of versions and of machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from preflight.difference.model import Drift
from preflight.exhibit import Cell, Exhibit, Table

#: The tables that say what nodes are. What others hold was measured, and differs each time.
DRIFTING = ("versions", "nodes")
#: Sizes of memories and disks differ by so much from one boot to the next.
_SAME_SIZE = 0.02


def of_tables(old: Sequence[Exhibit], new: Sequence[Exhibit]) -> tuple[Drift, ...]:
    """What differs, by table and column; nodes with the same change make one entry."""
    return tuple(drift for id in DRIFTING for drift in _of_table(old, new, id))


def of_id(exhibits: Iterable[Exhibit], id: str) -> Iterator[Exhibit]:
    """The exhibits of this id: where several jobs have one each, the others carry a number behind it."""
    for exhibit in exhibits:
        number = exhibit.id.removeprefix(f"{id}.")
        if exhibit.id == id or (number != exhibit.id and number.isdecimal()):
            yield exhibit


def _of_table(old: Iterable[Exhibit], new: Iterable[Exhibit], id: str) -> Iterator[Drift]:
    """Tables of several jobs are told apart by their titles, which then name the jobs."""
    before = {table.title: table for table in of_id(old, id) if isinstance(table, Table)}
    for table in of_id(new, id):
        if isinstance(table, Table) and table.title in before:
            yield from _of_one(before[table.title], table, id)


def _of_one(old: Table, new: Table, id: str) -> Iterator[Drift]:
    before, after = _cells(old), _cells(new)
    found: dict[tuple[str, str, str], list[str]] = {}
    for column in new.columns:
        for row in new.rows:
            key = (row.subject, column.name)
            if key in before and key in after and _differs(before[key], after[key]):
                change = (column.name, _said(before[key], column.unit), _said(after[key], column.unit))
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
    one, other = before.value, after.value
    if isinstance(one, float) or isinstance(other, float):
        numbers = [value for value in (one, other) if isinstance(value, (int, float))]
        if len(numbers) == 2:
            return abs(numbers[0] - numbers[1]) > _SAME_SIZE * max(abs(number) for number in numbers)
    return one != other


def _said(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return ""
    value = f"{cell.value:.4g}" if isinstance(cell.value, float) else str(cell.value)
    return f"{value} {unit}".rstrip()
