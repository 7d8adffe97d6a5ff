"""Draws charts by their kind, grouped under headings by the prefix of their ids.

A cell of a large heat map stands for a block of pairs and shows the worst of them; bars beside it show the share of bad
pairs per row and column, so that a bad row is visible even if few of its pairs were tried.
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
from preflight.model.charts import Bar, Bars, Chart, Lane, Layout, Mark, Matrix, Piece, Place, Table, Timeline
from preflight.reporters.html.drawing.shapes import (
    BAD,
    BAND,
    LEVELS,
    OK,
    PHASES,
    UNKNOWN,
    BarsView,
    BarView,
    CellView,
    ColumnView,
    Drawing,
    HeatView,
    LaneView,
    LayoutView,
    PhaseView,
    Picture,
    PieceView,
    PlaceView,
    RowView,
    Scale,
    SquareView,
    Strip,
    Swatch,
    TableView,
    Tick,
    TimelineView,
    cell_view,
    digits,
    format_number,
    format_range,
    is_known,
    picture_of,
    scale_of,
    share,
    table_view,
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
        picture=None if small else _heat_picture(matrix, scale, size, lines),
        row_strips=() if small else _strips(matrix, size, lines[0], by_row=True),
        column_strips=() if small else _strips(matrix, size, lines[1], by_row=False),
        row_names="" if small else _fold_names(matrix.rows),
        column_names="" if small else _fold_names(matrix.columns),
        strip_note="" if small else _strip_note(matrix, size),
        outliers=None if small else outlier_table(matrix),
        bad=None if small else bad_pairs(matrix),
    )


def _fold_names(names: Sequence[str]) -> str:
    """Return the names in folded form, or an empty string if unfolding would change their order."""
    if not all(map(is_hostname, names)):
        return ""
    short = folded(names)
    try:
        return short if expand_hosts(short) == tuple(names) else ""
    except ValueError:
        return ""


def _mark_style(mark: Mark, scale: Scale | None) -> str:
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
    # A good value needs only its number; every other sign needs its word.
    word = _WORDS[mark.state] if sign else ""
    why = f" ({mark.why})" if mark.why else ""
    state = f", {_WORDS[mark.state]}" if number and mark.state != OK else ""
    return SquareView(_mark_style(mark, scale), f"{sign} {number}".strip(), word, f"{pair}: {parts}{state}{why}")


def _heat_picture(matrix: Matrix, scale: Scale | None, size: int, lines: tuple[_Lines, _Lines]) -> Picture:
    columns = -(-len(matrix.columns) // size)
    rows = [bytearray(columns) for _ in range(-(-len(matrix.rows) // size))]
    for number in _bad_lines(lines[0]):
        rows[number // size][:] = bytes([_RANKS[BAND]]) * columns
    for number in _bad_lines(lines[1]):
        for row in rows:
            row[number // size] = _RANKS[BAND]
    for mark in matrix.marks:
        row, column = rows[mark.row // size], mark.column // size
        row[column] = max(row[column], _RANKS[_mark_style(mark, scale)])
    return picture_of([bytes(row) for row in rows], _STYLES)


def _lines(matrix: Matrix, *, by_row: bool) -> _Lines:
    found = grouped((mark.row if by_row else mark.column, mark) for mark in matrix.marks)
    return dict(sorted(found.items()))


def _bad_lines(lines: _Lines) -> tuple[int, ...]:
    """Return the rows or columns that are mostly bad, to be drawn as lines: samples are only a few points."""
    return tuple(
        number
        for number, marks in lines.items()
        if len(marks) >= _MIN_PAIRS and sum(mark.state == "bad" for mark in marks) * 2 > len(marks)
    )


def _strips(matrix: Matrix, size: int, lines: _Lines, *, by_row: bool) -> tuple[Strip, ...]:
    """Return a bar for each block of rows or columns: its worst share of bad pairs, or else its median."""
    names = matrix.rows if by_row else matrix.columns
    bad = _has_bad(matrix.marks)
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


def _has_bad(marks: Iterable[Mark]) -> bool:
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
    if _has_bad(matrix.marks):
        parts.append("The bars next to it show the share of bad pairs in each row and column.")
    elif _known_values(matrix.marks):
        parts.append("The bars next to it show the median of each row and column.")
    return " ".join(parts)


#: Number of names that are listed separately, the worst first.
_MAX_NAMES = 24
#: If nothing is bad: number of names with the highest and the lowest median.
_EXTREME_PAIRS = 3
_MAX_PAIRS = 200


@dataclass
class _Side:
    """The pairs of one name: as row and as column."""

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
    """Build a table of the names with bad pairs, else extreme values, and a row for the rest; None if there are
    none.
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
        # A name that is bad with every peer makes every peer slightly bad, and such peers do not stand out.
        worst = numbered[bad[0]][1]
        return tuple(name for name in bad if numbered[name][1] * 4 >= worst)[:_MAX_NAMES]
    known = sorted((middle, number, name) for name, (number, _, middle) in numbered.items() if middle is not None)
    ends = known[: -_EXTREME_PAIRS - 1 : -1] + known[:_EXTREME_PAIRS] if len(known) > 2 * _EXTREME_PAIRS else known
    return tuple(name for _, _, name in ends)


