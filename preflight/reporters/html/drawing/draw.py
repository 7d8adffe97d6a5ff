"""Charts grouped under headings by the prefix of their ids, and drawn by their kind.

Bar charts of numbers of one unit; if there are very many bars, their outline and the outliers.

Timelines: each lane as a table row with its phases as bars; with very many lanes, one picture and the last lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from preflight._util.sanitize import fold_nodes
from preflight.model.charts import Bar, Bars, Chart, Lane, Layout, Matrix, Piece, Place, Table, Timeline
from preflight.reporters.html.drawing.heat import heat_view
from preflight.reporters.html.drawing.shapes import (
    DARK,
    LIGHT,
    NOTHING,
    PHASES,
    BarsView,
    BarView,
    CellView,
    ColumnView,
    Drawing,
    LaneView,
    LayoutView,
    PhaseView,
    Picture,
    PieceView,
    PlaceView,
    RowView,
    Swatch,
    TableView,
    Tick,
    TimelineView,
    cell_view,
    data_address,
    format_number,
    format_range,
    is_known,
    share,
    table_view,
)

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
    """Draw one chart; None if it is empty."""
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
    """Build the view of a layout."""
    values = [piece.value for place in layout.places for piece in place.pieces if _known(piece)]
    largest = max((value for value in values if value is not None), default=0.0)
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


def _known(piece: Piece) -> bool:
    return is_known(piece.value)


def _groups(places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Group nodes with pieces of the same kinds; a node with an unusual piece stays separate."""
    found: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        key = tuple((piece.kind, _known(piece), piece.why) for piece in place.pieces)
        found.setdefault(key, []).append(place)
    return [tuple(same) for same in found.values()]


def _place(same: Sequence[Place], unit: str, largest: float) -> PlaceView:
    first = same[0]
    pieces = tuple(
        _piece([place.pieces[number] for place in same], unit, largest)
        for number in range(min(len(first.pieces), _MAX_PIECES))
    )
    totals = [sum(piece.value or 0.0 for piece in place.pieces if _known(piece)) for place in same]
    has_values = any(_known(piece) for place in same for piece in place.pieces)
    more = len(first.pieces) - len(pieces)
    return PlaceView(
        fold_nodes([place.node for place in same]),
        len(same),
        format_range(totals, unit) if has_values else "",
        pieces,
        f"and {more} more" if more > 0 else "",
    )


def _piece(same: Sequence[Piece], unit: str, largest: float) -> PieceView:
    first = same[0]
    values = [piece.value for piece in same if piece.value is not None and _known(piece)]
    label = first.label if len(same) == 1 else f"{first.label} to {same[-1].label}"
    if not values:
        # A worker holds nothing; only a piece that should hold something and is unknown counts as missing.
        return PieceView(label, _style(first.kind), "not known" if first.why else "", "0", bool(first.why), first.why)
    return PieceView(label, _style(first.kind), format_range(values, unit), share(max(values), largest), why=first.why)


#: Up to this many bars, each has a row of its own.
MAX_BARS = 40
#: With more: the odd ones, and this many of the longest and of the shortest.
_EXTREMES = 6
_MAX_ODD = 24
_PROFILE_HEIGHT = 100


