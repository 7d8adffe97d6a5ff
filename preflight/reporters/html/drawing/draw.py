"""Charts grouped under headings by the prefix of their ids, and drawn by their kind."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.model.charts import Bars, Chart, Layout, Matrix, Table, Timeline
from preflight.reporters.html.drawing.bars import bars_view
from preflight.reporters.html.drawing.heat import heat_view
from preflight.reporters.html.drawing.layout import layout_view
from preflight.reporters.html.drawing.row_table import table_view
from preflight.reporters.html.drawing.shapes import Drawing
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
