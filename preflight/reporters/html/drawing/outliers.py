"""Tables of outliers in a large matrix: names with bad pairs, and the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from preflight._util.sanitize import fold_nodes
from preflight.model.charts import Mark, Matrix
from preflight.reporters.html.drawing.numbers import format_number
from preflight.reporters.html.drawing.row_table import cell_view, is_known
from preflight.reporters.html.drawing.shapes import CellView, ColumnView, RowView, TableView

#: Number of names that are listed separately, the worst first.
_MAX_NAMES = 24
#: If nothing is bad: number of names with the highest and the lowest median.
_EXTREMES = 3
_MAX_PAIRS = 200


@dataclass
class _Side:
    """The pairs of one name, as row and as column."""

    as_row: list[Mark] = field(default_factory=list)
    as_column: list[Mark] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return sum(mark.state != "ok" for mark in (*self.as_row, *self.as_column))

    @property
    def middle(self) -> float | None:
        values = _values((*self.as_row, *self.as_column))
        return median(values) if values else None


def outlier_table(matrix: Matrix) -> TableView | None:
    """Build a table of names with bad pairs, worst first, otherwise of those with extreme values; all others share one
    row.

    Returns None if no name stands out.
    """
    sides: dict[str, _Side] = {}
    for mark in matrix.marks:
        sides.setdefault(matrix.rows[mark.row], _Side()).as_row.append(mark)
        sides.setdefault(matrix.columns[mark.column], _Side()).as_column.append(mark)
    chosen = _choose_names(sides)
    if not chosen:
        return None
    rows = [_row(matrix, (name,), (sides[name],)) for name in chosen]
    others = [name for name in sides if name not in set(chosen)]
    if others:
        rows.append(_row(matrix, others, [sides[name] for name in others]))
    columns = [ColumnView("bad, as row"), ColumnView("bad, as column")]
    if any(is_known(mark.value) for mark in matrix.marks):
        columns += [ColumnView("median, as row", numeric=True), ColumnView("median, as column", numeric=True)]
    title = f"{matrix.title}: what stands out"
    return TableView(f"{matrix.id}.out", title, "", "node", tuple(columns), tuple(rows))


def _choose_names(sides: dict[str, _Side]) -> tuple[str, ...]:
    numbered = {name: (number, side.bad, side.middle) for number, (name, side) in enumerate(sides.items())}
    bad = sorted((name for name in sides if numbered[name][1]), key=lambda name: (-numbered[name][1], numbered[name]))
    if bad:
        # A name that is bad with every peer makes every peer slightly bad; those do not stand out.
        worst = numbered[bad[0]][1]
        return tuple(name for name in bad if numbered[name][1] * 4 >= worst)[:_MAX_NAMES]
    known = sorted((middle, number, name) for name, (number, _, middle) in numbered.items() if middle is not None)
    ends = known[: -_EXTREMES - 1 : -1] + known[:_EXTREMES] if len(known) > 2 * _EXTREMES else known
    return tuple(name for _, _, name in ends)


def _row(matrix: Matrix, names: Sequence[str], sides: Sequence[_Side]) -> RowView:
    as_row = [mark for side in sides for mark in side.as_row]
    as_column = [mark for side in sides for mark in side.as_column]
    cells = [_bad(as_row), _bad(as_column)]
    if any(is_known(mark.value) for mark in matrix.marks):
        cells += [_median(as_row, matrix.unit), _median(as_column, matrix.unit)]
    subject = names[0] if len(names) == 1 else f"{len(names)} others"
    return RowView(subject, tuple(cells), odd=len(names) == 1 and any(side.bad for side in sides))


def _bad(marks: Sequence[Mark]) -> CellView:
    if not marks:
        return CellView("not tried", missing=True)
    bad = sum(mark.state == "bad" for mark in marks)
    unknown = sum(mark.state == "unknown" for mark in marks)
    open_too = f", {unknown:,} not known" if unknown else ""
    text = f"{bad:,} of {len(marks):,}{open_too}"
    return CellView(text, sort=repr(bad / len(marks)), odd=bool(bad) and bad * 2 >= len(marks))


def _median(marks: Sequence[Mark], unit: str) -> CellView:
    values = _values(marks)
    return cell_view(median(values) if values else None, unit)


def _values(marks: Sequence[Mark]) -> list[float]:
    return [mark.value for mark in marks if mark.value is not None and is_known(mark.value)]


def bad_pairs(matrix: Matrix) -> TableView | None:
    """Build a table of pairs that are bad or unknown, up to a limit that the title gives; None without any."""
    bad = [mark for mark in matrix.marks if mark.state != "ok"]
    if not bad:
        return None
    grouped: dict[tuple[int, str, str], list[Mark]] = {}
    for mark in bad:
        grouped.setdefault((mark.row, mark.state, mark.why), []).append(mark)
    rows = tuple(_pairs(matrix, same) for same in list(grouped.values())[:_MAX_PAIRS])
    title = f"{matrix.title}: {len(bad):,} pairs that are bad or not known"
    more = len(grouped) - len(rows)
    note = f"{more:,} more rows are not shown." if more else ""
    columns = (ColumnView("to"), ColumnView("state"), ColumnView("value", numeric=True), ColumnView("why"))
    return TableView(f"{matrix.id}.bad", title, note, "from", columns, rows)


def _pairs(matrix: Matrix, same: Sequence[Mark]) -> RowView:
    first = same[0]
    values = _values(same)
    shown = (
        CellView(format_number(median(values), matrix.unit), sort=repr(float(median(values))))
        if values
        else CellView("")
    )
    state = CellView("bad", state="bad") if first.state == "bad" else CellView("not known", state="open")
    to = fold_nodes([matrix.columns[mark.column] for mark in same])
    return RowView(matrix.rows[first.row], (CellView(to), state, shown, CellView(first.why)))
