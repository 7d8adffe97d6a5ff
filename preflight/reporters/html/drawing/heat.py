"""Heat maps of pairs: a small one as a table with values, a large one as a picture.

A cell of a large map stands for a block of pairs and shows the worst of them. Bars beside the picture show the share of
bad pairs of each row and column, so that a bad row is visible even if few of its pairs were tried.

Tables of outliers in a large matrix: names with bad pairs, and the pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from preflight._util.hostnames import expand_hosts, folded, is_hostname
from preflight._util.sanitize import fold_nodes
from preflight._util.sequences import grouped
from preflight.model.charts import Mark, Matrix
from preflight.reporters.html.drawing.shapes import (
    BAD,
    BAND,
    DARK,
    LEVELS,
    LIGHT,
    NOTHING,
    OK,
    UNKNOWN,
    CellView,
    ColumnView,
    HeatView,
    Picture,
    RowView,
    Scale,
    SquareView,
    Strip,
    Swatch,
    TableView,
    cell_view,
    data_address,
    digits,
    format_number,
    format_range,
    is_known,
    scale_of,
    share,
)

#: Up to this many rows and columns, every pair has a cell with text.
MAX_SQUARES = 24
#: Largest number of rows and columns of blocks in a picture.
_MAX_BLOCKS = 256
#: With fewer pairs than this a row is never called mostly bad.
_MIN_PAIRS = 3
_SIGNS = {OK: "✓", UNKNOWN: "?", BAD: "×"}
_WORDS = {OK: "ok", UNKNOWN: "not known", BAD: "bad"}
_STYLES = (BAND, OK, UNKNOWN, *LEVELS, BAD)
#: Of several pairs in a block, the one with the highest number is shown.
_RANKS = {style: number for number, style in enumerate(_STYLES, 1)}

#: The pairs of each row, or of each column.
_Lines: TypeAlias = dict[int, list[Mark]]


def heat_view(matrix: Matrix) -> HeatView:
    """Build the heat map of a matrix."""
    values = _known_values(matrix.marks)
    # Bad values have a colour of their own; on the scale they would make all others look alike.
    usual = _known_values([mark for mark in matrix.marks if mark.state == "ok"])
    scale = scale_of(usual) if usual else None
    largest = max(len(matrix.rows), len(matrix.columns))
    small = largest <= MAX_SQUARES
    lines = ({}, {}) if small else (_lines(matrix, by_row=True), _lines(matrix, by_row=False))
    size = 1 if small else -(-largest // _MAX_BLOCKS)
    return HeatView(
        id=matrix.id,
        title=matrix.title,
        note=matrix.note,
        summary=_summary(matrix, values),
        rows=matrix.rows if small else (matrix.rows[0], matrix.rows[-1]),
        columns=matrix.columns if small else (matrix.columns[0], matrix.columns[-1]),
        legend=_legend(matrix, scale, lines),
        squares=_squares(matrix, scale) if small else (),
        picture=None if small else _picture(matrix, scale, size, lines),
        row_strips=() if small else _strips(matrix, size, lines[0], by_row=True),
        column_strips=() if small else _strips(matrix, size, lines[1], by_row=False),
        row_names="" if small else _in_short(matrix.rows),
        column_names="" if small else _in_short(matrix.columns),
        strip_note="" if small else _strip_note(matrix, size),
        outliers=None if small else outlier_table(matrix),
        bad=None if small else bad_pairs(matrix),
    )


def _in_short(names: Sequence[str]) -> str:
    """Return the names in folded form, if unfolding gives them back in their order."""
    if not all(map(is_hostname, names)):
        return ""
    short = folded(names)
    try:
        return short if expand_hosts(short) == tuple(names) else ""
    except ValueError:
        return ""


def _style(mark: Mark, scale: Scale | None) -> str:
    if mark.state != "ok":
        return mark.state
    if scale is None or mark.value is None or not is_known(mark.value):
        return OK
    return scale.style(mark.value)


def _summary(matrix: Matrix, values: Sequence[float]) -> str:
    states = Counter[str](mark.state for mark in matrix.marks)
    parts = [f"{states[state]:,} {_WORDS[state]}" for state in (OK, BAD, UNKNOWN) if states[state]]
    text = f"{len(matrix.marks):,} pairs drawn: {', '.join(parts) or 'none'}"
    return (
        f"{text}. Median {format_number(median(values), matrix.unit)}, {format_range(values, matrix.unit)}"
        if values
        else text
    )


def _legend(matrix: Matrix, scale: Scale | None, lines: tuple[_Lines, _Lines]) -> tuple[Swatch, ...]:
    states = {mark.state for mark in matrix.marks}
    found = [Swatch(style, label) for style, label in (scale.labels(matrix.unit) if scale else ())]
    if not scale and "ok" in states:
        found.append(Swatch(OK, _WORDS[OK], _SIGNS[OK]))
    found.extend(Swatch(state, _WORDS[state], _SIGNS[state]) for state in (UNKNOWN, BAD) if state in states)
    if any(map(_bad_lines, lines)):
        found.append(Swatch(BAND, "not tried, in a row or column that is mostly bad"))
    if not _is_complete(matrix):
        found.append(Swatch("nothing", "not tried", "·"))
    return tuple(found)


def _is_complete(matrix: Matrix) -> bool:
    """Return whether every pair of two different nodes was tried."""
    with_themselves = len(matrix.rows) if matrix.rows == matrix.columns else 0
    tried = {(mark.row, mark.column) for mark in matrix.marks}
    return len(tried) >= len(matrix.rows) * len(matrix.columns) - with_themselves


def _squares(matrix: Matrix, scale: Scale | None) -> tuple[tuple[SquareView, ...], ...]:
    at = {(mark.row, mark.column): mark for mark in matrix.marks}
    return tuple(
        tuple(_square(matrix, at.get((row, column)), row, column, scale) for column in range(len(matrix.columns)))
        for row in range(len(matrix.rows))
    )


def _square(matrix: Matrix, mark: Mark | None, row: int, column: int, scale: Scale | None) -> SquareView:
    pair = f"{matrix.rows[row]} to {matrix.columns[column]}"
    if mark is None:
        itself = matrix.rows[row] == matrix.columns[column]
        return SquareView("nothing", "·", "itself" if itself else "not tried", f"{pair}: not tried")
    known = mark.value is not None and is_known(mark.value)
    number = digits(mark.value) if mark.value is not None and known else ""
    parts = format_number(mark.value, matrix.unit) if mark.value is not None and known else _WORDS[mark.state]
    sign = _SIGNS[mark.state] if mark.state != OK or not number else ""
    # A number needs no word that it is good; every other sign needs its word.
    word = _WORDS[mark.state] if sign else ""
    why = f" ({mark.why})" if mark.why else ""
    state = f", {_WORDS[mark.state]}" if number and mark.state != OK else ""
    return SquareView(_style(mark, scale), f"{sign} {number}".strip(), word, f"{pair}: {parts}{state}{why}")


def _picture(matrix: Matrix, scale: Scale | None, size: int, lines: tuple[_Lines, _Lines]) -> Picture:
    columns = -(-len(matrix.columns) // size)
    rows = [bytearray(columns) for _ in range(-(-len(matrix.rows) // size))]
    for number in _bad_lines(lines[0]):
        rows[number // size][:] = bytes([_RANKS[BAND]]) * columns
    for number in _bad_lines(lines[1]):
        for row in rows:
            row[number // size] = _RANKS[BAND]
    for mark in matrix.marks:
        row, column = rows[mark.row // size], mark.column // size
        row[column] = max(row[column], _RANKS[_style(mark, scale)])
    pixels = [bytes(row) for row in rows]
    light, dark = ([NOTHING, *(colors[style] for style in _STYLES)] for colors in (LIGHT, DARK))
    return Picture(data_address(pixels, light), data_address(pixels, dark), columns, len(rows))


def _lines(matrix: Matrix, *, by_row: bool) -> _Lines:
    """Return the pairs of each row or column in which any pair was tried."""
    found = grouped((mark.row if by_row else mark.column, mark) for mark in matrix.marks)
    return dict(sorted(found.items()))


def _bad_lines(lines: _Lines) -> tuple[int, ...]:
    """Return the rows or columns that are mostly bad; they are drawn as lines, since samples are only a few points."""
    return tuple(
        number
        for number, marks in lines.items()
        if len(marks) >= _MIN_PAIRS and sum(mark.state == "bad" for mark in marks) * 2 > len(marks)
    )


def _strips(matrix: Matrix, size: int, lines: _Lines, *, by_row: bool) -> tuple[Strip, ...]:
    """Return a bar for each block of rows or columns: its worst share of bad pairs, or else its median."""
    names = matrix.rows if by_row else matrix.columns
    bad = _any_bad(matrix.marks)
    worst: dict[int, tuple[float, int]] = {}
    for number, marks in lines.items():
        worst[number // size] = max(worst.get(number // size, (0.0, number)), (_length(marks, bad=bad), number))
    longest = 1.0 if bad else max((length for length, _ in worst.values()), default=1.0)
    count = -(-len(names) // size)
    return tuple(
        Strip(
            share(block, count),
            share(1, count),
            share(length, longest),
            BAD if bad else "level-4",
            f"{names[number]}: {_strip_title(length, matrix, bad=bad)}",
        )
        for block, (length, number) in worst.items()
        if length > 0
    )


def _any_bad(marks: Iterable[Mark]) -> bool:
    return any(mark.state == "bad" for mark in marks)


def _length(marks: Sequence[Mark], *, bad: bool) -> float:
    if bad:
        return sum(mark.state == "bad" for mark in marks) / len(marks)
    values = _known_values(marks)
    return float(median(values)) if values else 0.0


def _strip_title(length: float, matrix: Matrix, *, bad: bool) -> str:
    return f"{share(length, 1)} % of its pairs bad" if bad else f"median {format_number(length, matrix.unit)}"


def _strip_note(matrix: Matrix, size: int) -> str:
    parts = [f"A cell stands for {size} by {size} pairs and shows the worst of them."] if size > 1 else []
    if _any_bad(matrix.marks):
        parts.append("The bars beside it show the share of bad pairs of each row and column.")
    elif _known_values(matrix.marks):
        parts.append("The bars beside it show the median of each row and column.")
    return " ".join(parts)


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
        values = _known_values((*self.as_row, *self.as_column))
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
    values = _known_values(marks)
    return cell_view(median(values) if values else None, unit)


def _known_values(marks: Sequence[Mark]) -> list[float]:
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
    values = _known_values(same)
    shown = (
        CellView(format_number(median(values), matrix.unit), sort=repr(float(median(values))))
        if values
        else CellView("")
    )
    state = CellView("bad", state="bad") if first.state == "bad" else CellView("not known", state="open")
    to = fold_nodes([matrix.columns[mark.column] for mark in same])
    return RowView(matrix.rows[first.row], (CellView(to), state, shown, CellView(first.why)))
