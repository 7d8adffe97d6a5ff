"""From exhibits to drawings, each by its kind, under the heading that its id begins with."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.exhibit import Bars, Exhibit, Layout, Matrix, Table, Timeline
from preflight.reporters.html.drawing.bars import bars_view
from preflight.reporters.html.drawing.heat import heat_view
from preflight.reporters.html.drawing.layout import layout_view
from preflight.reporters.html.drawing.table import table_view
from preflight.reporters.html.drawing.timeline import timeline_view
from preflight.reporters.html.drawing.view import Drawing

#: What the ids of exhibits begin with, in the order of the page. Others follow under a heading of their own.
_HEADINGS = {
    "links": "Links",
    "smoke": "Smoke run",
    "servers": "Parameter servers",
    "versions": "Versions",
    "": "Measurements",
}


def drawings_of(exhibits: Sequence[Exhibit]) -> tuple[tuple[str, tuple[Drawing, ...]], ...]:
    """Headings, each with its drawings in the order given. Exhibits in which there is nothing are left out."""
    found: dict[str, list[Drawing]] = {heading: [] for heading in _HEADINGS}
    for exhibit in exhibits:
        group = exhibit.id.partition(".")[0]
        drawing = draw(exhibit)
        if drawing is not None:
            found[group if group in _HEADINGS else ""].append(drawing)
    return tuple((_HEADINGS[group], tuple(drawings)) for group, drawings in found.items() if drawings)


def draw(exhibit: Exhibit) -> Drawing | None:
    """The drawing of one exhibit; None where it holds nothing."""
    match exhibit:
        case Table():
            return table_view(exhibit) if exhibit.rows else None
        case Matrix():
            return heat_view(exhibit) if exhibit.rows and exhibit.columns else None
        case Timeline():
            return timeline_view(exhibit) if exhibit.lanes else None
        case Bars():
            return bars_view(exhibit) if exhibit.bars else None
        case Layout():
            return layout_view(exhibit) if exhibit.places else None
