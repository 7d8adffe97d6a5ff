"""Timelines: each lane as a table row with its phases as bars; with very many lanes, one picture and the last lanes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from preflight.model.charts import Lane, Timeline
from preflight.reporters.html.drawing.colors import DARK, LIGHT, NOTHING, PHASES, data_address
from preflight.reporters.html.drawing.numbers import format_number, format_range, share
from preflight.reporters.html.drawing.row_table import cell_view
from preflight.reporters.html.drawing.shapes import (
    CellView,
    ColumnView,
    LaneView,
    PhaseView,
    Picture,
    RowView,
    Swatch,
    TableView,
    Tick,
    TimelineView,
)

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