def _row(matrix: Matrix, names: Sequence[str], sides: Sequence[_Side]) -> RowView:
    as_row = [mark for side in sides for mark in side.as_row]
    as_column = [mark for side in sides for mark in side.as_column]
    cells = [_bad_cell(as_row), _bad_cell(as_column)]
    if any(is_known(mark.value) for mark in matrix.marks):
        cells += [_median_cell(as_row, matrix.unit), _median_cell(as_column, matrix.unit)]
    subject = names[0] if len(names) == 1 else f"{len(names)} others"
    return RowView(subject, tuple(cells), odd=len(names) == 1 and any(side.bad for side in sides))


def _bad_cell(marks: Sequence[Mark]) -> CellView:
    if not marks:
        return CellView("not tried", missing=True)
    bad = sum(mark.state == "bad" for mark in marks)
    unknown = sum(mark.state == "unknown" for mark in marks)
    open_too = f", {unknown:,} not known" if unknown else ""
    text = f"{bad:,} of {len(marks):,}{open_too}"
    return CellView(text, sort=repr(bad / len(marks)), odd=bool(bad) and bad * 2 >= len(marks))


def _median_cell(marks: Sequence[Mark], unit: str) -> CellView:
    values = _known_values(marks)
    return cell_view(median(values) if values else None, unit)


def _known_values(items: Iterable[Mark | Piece | Bar]) -> list[float]:
    return [item.value for item in items if item.value is not None and is_known(item.value)]


def bad_pairs(matrix: Matrix) -> TableView | None:
    """Build a table of the bad or unknown pairs, up to a limit that the title gives; None without such pairs."""
    bad = [mark for mark in matrix.marks if mark.state != "ok"]
    if not bad:
        return None
    alike = grouped(((mark.row, mark.state, mark.why), mark) for mark in bad)
    rows = tuple(_pairs(matrix, same) for same in list(alike.values())[:_MAX_PAIRS])
    title = f"{matrix.title}: {len(bad):,} pairs that are bad or unknown"
    more = len(alike) - len(rows)
    note = f"{more:,} more rows are not shown." if more else ""
    columns = (ColumnView("to"), ColumnView("state"), ColumnView("value", numeric=True), ColumnView("why"))
    return TableView(f"{matrix.id}.bad", title, note, "from", columns, rows)


def _pairs(matrix: Matrix, marks: Sequence[Mark]) -> RowView:
    first = marks[0]
    values = _known_values(marks)
    shown = (
        CellView(format_number(median(values), matrix.unit), sort=repr(float(median(values))))
        if values
        else CellView("")
    )
    state = CellView("bad", state="bad") if first.state == "bad" else CellView("not known", state="open")
    to = fold_nodes([matrix.columns[mark.column] for mark in marks])
    return RowView(matrix.rows[first.row], (CellView(to), state, shown, CellView(first.why)))