def bars_view(bars: Bars) -> BarsView:
    """Build the view of a bar chart."""
    longest = max((value for bar in bars.bars if (value := _value(bar)) is not None), default=0.0)
    many = len(bars.bars) > MAX_BARS
    shown = _choose_bars(bars.bars) if many else bars.bars
    return BarsView(
        id=bars.id,
        title=bars.title,
        note=bars.note,
        unit=bars.unit,
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
    """Return the odd bars and those at both ends, in their order."""
    odd = [number for number, bar in enumerate(bars) if bar.odd or _value(bar) is None][:_MAX_ODD]
    ordered = sorted((value, number) for number, bar in enumerate(bars) if (value := _value(bar)) is not None)
    ends = [number for _, number in (*ordered[:_EXTREMES], *ordered[-_EXTREMES:])]
    return tuple(bars[number] for number in sorted({*odd, *ends}))


def _summarize_others(bars: Bars, shown: Sequence[Bar]) -> str:
    chosen = set(map(id, shown))
    others = [bar for bar in bars.bars if id(bar) not in chosen]
    values = [value for bar in others if (value := _value(bar)) is not None]
    between_them = f": {format_range(values, bars.unit)}" if values else ""
    listed = "The table lists those that stand out, the highest and the lowest"
    return f"{listed}; {len(others):,} others are between{between_them}."


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
#: With more: this many of those that ended last.
_LAST_LANES = 12
_PICTURE_COLUMNS = 960
#: A phase is labelled from this share of the whole on, in per cent per letter.
_ROOM_FOR_A_LETTER = 1.3
_TICKS = 5


def timeline_view(timeline: Timeline) -> TimelineView:
    """Build the view of a timeline."""
    whole = max((span.ended_s for lane in timeline.lanes for span in lane.spans), default=0.0)
    phases = tuple(dict.fromkeys(span.phase for lane in timeline.lanes for span in lane.spans))
    # With more phases than colours, all further phases share the last colour; the tables name them.
    styles = {phase: PHASES[min(number, len(PHASES) - 1)] for number, phase in enumerate(phases)}
    many = len(timeline.lanes) > MAX_LANES
    shown = _last(timeline.lanes) if many else timeline.lanes
    return TimelineView(
        id=timeline.id,
        title=timeline.title,
        note=timeline.note,
        legend=tuple(Swatch(styles[phase], phase) for phase in phases),
        ticks=_ticks(whole),
        lanes=tuple(_lane(lane, styles, whole) for lane in shown),
        lanes_note=f"The {len(shown)} of {len(timeline.lanes):,} that ended last." if many else "",
        by_phase=_by_phase(timeline, phases),
        picture=_picture(timeline.lanes, styles, whole) if many and whole > 0 else None,
    )


def _end(lane: Lane) -> float:
    return max((span.ended_s for span in lane.spans), default=0.0)


def _last(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
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
            span.phase if _fits(span.phase, span.ended_s - span.began_s, whole) else "",
        )
        for span in lane.spans
    )
    took = cell_view(_end(lane), "s") if lane.spans else CellView("no data", missing=True)
    return LaneView(lane.subject, lane.node, phases, took)


def _fits(name: str, long: float, whole: float) -> bool:
    return whole > 0 and 100 * long / whole >= len(name) * _ROOM_FOR_A_LETTER + 1


def _ticks(whole: float) -> tuple[Tick, ...]:
    """Return the ticks of the time axis, from 0 to the end."""
    if not whole > 0:
        return ()
    return tuple(Tick(share(n, _TICKS - 1), format_number(whole * n / (_TICKS - 1), "s")) for n in range(_TICKS))


def _by_phase(timeline: Timeline, phases: Sequence[str]) -> TableView:
    """Build a table of how long each phase took: median, range, and the slowest lanes."""
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
    """Return the picture of all lanes, one row of pixels each."""
    index = {style: number for number, style in enumerate(PHASES, 1)}
    pixels = []
    for lane in lanes:
        row = bytearray(_PICTURE_COLUMNS)
        for span in lane.spans:
            first = max(0, min(int(span.began_s / whole * _PICTURE_COLUMNS), _PICTURE_COLUMNS - 1))
            last = max(first + 1, min(int(span.ended_s / whole * _PICTURE_COLUMNS), _PICTURE_COLUMNS))
            row[first:last] = bytes([index[styles[span.phase]]]) * (last - first)
        pixels.append(bytes(row))
    light, dark = ([NOTHING, *(colors[style] for style in PHASES)] for colors in (LIGHT, DARK))
    return Picture(data_address(pixels, light), data_address(pixels, dark), _PICTURE_COLUMNS, len(pixels))
