"""Pairs as a heat map: small ones as a table with a value in each cell, large ones as a picture of blocks.

In a large one a cell stands for a block of pairs and shows the worst of them, and strips beside the picture say how
much of each row and column is bad, so that a bad row shows however few of its pairs were tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeAlias

from preflight.exhibit import Mark, Matrix
from preflight.job.hostlist import expand_hosts
from preflight.job.hostname import folded, is_hostname
from preflight.reporters.html.drawing.colors import BAD, BAND, DARK, LEVELS, LIGHT, NOTHING, OK, UNKNOWN
from preflight.reporters.html.drawing.numbers import between, digits, share, told
from preflight.reporters.html.drawing.png import data_address
from preflight.reporters.html.drawing.scale import Scale, scale_of
from preflight.reporters.html.drawing.stand_out import bad_pairs, standing_out
from preflight.reporters.html.drawing.table import is_known
from preflight.reporters.html.drawing.view import HeatView, Picture, SquareView, Strip, Swatch

#: Up to so many rows and columns every pair has a cell with text.
MOST_SQUARES = 24
#: A picture has at most so many rows and columns of blocks.
_MOST_BLOCKS = 256
#: Of fewer pairs nobody says that most of a row is bad.
_LEAST_OF_A_LINE = 3
_SIGNS = {OK: "✓", UNKNOWN: "?", BAD: "×"}
_WORDS = {OK: "ok", UNKNOWN: "not known", BAD: "bad"}
_STYLES = (BAND, OK, UNKNOWN, *LEVELS, BAD)
#: Of several pairs in one block the one with the highest number shows.
_RANKS = {style: number for number, style in enumerate(_STYLES, 1)}

#: The pairs of each row, or of each column.
_Lines: TypeAlias = dict[int, list[Mark]]


def heat_view(matrix: Matrix) -> HeatView:
    """The heat map of a matrix."""
    values = _values(matrix.marks)
    # What is bad has a colour of its own; were it part of the scale, all others would look alike.
    usual = _values([mark for mark in matrix.marks if mark.state == "ok"])
    scale = scale_of(usual) if usual else None
    largest = max(len(matrix.rows), len(matrix.columns))
    small = largest <= MOST_SQUARES
    lines = ({}, {}) if small else (_lines(matrix, by_row=True), _lines(matrix, by_row=False))
    size = 1 if small else -(-largest // _MOST_BLOCKS)
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
        standing_out=None if small else standing_out(matrix),
        bad=None if small else bad_pairs(matrix),
    )


def _in_short(names: Sequence[str]) -> str:
    """The names in short form, if they can be had back from it in their order."""
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


def _values(marks: Sequence[Mark]) -> list[float]:
    return [mark.value for mark in marks if mark.value is not None and is_known(mark.value)]


def _summary(matrix: Matrix, values: Sequence[float]) -> str:
    states = Counter[str](mark.state for mark in matrix.marks)
    said = [f"{states[state]:,} {_WORDS[state]}" for state in (OK, BAD, UNKNOWN) if states[state]]
    text = f"{len(matrix.marks):,} pairs drawn: {', '.join(said) or 'none'}"
    return f"{text}. Median {told(median(values), matrix.unit)}, {between(values, matrix.unit)}" if values else text


def _legend(matrix: Matrix, scale: Scale | None, lines: tuple[_Lines, _Lines]) -> tuple[Swatch, ...]:
    states = {mark.state for mark in matrix.marks}
    found = [Swatch(style, label) for style, label in (scale.labels(matrix.unit) if scale else ())]
    if not scale and "ok" in states:
        found.append(Swatch(OK, _WORDS[OK], _SIGNS[OK]))
    found.extend(Swatch(state, _WORDS[state], _SIGNS[state]) for state in (UNKNOWN, BAD) if state in states)
    if any(map(_bad_lines, lines)):
        found.append(Swatch(BAND, "not tried, of a row or column that is mostly bad"))
    if not _is_whole(matrix):
        found.append(Swatch("nothing", "not tried", "·"))
    return tuple(found)


def _is_whole(matrix: Matrix) -> bool:
    """Whether every pair was tried but those of a node with itself."""
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
    said = told(mark.value, matrix.unit) if mark.value is not None and known else _WORDS[mark.state]
    sign = _SIGNS[mark.state] if mark.state != OK or not number else ""
    # Beside a number nobody needs to hear that it is well; of everything else a sign needs its word.
    word = _WORDS[mark.state] if sign else ""
    why = f" ({mark.why})" if mark.why else ""
    state = f", {_WORDS[mark.state]}" if number and mark.state != OK else ""
    return SquareView(_style(mark, scale), f"{sign} {number}".strip(), word, f"{pair}: {said}{state}{why}")


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
    """The pairs of each row or column in which any was tried."""
    found: dict[int, list[Mark]] = {}
    for mark in matrix.marks:
        found.setdefault(mark.row if by_row else mark.column, []).append(mark)
    return dict(sorted(found.items()))


def _bad_lines(lines: _Lines) -> tuple[int, ...]:
    """The rows or columns of which most is bad: they are drawn through, because a sample of them is a few points."""
    return tuple(
        number
        for number, marks in lines.items()
        if len(marks) >= _LEAST_OF_A_LINE and sum(mark.state == "bad" for mark in marks) * 2 > len(marks)
    )


def _strips(matrix: Matrix, size: int, lines: _Lines, *, by_row: bool) -> tuple[Strip, ...]:
    """A bar for each block of rows or columns, as long as the worst of them is bad, or as its median is high."""
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
    values = _values(marks)
    return float(median(values)) if values else 0.0


def _strip_title(length: float, matrix: Matrix, *, bad: bool) -> str:
    return f"{share(length, 1)} % of its pairs bad" if bad else f"median {told(length, matrix.unit)}"


def _strip_note(matrix: Matrix, size: int) -> str:
    said = [f"A cell stands for {size} by {size} pairs and shows the worst of them."] if size > 1 else []
    if _any_bad(matrix.marks):
        said.append("The bars beside it: the share of bad pairs of each row and column.")
    elif _values(matrix.marks):
        said.append("The bars beside it: the median of each row and column.")
    return " ".join(said)