#: Prefixes of chart ids and their headings, in the order of the page. Other charts follow under separate headings.
_HEADINGS = {
    "links": "Links",
    "smoke": "Smoke run",
    "servers": "Parameter servers",
    "versions": "Versions",
    "": "Measurements",
}


def drawings_of(charts: Sequence[Chart]) -> tuple[tuple[str, tuple[Drawing, ...]], ...]:
    """Return headings with the drawings of their charts, in the given order. Empty charts are left out."""
    found: dict[str, list[Drawing]] = {heading: [] for heading in _HEADINGS}
    for chart in charts:
        group = chart.id.partition(".")[0]
        drawing = draw(chart)
        if drawing is not None:
            found[group if group in _HEADINGS else ""].append(drawing)
    return tuple((_HEADINGS[group], tuple(drawings)) for group, drawings in found.items() if drawings)


def draw(chart: Chart) -> Drawing | None:
    """Draw one chart; return None if the chart is empty."""
    match chart:
        case Table():
            return table_view(chart) if chart.rows else None
        case Matrix():
            return heat_view(chart) if chart.rows and chart.columns else None
        case Timeline():
            return timeline_view(chart) if chart.lanes else None
        case Bars():
            return bars_view(chart) if chart.bars else None
        case Layout():
            return layout_view(chart) if chart.places else None


#: Up to this many nodes, each is drawn separately.
MAX_PLACES = 24
#: Number of pieces drawn per node.
_MAX_PIECES = 64
#: Classes by kind, and a letter with the same meaning for readers who do not see colours.
_KINDS = {"server": "S", "worker": "W", "trainer": "T", "rank": "R"}


def layout_view(layout: Layout) -> LayoutView:
    largest = max(_known_values(piece for place in layout.places for piece in place.pieces), default=0.0)
    folded = _groups(layout.places) if len(layout.places) > MAX_PLACES else [(place,) for place in layout.places]
    kinds = dict.fromkeys(piece.kind for place in layout.places for piece in place.pieces)
    return LayoutView(
        layout.id,
        layout.title,
        layout.note,
        tuple(Swatch(_style(kind), kind, _KINDS.get(kind, kind[:1].upper())) for kind in kinds),
        tuple(_place(same, layout.unit, largest) for same in folded),
    )


def _style(kind: str) -> str:
    return f"piece-{kind}" if kind in _KINDS else "piece-other"


