"""Charts grouped under headings by the prefix of their ids, and drawn by their kind."""

from __future__ import annotations

from collections.abc import Sequence

from preflight._util.sanitize import fold_nodes
from preflight.model.charts import Bars, Chart, Layout, Matrix, Piece, Place, Table, Timeline
from preflight.reporters.html.drawing.bars import bars_view
from preflight.reporters.html.drawing.heat import heat_view
from preflight.reporters.html.drawing.numbers import format_range, share
from preflight.reporters.html.drawing.row_table import is_known, table_view
from preflight.reporters.html.drawing.shapes import Drawing, LayoutView, PieceView, PlaceView, Swatch
from preflight.reporters.html.drawing.timeline import timeline_view

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