def _groups(places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Group nodes with pieces of the same kinds; a node with an unusual piece stays separate."""
    alike = grouped(
        (tuple((piece.kind, is_known(piece.value), piece.why) for piece in place.pieces), place) for place in places
    )
    return [tuple(same) for same in alike.values()]


def _place(places: Sequence[Place], unit: str, largest: float) -> PlaceView:
    first = places[0]
    pieces = tuple(
        _piece([place.pieces[number] for place in places], unit, largest)
        for number in range(min(len(first.pieces), _MAX_PIECES))
    )
    values = [_known_values(place.pieces) for place in places]
    more = len(first.pieces) - len(pieces)
    return PlaceView(
        fold_nodes([place.node for place in places]),
        len(places),
        format_range([float(sum(each)) for each in values], unit) if any(values) else "",
        pieces,
        f"and {more} more" if more > 0 else "",
    )


def _piece(pieces: Sequence[Piece], unit: str, largest: float) -> PieceView:
    first = pieces[0]
    values = _known_values(pieces)
    label = first.label if len(pieces) == 1 else f"{first.label} to {pieces[-1].label}"
    if not values:
        # A worker holds nothing; only a piece that should hold something and is unknown counts as missing.
        return PieceView(label, _style(first.kind), "not known" if first.why else "", "0", bool(first.why), first.why)
    return PieceView(label, _style(first.kind), format_range(values, unit), share(max(values), largest), why=first.why)


#: Up to this many bars, each has a row of its own.
MAX_BARS = 40
#: Otherwise the odd bars, and this many of the longest and of the shortest, have a row.
_EXTREMES = 6
_MAX_ODD = 24
_PROFILE_HEIGHT = 100


def bars_view(bars: Bars) -> BarsView:
    longest = max(_known_values(bars.bars), default=0.0)
    many = len(bars.bars) > MAX_BARS
    shown = _choose_bars(bars.bars) if many else bars.bars
    return BarsView(
        id=bars.id,
        title=bars.title,
        note=bars.note,
        bars=tuple(_bar(bar, bars.unit, longest) for bar in shown),
        bars_note=_summarize_others(bars, shown) if many else "",
        profile=_profile(bars.bars, longest) if many else "",
        profile_width=len(bars.bars),
        profile_note=f"All {len(bars.bars):,} in their order; the highest is {format_number(longest, bars.unit)}."
        if many
        else "",
        has_groups=any(bar.group and bar.group != bar.label for bar in bars.bars),
    )


def _value(bar: Bar) -> float | None:
    return bar.value if is_known(bar.value) else None


def _bar(bar: Bar, unit: str, longest: float) -> BarView:
    value = _value(bar)
    cell = cell_view(value, unit, odd=bar.odd, why=bar.why)
    return BarView(bar.label, bar.group, share(value, longest) if value is not None else "0", cell)


def _choose_bars(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    odd = [number for number, bar in enumerate(bars) if bar.odd or _value(bar) is None][:_MAX_ODD]
    ordered = sorted((value, number) for number, bar in enumerate(bars) if (value := _value(bar)) is not None)
    ends = [number for _, number in (*ordered[:_EXTREMES], *ordered[-_EXTREMES:])]
    return tuple(bars[number] for number in sorted({*odd, *ends}))


def _summarize_others(bars: Bars, shown: Sequence[Bar]) -> str:
    chosen = set(map(id, shown))
    others = [bar for bar in bars.bars if id(bar) not in chosen]
    values = _known_values(others)
    between_them = f": {format_range(values, bars.unit)}" if values else ""
    listed = "The table lists those that stand out, the highest and the lowest"
    return f"{listed}; the other {len(others):,} are in between{between_them}."


def _profile(bars: Sequence[Bar], longest: float) -> str:
    """Return the outline of all bars as a path, in a box one unit wide per bar and 100 units high."""
    path = [f"M0 {_PROFILE_HEIGHT}"]
    for bar in bars:
        value = _value(bar) or 0.0
        height = float(share(value, longest))
        path.append(f"V{_PROFILE_HEIGHT - height:.4g}h1")
    return "".join((*path, f"V{_PROFILE_HEIGHT}Z"))


#: Up to this many lanes, each has a row of its own.
MAX_LANES = 40
#: Otherwise this many of the lanes that ended last have a row.
_LAST_LANES = 12
_PICTURE_COLUMNS = 960
#: A phase is labelled from this share of the whole on, in per cent per letter.
_ROOM_FOR_A_LETTER = 1.3
_TICKS = 5


def timeline_view(timeline: Timeline) -> TimelineView:
    whole = max((span.ended_s for lane in timeline.lanes for span in lane.spans), default=0.0)
    phases = tuple(dict.fromkeys(span.phase for lane in timeline.lanes for span in lane.spans))
    # If there are more phases than colours, the remaining phases share the last colour; the tables name them.
    styles = {phase: PHASES[min(number, len(PHASES) - 1)] for number, phase in enumerate(phases)}
    many = len(timeline.lanes) > MAX_LANES
    shown = _last_lanes(timeline.lanes) if many else timeline.lanes
    return TimelineView(
        id=timeline.id,
        title=timeline.title,
        note=timeline.note,
        legend=tuple(Swatch(styles[phase], phase) for phase in phases),
        ticks=_ticks(whole),
        lanes=tuple(_lane(lane, styles, whole) for lane in shown),
        lanes_note=f"The {len(shown)} of {len(timeline.lanes):,} that ended last are shown." if many else "",
        by_phase=_phase_table(timeline, phases),
        picture=_picture(timeline.lanes, styles, whole) if many and whole > 0 else None,
    )


def _end(lane: Lane) -> float:
    return max((span.ended_s for span in lane.spans), default=0.0)


def _last_lanes(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    ordered = sorted(enumerate(lanes), key=lambda item: (-_end(item[1]), item[0]))
    return tuple(lane for _, lane in ordered[:_LAST_LANES])


def _lane(lane: Lane, styles: dict[str, str], whole: float) -> LaneView:
    phases = tuple(
        PhaseView(
            share(span.began_s, whole),
            share(span.ended_s - span.began_s, whole),
            styles[span.phase],
            f"{span.phase}: {format_number(span.ended_s - span.began_s, 's')}, "
            f"from {format_number(span.began_s, 's')} on",
            span.phase if _has_room_for(span.phase, span.ended_s - span.began_s, whole) else "",
        )
        for span in lane.spans
    )
    took = cell_view(_end(lane), "s") if lane.spans else CellView("no data", missing=True)
    return LaneView(lane.subject, lane.node, phases, took)


def _has_room_for(name: str, long: float, whole: float) -> bool:
    return whole > 0 and 100 * long / whole >= len(name) * _ROOM_FOR_A_LETTER + 1


def _ticks(whole: float) -> tuple[Tick, ...]:
    if not whole > 0:
        return ()
    return tuple(Tick(share(n, _TICKS - 1), format_number(whole * n / (_TICKS - 1), "s")) for n in range(_TICKS))


def _phase_table(timeline: Timeline, phases: Sequence[str]) -> TableView:
    """Build a table of the duration of each phase: median, range, and the slowest lanes."""
    took: dict[str, list[tuple[float, str]]] = {phase: [] for phase in phases}
    for lane in timeline.lanes:
        own: dict[str, float] = {}
        for span in lane.spans:
            own[span.phase] = own.get(span.phase, 0.0) + span.ended_s - span.began_s
        for phase, seconds in own.items():
            took[phase].append((seconds, lane.subject))
    rows = tuple(_phase_row(phase, took[phase]) for phase in phases)
    columns = (
        ColumnView("how many", numeric=True),
        ColumnView("median", numeric=True),
        ColumnView("range"),
        ColumnView("longest"),
    )
    return TableView(f"{timeline.id}.phases", f"{timeline.title}: by phase", "", "phase", columns, rows)


def _phase_row(phase: str, took: Sequence[tuple[float, str]]) -> RowView:
    seconds = [duration for duration, _ in took]
    slowest = max(took, key=lambda item: item[0])[1]
    cells = (
        CellView(f"{len(took):,}", sort=str(len(took))),
        cell_view(float(median(seconds)), "s"),
        CellView(format_range(seconds, "s")),
        CellView(slowest),
    )
    return RowView(phase, cells)


def _picture(lanes: Sequence[Lane], styles: dict[str, str], whole: float) -> Picture:
    """Return the picture of all lanes, one row of pixels per lane."""
    index = {style: number for number, style in enumerate(PHASES, 1)}
    pixels = []
    for lane in lanes:
        row = bytearray(_PICTURE_COLUMNS)
        for span in lane.spans:
            first = max(0, min(int(span.began_s / whole * _PICTURE_COLUMNS), _PICTURE_COLUMNS - 1))
            last = max(first + 1, min(int(span.ended_s / whole * _PICTURE_COLUMNS), _PICTURE_COLUMNS))
            row[first:last] = bytes([index[styles[span.phase]]]) * (last - first)
        pixels.append(bytes(row))
    return picture_of(pixels, PHASES)
